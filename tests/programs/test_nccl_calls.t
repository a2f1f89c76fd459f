#!/usr/bin/env perl
# Collectives of unchanged programs by libsymwin-nccl.so: the program that tests the stand-in for
# NCCL (tests/nccl/stand_in_user.c), with the library preloaded, on the emulated driver.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $place = "$build/tests/nccl";
plan skip_all => "no $place/stand_in_user: make tests has not run here"
  unless -x "$place/stand_in_user";

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{grep { /^(SYMWIN_NCCL|STAND_IN)_/ } keys %ENV};
delete @ENV{qw(FAKE_CUDA LD_PRELOAD NCCL_DEBUG)};
$ENV{LD_LIBRARY_PATH}    = "$place/shared";
$ENV{SYMWIN_EMU_DEVICES} = 4;
$ENV{SYMWIN_DRIVER}      = 'emu';

# Sanitizers have to be the first library of a process.
my $sanitizer = join ' ', map { /=> (\S*lib[at]san\S*) / ? $1 : () } `ldd $place/stand_in_user`;
my $preload = "LD_PRELOAD='$sanitizer $build/libsymwin-nccl.so'";

# Runs a test with the library, in processes and threads, some of which are killed. Returns what
# was printed on stderr.
sub passes {
    my ($test, $processes, $threads, $killed, $setting, $errors) = @_;
    my $output = `timeout --foreground 60 env $preload $setting $place/stand_in_user \\
        $test $processes $threads 2>$scratch/stderr`;
    my $status = $?;
    my ($checks) = $output =~ /\A(\d+) checks, 0 failed, $killed killed\n\z/;
    my $printed = slurp("$scratch/stderr");
    ok($status == 0 && ($checks // 0) > 3 && $printed =~ ($errors // qr/\A\z/),
        "$test: $processes processes of $threads threads, $setting")
      or diag("status $status\n$output$printed");
    return $printed;
}

my $all = 'SYMWIN_NCCL_SERVE=all';

# ---- what the ranks agree on -------------------------------------------------------------------

my $report = 'SYMWIN_NCCL_REPORT=1';
for my $case (
    ['SYMWIN_HOST_ID=elsewhere',               'rank 1 is on another host than rank 0'],
    ['SYMWIN_NCCL_SERVE=none',                 'rank 1 has SYMWIN_NCCL_SERVE=none'],
    ['SYMWIN_NCCL_SERVE=all,allgather=none',   'rank 1 has another SYMWIN_NCCL_SERVE than rank 0'],
    ['SYMWIN_NCCL_MEMORY=32M',                 'rank 1 has another SYMWIN_NCCL_MEMORY than rank 0'],
  )
{
    my ($other, $why) = @$case;
    my $printed = passes('collectives', 2, 1, 0, "$all $report STAND_IN_SET=1:$other",
        qr/allreduce .* NCCL +\Q$why\E/);
    unlike($printed, qr/ symwin  saved /, '  and NCCL has all calls');
}
for my $invalid (
    map({ "SYMWIN_NCCL_SERVE=$_" } 'yes', 'al', 'allg=none', 'all,', 'all,gather='),
    map({ "SYMWIN_NCCL_MEMORY=$_" } '1K', '64MB', '64T', '1025G', '-1',
        '17179869185G'),
    'SYMWIN_NCCL_REPORT=2'
  )
{
    passes('invalid', 2, 1, 0, "$all STAND_IN_SET=1:$invalid",
        qr/\Alibsymwin-nccl.so: .* \Q$invalid\E"?.*\n\z/ =~ s/=/ is "/r);
}

# ---- several hosts -----------------------------------------------------------------------------

my $hosts = "$all SYMWIN_ADDR=127.0.0.1 STAND_IN_SERVED=1";
for my $case (
    ['STAND_IN_SET=1:SYMWIN_NCCL=/none', 'rank 1 has another NCCL than that of SYMWIN_NCCL'],
    ['STAND_IN_SET=0:SYMWIN_ADDR=',      'rank 1 is on another host than rank 0, whose'],
  )
{
    my ($other, $why) = @$case;
    my $printed = passes('order', 2, 1, 0, "$hosts $report STAND_IN_HOSTS=ab $other",
        qr/ NCCL +\Q$why\E/);
    unlike($printed, qr/ symwin  saved /, '  and NCCL has all calls');
}
my $between = passes('collectives', 4, 1, 0, "$hosts $report STAND_IN_HOSTS=aabb",
    qr/^symwin: what was served/m);
like($between, qr/^symwin: +0 +3 +4 allreduce +64 KiB +2 symwin  saved not measured$/m,
    '  and symwin has all calls');
passes('types', 4, 1, 0, "$hosts $report STAND_IN_HOSTS=aabb",
    qr/^symwin: .* allreduce .* NCCL +an average of integers$/m);
passes('order', 4, 1, 0, "$report SYMWIN_ADDR=127.0.0.1 STAND_IN_HOSTS=aabb",
    qr/ NCCL +its ranks are on several hosts, between which no times were measured; /);

# ---- the report --------------------------------------------------------------------------------

sub row {
    my ($name, $bytes, $calls, $server) = @_;
    return qr/^symwin:\s+0\s+1\s+2\s+$name\s+$bytes\s+$calls $server/m;
}
my $mixed   = 'SYMWIN_NCCL_SERVE=all,reduce=none STAND_IN_SERVED=1';
my $printed = passes('collectives', 2, 1, 0, "$mixed $report", qr/^symwin: what was served/m);
like($printed, $_, '  a row')
  for row('allreduce', '64 KiB', 2, 'symwin  saved 0'), row('allreduce', '0 B', 1, 'NCCL '),
  row('alltoall', '128 KiB', 1, 'symwin '), row('reduce', '64 KiB', 2, 'NCCL ');
like(passes('undestroyed', 2, 1, 0, "$all $report", qr/^symwin: what was served/m),
    row('allreduce', '8 B', 1, 'symwin '), '  a row');
passes('collectives', 2, 1, 0, "$mixed NCCL_DEBUG=INFO",
    qr/^symwin: .*, rank 1 of 2: may serve allreduce reduce_scatter allgather/m);
passes('collectives', 2, 1, 0, 'SYMWIN_NCCL_SERVE=none NCCL_DEBUG=info',
    qr/^symwin: .*, rank 1 of 2: NCCL's, as rank 0 has SYMWIN_NCCL_SERVE=none$/m);

# ---- the calls ---------------------------------------------------------------------------------

# How many calls NCCL gets: what is empty, or wrong in anything but its communicator, sends before
# the first collective, and calls that have no server but NCCL.
my %passed = (
    all => {types => 0, collectives => 4, groups => 32, capture => 0, children => 0, growth => 0,
        not_blocking => 0, registration => 0, arguments => 36, revoke => 0, context => 0,
        pairs => 4, crossed => 0, mixed => 0, failed => 8, premul => 8, configured => 20,
        order => 0, windows => 0, freed => 0, left_out => 0, early => 0,
        again => 0},
    'all,sendrecv=none'  => {groups => 64, pairs => 28},
    'none,sendrecv=all'  => {pairs => 8},
    'none,broadcast=all' => {groups => 72, mixed => 8, failed => 12, premul => 16,
        configured => 44, order => 24},
);
sub serve {
    my ($serve, @ranks) = @_;
    my $calls = $passed{$serve};
    passes($_, @ranks, 0, "SYMWIN_NCCL_SERVE=$serve STAND_IN_SERVED=1 STAND_IN_PASSED=$calls->{$_}")
      for sort keys %$calls;
}
my $sanitized = system("grep -qs -e -fsanitize= $build/flags") == 0;
my $thread    = system("grep -qs -e -fsanitize=thread $build/flags") == 0;

# Over several hosts NCCL gets calls of symwin's too, so they are not counted. Under sanitizers the
# tests take turns: each runs in one of the places, which have the same code.
my @places = ([4, 1, 'abab'], [2, 2, 'ab']);
for my $test (sort keys %{$passed{all}}) {
    push @places, shift @places;
    passes($test, @$_[0, 1], 0, "$hosts STAND_IN_HOSTS=$_->[2]")
      for @places[0 .. ($sanitized ? 0 : 1)];
}

# Under sanitizers two processes of two threads do for both. What takes turns with NCCL in another
# way has the same threads.
my @others = $sanitized ? () : ([4, 1], [1, 4]);
serve($_, 2, 2) for $thread ? 'all' : sort keys %passed;
for my $ranks (@others) {
    serve('all', @$ranks);
    passes('groups', @$ranks, 0, "SYMWIN_NCCL_SERVE=$_")
      for 'none,broadcast=all', 'all,sendrecv=none';
}
for my $ranks (@others, [2, 2]) {
    passes($_, @$ranks, 0, $all) for qw(abort mismatch);
    passes('collectives', @$ranks, 0, 'SYMWIN_NCCL_SERVE=none');
    passes('configured',  @$ranks, 0, 'SYMWIN_NCCL_SERVE=none');
    passes('collectives', @$ranks, 0, 'STAND_IN_SERVED=1');
}
# What symwin gives to NCCL between hosts is not taken for the program's, if it is linked to that:
# by this variable the first call that came here would fail.
my $linked = `timeout --foreground 60 env $preload LD_LIBRARY_PATH= SYMWIN_BUILD=$build \\
    SYMWIN_NCCL_SERVE=nobody $build/tests/test_rails aabb 2>&1`;
is("$? $linked", "0 ok 1 - 2 x 2\n1..1\n", 'symwin in the program, with a library of its own too');

passes('one_thread', 1, 1, 0, "$all STAND_IN_SERVED=1");
passes('killed',     3, 1, 1, $all);
passes('killed',     2, 2, 1, $all);

done_testing();
