#!/usr/bin/env perl
# The stand-in for NCCL (tests/nccl/stand_in) by itself: tests/nccl/stand_in_user.c, whose ranks are
# processes, threads, or both, on the emulated driver. They share memory, or have TCP alone.
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
delete @ENV{qw(SYMWIN_DRIVER FAKE_CUDA LD_PRELOAD STAND_IN_FAIL STAND_IN_TIMEOUT_MS
    STAND_IN_WIRE STAND_IN_ADDRESS STAND_IN_DRIVER)};
$ENV{LD_LIBRARY_PATH}    = "$place/cuda";
$ENV{SYMWIN_EMU_DEVICES} = 4;

# Sanitizers have to be the first library of a process.
my $sanitizer = join '', map { /=> (\S*lib[at]san\S*) / ? "$1:" : () } `ldd $place/stand_in_user`;

# Takes the test's name, how many processes and threads in each, how many of them are killed, and a
# setting.
sub passes {
    my ($test, $processes, $threads, $killed, $setting) = @_;
    my $environment = $setting // '';
    my $output = `timeout --foreground 60 env $environment $place/stand_in_user \\
        $test $processes $threads 2>$scratch/stderr`;
    my $status = $?;
    my ($checks) = $output =~ /\A(\d+) checks, 0 failed, $killed killed\n\z/;
    my $errors   = slurp("$scratch/stderr");
    $environment =~ s/LD_PRELOAD=\S+/LD_PRELOAD/;
    ok($status == 0 && ($checks // 0) > 3 && $errors eq '',
        "$test: $processes processes of $threads threads" . ($setting ? ", $environment" : ''))
      or diag("status $status\n$output$errors");
}

# Other tests have their own, and leave what they kill.
$ENV{STAND_IN_NAME} = "$$-";
my $segments = "/dev/shm/stand-in-$$-*";

for my $test (qw(types collectives groups capture context pairs crossed mixed failed premul
    configured order windows freed left_out early again children growth not_blocking registration
    arguments abort revoke))
{
    passes($test, 4, 1, 0);
    passes($test, 1, 4, 0);
}
passes('collectives', 2, 3, 0);
passes('groups',      2, 3, 0);
passes('one_thread',  1, 1, 0);
passes('killed',      3, 1, 1);
passes('killed',      2, 2, 1);
passes('mismatch',    2, 1, 0);
passes('mismatch',    1, 3, 0);
passes('fault',       2, 1, 0, 'STAND_IN_FAIL=ncclAllReduce:2:3');
for my $ranks ([2, 1], [1, 3]) {
    passes($_, @$ranks, 0, 'STAND_IN_TIMEOUT_MS=400') for qw(late absent);
}
passes('stopped', @$_, 0) for [3, 1], [1, 3];
passes('revoked', 3, 1, 0);
passes('sockets', 3, 1, 0);

my $tcp = 'STAND_IN_WIRE=tcp';
for my $test (qw(collectives groups pairs mixed failed order left_out again children growth
    not_blocking abort revoke))
{
    passes($test, 4, 1, 0, $tcp);
}
passes($_, 2, 3, 0, $tcp) for qw(groups freed);
passes('killed',   3, 1, 1, $tcp);
passes('killed',   2, 2, 1, $tcp);
passes('stopped',  3, 1, 0, $tcp);
passes('stopped',  1, 3, 0, $tcp);
passes('revoked',  3, 1, 0, $tcp);
passes('sockets',  4, 1, 0, $tcp);
passes('ids',      3, 1, 0, $tcp);
passes('mismatch', 2, 1, 0, $tcp);
passes($_, 1, 3, 0, "$tcp STAND_IN_TIMEOUT_MS=400") for qw(late absent);

# There is no libcuda.so.1.
passes('collectives', 2, 1, 0, "LD_PRELOAD=$sanitizer$build/libsymwin.so LD_LIBRARY_PATH= "
      . 'STAND_IN_DRIVER=symwin SYMWIN_DRIVER=emu');

my @left = glob $segments;
is("@left", '', 'nothing is left in shared memory');

my %exported = map { / T (p?nccl\w+)$/ ? ($1 => 1) : () } `nm -D $place/stand_in/libnccl.so.2`;
my @known    = slurp('nccl/full/names.h') =~ /X\((nccl\w+),/g;
is(join(' ', grep { !$exported{"p$_"} } grep { $exported{$_} } @known),
    '', 'each function has its second name');
cmp_ok(scalar(grep { $exported{$_} } @known), '>=', 40, 'it has most functions');

done_testing();
