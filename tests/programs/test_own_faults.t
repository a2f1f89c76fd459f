#!/usr/bin/env perl
# symwin-perf --kernel on the emulated driver: wrong kernels, each found by the line for its fault;
# and kernels that crash or hang, which the tool survives.
use strict;
use warnings;
use Cwd qw(abs_path);
use Test::More;
use Time::HiRes qw(time);

require './tests/helpers/own.pl';

my $here = abs_path('.');

# ---- wrong kernels ------------------------------------------------------------------------------

sub found {
    my ($kernel, $arguments, $want, $name) = @_;
    my ($status, $output) = perf('', "--kernel $here/tests/$kernel $arguments");
    is($status, 1, "$name: exit status") or diag($output);
    like($output, $want, "$name: is described");
    unlike($output, qr/^ +\d+ +\d+ +f32/m, "$name: nothing is timed");
    return $output;
}

my $call = qr/\d+ blocks? of \d+ threads/;
my $beside = qr/wrote outside of the output/;
my $first = qr/emulated driver, 2 ranks: element counts: f32 sum, 1 element, $call: rank 0/;
found('own/tail.cu', '', qr/^FAILED  $first: $beside, at byte offset 4$/m,
    'a tail that is forgotten');
found('own/faults.cu:beside', '',
    qr/^FAILED .*: f32 sum, 9 elements, $call: rank \d: $beside, at byte offset 36$/m,
    'a store behind the output');
found('own/faults.cu:greedy', '',
    qr/^FAILED .*: f32 sum, 9 elements, $call: rank \d: changed the input: element 1 is 0 /m,
    'a changed input');
my $got = qr/rank \d, element \d+: got .*, expected /;
my $output = found('race/host_epoch.cu', '--timeout 3',
    qr/^FAILED .*graph replays: call \d of 3 in replay \d, f32 sum, .*: $got/m,
    'an epoch kept on the host');
is(scalar(() = $output =~ /^ok /mg), 8, 'which is all that is wrong with it');
found('race/grid_epoch.cu', '--timeout 3',
    qr/^FAILED .*changing grids: call \d of 6, .*got /m,
    'a grid-dependent epoch');
found('race/no_end_barrier.cu', '',
    qr/^FAILED .*changing sizes: call \d of 5, .*: got /m, 'no end barrier');

my $early = qr/changing \w+: call \d of \d, f32,.*: got /;
my $late  = qr/changing \w+: call \d of \d, f32 sum,.*: got /;
my $one   = qr/element counts: f32(?: sum)?(?:, root \d)?, \d elements?, $call: rank \d/;
my %fault = (
    all_gather     => $early,
    reduce_scatter => $late,
    all_to_all     => qr/$one, element 0: got /,
    broadcast      => qr/$one, element 0: got .*, expected /,
    gather         => qr/$one: wrote where it has no output: element 0 is /,
    scatter        => qr/$one: $beside, at byte offset 4$/m,
    reduce         => qr/$one: changed the input: element 0 is /,
    send_receive   => qr/element counts: f32, each rank to rank \+2, 4 elements, $call: $got/,
    all_to_all_v   => qr/element counts: f32, parts \d, \d elements?, $call: $got/,
    all_gather_v   => qr/element counts: f32, parts \d, \d elements?, $call: $got/,
    reduce_scatter_v =>
      qr/f32 sum, parts \d, \d elements?, $call: .*; a wait of rank \d reached its limit/,
    wait_for_all => qr/late ranks: a barrier, $call: rank \d or rank \d left before the other one/,
);
found("own/collectives.cu:$_", '--compile -DBUG --timeout 3', qr/^FAILED .*$fault{$_}/m,
    "a fault in $_")
  for sort keys %fault;

# ---- kernels that crash or hang -----------------------------------------------------------------

$output = found('own/faults.cu:crash', '',
    qr/^FAILED .*element counts: ended by signal 11 \(.*\): f32 sum, 7 elements, $call$/m,
    'a crash');
like($output, qr/^ok .*2 ranks: grids \(\d+ calls\)$/m, 'a crash: the other lines are looked at');
my $illegal = qr/kernel wild: illegal write of 4 bytes at \w+ by block \(0,0,0\) thread \(0,0,0\)/;
$output = found('own/faults.cu:wild', '',
    qr/^FAILED .*element counts: .*ILLEGAL_ADDRESS.*$illegal; f32 sum, 17 elements/m,
    'a bad address');
like($output, qr/^ok .*2 ranks: grids \(\d+ calls\)$/m,
    'a bad address: the other lines are looked at');
my $begin = time;
my $slow = qr/rank \d: the call took more than 1 s .*/;
$output = found('own/faults.cu:hang', '--timeout 1',
    qr/^FAILED .*element counts: $slow; f32 sum, 17 elements, $call \(does each loop/m,
    'a hang');
like($output, qr/^# the remaining lines are skipped/m, 'a hang: not all lines are waited for');
cmp_ok(time - $begin, '<', 30, 'and it ends');
found('own/faults.cu:patient', '--timeout 1',
    qr/^FAILED .*a missing rank: the other ranks did not leave/m,
    'a wait without limit');

done_testing();
