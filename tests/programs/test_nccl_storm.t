#!/usr/bin/env perl
# Random calls of NCCL whose results are checked: tests/nccl/storm.c, on the emulated driver.
#
# STORM_CALLS=N makes N calls with libsymwin-nccl.so and nothing else, in runs of 20000, with seeds
# from STORM_SEED on:
#
#   make NVCC= SANITIZE=thread BUILD=build/tsan tests
#   STORM_CALLS=1000000 SYMWIN_BUILD=build/tsan setarch -R tests/programs/test_nccl_storm.t
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $place = "$build/tests/nccl";
plan skip_all => "no $place/storm: make tests has not run here" unless -x "$place/storm";

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{qw(SYMWIN_DRIVER FAKE_CUDA LD_PRELOAD STAND_IN_FAIL STAND_IN_TIMEOUT_MS STORM_ONLY
    STORM_PATIENCE_S)};
$ENV{LD_LIBRARY_PATH}    = "$place/cuda";
$ENV{SYMWIN_EMU_DEVICES} = 4;
$ENV{STAND_IN_NAME}      = "$$-";
END { unlink glob "/dev/shm/stand-in-$$-*" } # of ranks that were ended

# Sanitizers have to be the first library of a process.
my $sanitizer = join ' ', map { /=> (\S*lib[at]san\S*) / ? $1 : () } `ldd $place/storm`;

# A name, and settings of the environment: who serves the calls.
my @servers = (
    ['the stand-in', ''],
    ['symwin', 'SYMWIN_DRIVER=emu SYMWIN_NCCL_SERVE=all SYMWIN_NCCL_MEMORY=8M '
          . "LD_LIBRARY_PATH=$place/shared LD_PRELOAD='$sanitizer $build/libsymwin-nccl.so'"],
);

my $between = $servers[-1][1] . ' SYMWIN_ADDR=127.0.0.1 STAND_IN_HOSTS';

# Under sanitizers there are fewer calls, all with the library.
my $less = system("grep -qs -e -fsanitize= $build/flags") == 0 ? 16 : 1;
shift @servers if $less > 1;

# Seed, calls of all ranks, processes, threads of each.
my @runs = ([1, 4000, 2, 2], [2, 4000, 1, 4], [3, 4000, 4, 1], [4, 2000, 2, 2], [5, 2000, 1, 4],
    [6, 2000, 4, 1], [7, 2000, 3, 2], [8, 1000, 1, 1]);

my $limit = 100;

sub storm {
    my ($settings, @arguments) = @_;
    my $output = `timeout $limit env $settings $place/storm @arguments 2>$scratch/stderr`;
    return ($?, $output, slurp("$scratch/stderr"));
}

# Returns how many calls it has made.
sub passes {
    my ($name, $settings, @run) = @_;
    my ($status, $output, $errors) = storm($settings, @run);
    my ($calls) = $output =~ /^(\d+) calls, 0 wrong$/m;
    ok($status == 0 && ($calls // 0) >= 0.6 * $run[1] && $errors eq '',
        "$name: seed $run[0], $run[2] processes of $run[3] threads")
      or diag("status $status\n$output$errors");
    return $calls // $run[1];
}

if (my $left = $ENV{STORM_CALLS}) {
    $limit = 3600;
    pop @runs; # of one rank, which NCCL serves
    for (my $seed = $ENV{STORM_SEED} || 1; $left > 0; $seed++) {
        my (undef, undef, @ranks) = @{$runs[$seed % @runs]};
        $left -= passes("$left calls left", $servers[-1][1], $seed, 20000, @ranks);
    }
    done_testing();
    exit;
}

for my $server (@servers) {
    my ($name, $settings) = @$server;
    passes($name, $settings, $_->[0], $_->[1] / $less, @$_[2, 3]) for @runs;
    my @kinds = qw(collectives groups p2p capture registrations births states);
    for my $only (@kinds, 'groups,p2p,capture', 'collectives,births,states') {
        my ($status, $output, $errors) = storm("$settings STORM_ONLY=$only", 9, 500, 2, 2);
        ok($status == 0 && $output =~ /^\d+ calls, 0 wrong$/m && $errors eq '',
            "$name: only $only")
          or diag("status $status\n$output$errors");
    }
}

if ($less > 1) {
    done_testing();
    exit;
}

# What a run is, and that it is one only by its seed.
passes('over two hosts', "$between=$_", length $_, 4000 / $less, 4, 1) for qw(aabb abab);
passes('over two hosts', "$between=ab", 6, 4000 / $less, 2, 2);
passes('over three hosts', "$between=abac", 5, 4000 / $less, 4, 1);
my @outputs = map { (storm('', 10, 1000, @$_))[1] } [2, 2], [4, 1], [1, 4];
like($outputs[0], qr/^\d+ results checked, \d+ calls replayed, [1-9]\d* communicators born/m,
    'it says what it has done');
is($outputs[1], $outputs[0], 'processes make the same calls as threads');
is($outputs[2], $outputs[0], 'threads make the same calls as processes');

# An error is found, and named.
my ($status, $output, $errors) = storm('STAND_IN_FAIL=ncclAllReduce:40:0', 11, 4000, 4, 1);
ok($status != 0 && $output =~ /, [1-9]\d* wrong$/m && $errors =~ /^storm: seed 11, 4 ranks, rank/,
    'a call that does nothing is noticed');
($status, $output, $errors) = storm('STAND_IN_FAIL=ncclAlltoAll:20:0', 11, 4000, 1, 1);
isnt($status, 0, 'it is noticed if there is one rank');
like($errors, qr/^storm:\ seed\ 11,\ 1\ ranks,\ rank\ 0,\ step\ \d+:\ AlltoAll\ of\ step\ \d+,
    .*\ output,\ element\ \d+:\ got\ 0x[\da-f]+,\ wanted\ 0x[\da-f]+/x, 'it is described');
($status, $output, $errors) = storm('STORM_PATIENCE_S=0', 12, 100000, 1, 2);
ok($status != 0 && $errors =~ /^storm: stuck: seed 12, rank \d, step \d+: for \d+ ms in \w+/,
    'a rank that takes too long is named');
for (['', 'no arguments'], ['1 10 0 1', 'no process'], ['1 10 9 9', 'too many ranks'],
    ['1 10 1 5', 'more ranks of a process than devices'])
{
    ($status) = storm('', $_->[0]);
    isnt($status, 0, $_->[1]);
}

done_testing();
