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
($status, $output, $errors) = run_hosts('', '');
is($status, 2, 'no program: exit status');
like($errors, qr/^usage: .*run.sh PROGRAM/, 'and the usage');
($status, $output, $errors) = run_hosts('HOSTS=x', $program);
is("$status $errors", qq{2 run.sh: HOSTS is "x" and RANKS "2": give numbers\n}, 'no number');

done_testing();
