#!/usr/bin/env perl
# examples/09_several_hosts on the emulated driver, with the stand-in for NCCL: right results across
# hosts, over shared memory and over TCP; and what is said without an NCCL.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = $ENV{SYMWIN_BUILD} || 'build';
my $folder = tempdir(CLEANUP => 1);
my $program = "$build/allreduce_sm";
$ENV{SYMWIN_DRIVER} = 'emu';
$ENV{STAND_IN_DRIVER} = 'symwin';
$ENV{SYMWIN_NCCL} = "$build/tests/nccl/stand_in/libnccl.so.2";
delete @ENV{qw(NTHREADS MASTER_ADDR MASTER_PORT)};

sub run_hosts {
    my ($variables, $arguments) = @_;
    my $output = `$variables timeout 120 examples/09_several_hosts/run.sh $arguments 2>$folder/err`;
    return ($? >> 8, $output, slurp("$folder/err"));
}

# Hosts, ranks of each, arguments, more variables.
for (['2', '2', '1M', ''], ['3', '2', '100001 bf16 max', 'STAND_IN_WIRE=tcp'],
    ['4', '1', '7 i64', 'STAND_IN_WIRE=tcp']) {
    my ($hosts, $ranks, $arguments, $more) = @$_;
    my ($status, $output, $errors) =
      run_hosts("HOSTS=$hosts RANKS=$ranks $more", "$program $arguments");
    my $right = () = $output =~ /^Results verified correctly$/mg;
    is("$status $errors", '0 ', "$hosts hosts of $ranks, $arguments: exit status");
    is($right, 1, 'and the results are right');
}

my ($status, $output, $errors) = run_hosts('SYMWIN_NCCL=/none/libnccl.so.2', $program);
is($status, 1, 'without an NCCL: exit status');
like($errors, qr/there is no NCCL to join them .*set SYMWIN_NCCL/, 'and a sentence that helps');
($status, $output, $errors) = run_hosts('SYMWIN_NCCL=', $program);
like("$status $errors", qr/^1 .*SYMWIN_INVALID.* SYMWIN_NCCL is "": set it to the path of libnccl/,
    'no name of an NCCL');
($status, $output, $errors) = run_hosts('', '');
is($status, 2, 'no program: exit status');
like($errors, qr/^usage: .*run.sh PROGRAM/, 'and the usage');
for my $hosts ('x', 0, '08', -1, 1000) {
    ($status, $output, $errors) = run_hosts("HOSTS=$hosts", $program);
    is("$status $errors",
        qq{2 run.sh: HOSTS is "$hosts" and RANKS "2": give numbers from 1 to 999\n},
        "$hosts hosts");
}

# Another count on a host, and an address that is none: what to do.
($status, $output, $errors) = run_hosts('',
    "sh -c 'test \$SYMWIN_HOST_ID = host-0 && exec $program 1K; exec $program 2K'");
like("$status $errors", qr/^1 .*NCCL has failed on rank \d; .*NCCL_DEBUG=WARN tells more/,
    'a host passes another count');
($status, $output, $errors) =
  run_hosts('', "env SYMWIN_ADDR='no address' $program");
like("$status $errors", qr/^1 .*is not an address: .*; set MASTER_ADDR or SYMWIN_ADDR to /,
    'no address');

# Ranks end with run.sh, by Ctrl-C too, which a shell's processes in the background do not get.
for my $signal (qw(INT TERM)) {
    my $script = open my $said, '-|';
    if (!$script) {
        $SIG{INT} = 'DEFAULT';
        exec 'examples/09_several_hosts/run.sh', 'sh', '-c', 'echo $$; exec sleep 60';
        exit 127;
    }
    my @ranks = map { scalar(<$said>) =~ /(\d+)/ } 1 .. 4;
    kill $signal, $script;
    close $said; # waits for run.sh
    is($? & 127, $signal eq 'INT' ? 2 : 15, "run.sh ends by SIG$signal");
    is(scalar(grep { kill 0, $_ } @ranks), 0, 'and its ranks with it');
}

# A table of ways between domains, and calls that take them by it.
# Under sanitizers fewer sizes and one type: it measures each way all the same.
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;
my $perf = "$build/bench/symwin-perf -t 1 --collective allreduce,allgather -b 8K -e 512K -f 8";
my $tune = $sanitized ? '-e 64K -d bf16' : '-d bf16,i32';
($status, $output, $errors) = run_hosts('', "$perf --tune $folder/table $tune");
is("$status $errors", '0 ', 'symwin-perf --tune over two hosts: exit status');
my @rows = grep { /,/ && !/^#|^collective/ } split /\n/, slurp("$folder/table");
my $row =
  qr/^all(reduce|gather),symwin emulated GPU in 2 domains,4,[24],(float|integer),0,\d+,(\w+),/;
my $ways = qr/^(oneshot|rails|twoshot_push|nccl)$/;
is(scalar(grep { !/$row/ || $3 !~ $ways } @rows), 0, 'each row names a way');
cmp_ok(scalar @rows, '>=', $sanitized ? 2 : 4, 'and each key has rows');
my $header = 'collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads';
my $key = 'symwin emulated GPU in 2 domains,4,2,float,0';
open my $table, '>', "$folder/own" or die $!;
print $table "$header\nallreduce,$key,8192,nccl,0,0\nallreduce,$key,524288,rails,3,0\n",
  "allgather,$key,8192,rails,0,0\nallgather,$key,524288,nccl,0,0\n";
close $table;
($status, $output, $errors) =
  run_hosts("SYMWIN_TUNING=$folder/own", "$perf -d bf16 -n 1 -w 0");
my @took = $output =~ /(\w+:\d+x\d+)/g;
# Of the largest all-reduce the scratch has room for a sixth at a time, not for a third.
is("@took", 'nccl:1x0 rails:3x0 rails:6x0 rails:1x0 nccl:1x0 nccl:1x0',
    'calls go by the table');
($status, $output, $errors) =
  run_hosts("SYMWIN_TUNING=$folder/own",
    "$build/bench/symwin-perf -t 1 -b 8K -e 8K -d bf16 -o mulsum -n 1 -w 0");
like("$status $errors $output", qr/^0  .*\b(oneshot|rails):1x0\b/s,
    'or by the model where a row cannot serve');
($status, $output, $errors) =
  run_hosts("SYMWIN_TUNING=$folder/own", "sh -c 'test \$SYMWIN_RANK = 1 && unset SYMWIN_TUNING; " .
      "exec $perf -d bf16 -n 1 -w 0'");
like($errors, qr/tables of choices differ: rank 0 has/, 'ranks with different tables');

# The barrier's check reads memory of the domain; links are of one domain.
($status, $output, $errors) =
  run_hosts('', "$build/bench/symwin-perf -t 1 --collective barrier -n 1 -w 0");
is("$status $errors", '0 ', 'a barrier over two hosts: exit status');
like($output, qr/^# Wrong elements: 0 OK$/m, 'and it was checked');
($status, $output, $errors) = run_hosts('', "$perf -d bf16 -n 1 -w 0 --link");
like("$status $errors", qr/^1 symwin-perf: rank \d: --link measures .* one domain, .* one host$/m,
    '--link over two hosts');

done_testing();
