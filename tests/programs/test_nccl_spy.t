#!/usr/bin/env perl
# What libsymwin-nccl.so does with symwin while it serves calls: tests/nccl/spy.c, between the two
# libraries, counts it and changes it.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $place = "$build/tests/nccl";
plan skip_all => "no $place/libspy.so: make tests has not run here"
  unless -e "$place/libspy.so" && -x "$place/stand_in_user";

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{grep { /^(SYMWIN_NCCL|STAND_IN|SPY)_/ } keys %ENV};
delete @ENV{qw(FAKE_CUDA LD_PRELOAD NCCL_DEBUG)};
$ENV{LD_LIBRARY_PATH}    = "$place/shared";
$ENV{SYMWIN_EMU_DEVICES} = 4;
$ENV{SYMWIN_DRIVER}      = 'emu';
my $sanitizer = join ' ', map { /=> (\S*lib[at]san\S*) / ? $1 : () } `ldd $place/stand_in_user`;

# Runs a test in processes of one rank, or in [processes, ranks of each]. What they have counted
# must be `wanted`, each: names and numbers. Returns what else was printed on stderr.
sub spies {
    my ($test, $processes, $setting, %wanted) = @_;
    my $preload = "LD_PRELOAD='$sanitizer $place/libspy.so $build/libsymwin-nccl.so'";
    my $threads = 1;
    ($processes, $threads) = @$processes if ref $processes;
    my $output = `timeout --foreground 60 env $preload $setting \\
        $place/stand_in_user $test $processes $threads 2>$scratch/stderr`;
    my $status  = $?;
    my $printed = slurp("$scratch/stderr");
    my @spies   = $printed =~ /^spy: (.*)$/mg;

    pop @spies; # of the process that has started the others
    ok($status == 0 && $output =~ /, 0 failed, 0 killed$/ && @spies == $processes,
        "$test: $processes processes of $threads threads, $setting")
      or diag("status $status\n$output$printed");
    for my $name (sort keys %wanted) {
        my @got = sort map { /$name (-?\d+)/ } @spies;
        is("@got", $wanted{$name}, "  $name");
    }
    return $printed;
}

my $all    = 'SYMWIN_NCCL_SERVE=all';
my $report = 'SYMWIN_NCCL_REPORT=1';

# ---- what belongs to a communicator --------------------------------------------------------------

my ($no_graph_register) = slurp('symwin.h') =~ /SYMWIN_COMM_NO_GRAPH_REGISTER = (\d+)/;
spies('collectives', 2, "$all STAND_IN_SERVED=1", ids => '0 1', communicators => '1 1',
    destroyed => '1 1', timeout => '-1 -1', spared => '32 32', slot => '8388608 8388608',
    flags => join ' ', ($no_graph_register) x 2);
for (['1M', 131072], ['2048K', 262144], ['1G', 32 << 20], [16 << 20, 2 << 20]) {
    my ($memory, $slot) = @$_;
    spies('capture', 2, "$all SYMWIN_NCCL_MEMORY=$memory", slot => "$slot $slot");
}
spies('capture', 4, "$all SYMWIN_NCCL_MEMORY=1M", slot => join ' ', (65536) x 4);
spies('collectives', 1, $all, ids => 0, communicators => 0);
spies('windows', 2, $all, communicators => '2 2', destroyed => '2 2', windows => '5 5',
    ended => '2 2');
spies('freed', [1, 4], "$all SPY_PAUSE=5", communicators => 80, destroyed => 80, windows => 80,
    ended => 40); # which ThreadSanitizer sees

# ---- what the ranks agree on ---------------------------------------------------------------------

for (['SPY_VERSION=9.9',   'rank 1 has another version of symwin'],
    ['SPY_CAPABILITY=0', 'rank 1 has no device that symwin can use'])
{
    my ($other, $why) = @$_;
    like(spies('collectives', 2, "$all $report STAND_IN_SET=1:$other", communicators => '0 0'),
        qr/allreduce .* NCCL +\Q$why\E/, '  the reason');
}

# The table has times of GPUs of capability 90: the lowest one decides, and rank 0 learns it.
# A communicator of symwin's is made at the first collective if any is symwin's, whosever that one
# is: later ones do not wait on the host.
unlike(
    spies('collectives', 2, "$report STAND_IN_SET=1:SPY_CAPABILITY=80", ids => '0 1',
        released => '0 1', communicators => '0 0', destroyed => '0 0'),
    qr/ symwin  saved /, '  NCCL has all calls');
spies('capture', 2, 'STAND_IN_SET=0:SPY_CAPABILITY=100 STAND_IN_PASSED=0', communicators => '1 1');
spies('capture', 2, 'SYMWIN_NCCL_SERVE=none,gather=all', communicators => '1 1');
spies('capture', 2, 'SYMWIN_NCCL_SERVE=none,sendrecv=all', communicators => '1 1');

# ---- symwin fails --------------------------------------------------------------------------------

spies('collectives', 2, "$all SPY_FAIL=comms", ids => '0 1', released => '0 1');
# One rank does not come: the others wait as long as they are told to, and NCCL has all calls.
like(
    spies('collectives', 2,
        "$all $report SYMWIN_BOOTSTRAP_TIMEOUT_MS=500 STAND_IN_SET=1:SPY_FAIL=comms",
        ids => '0 1', communicators => '0 0'),
    qr/^symwin: +0 +0 +2 allreduce .* NCCL +symwin_comm_create: rank 1 did not join within 500 ms/m,
    '  the reason');
like(spies('collectives', 2, "$all $report SPY_FAIL=ids", ids => '0 2', communicators => '0 0'),
    qr/allreduce .* NCCL +rank 0 cannot make an id/, '  the reason');

done_testing();
