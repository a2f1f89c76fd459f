#!/usr/bin/env perl
# symwin-perf --race on the emulated driver finds seven planted bugs, each within a minute: five in
# kernels of tests/race, two in the library's own. It finds nothing in the same kernels without the
# bug (tests/race with -DMENDED) or in the library's.
# Without a symwin-perf under ThreadSanitizer, bugs that only ThreadSanitizer finds are left out.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time);

require './tests/helpers/files.pl';

my $build = $ENV{SYMWIN_BUILD} || 'build';
my $perf  = abs_path("$build/bench/symwin-perf");
my $folder = tempdir(CLEANUP => 1);
my $tsan = -x "$build/tsan/bench/symwin-perf";

plan skip_all => 'the plain build hunts with the symwin-perf under ThreadSanitizer already'
  if slurp("$build/flags") =~ /-fsanitize/;

sub hunt {
    my ($environment, $arguments) = @_;
    my $begin = time;
    my $output =
      `env TMPDIR=$folder SYMWIN_DRIVER=emu $environment timeout 100 $perf --race $arguments 2>&1`;
    return ($? >> 8, $output, time - $begin);
}

# ---- planted bugs -------------------------------------------------------------------------------

my $call = qr/call \d of \d(?: in replay \d)?, f32 sum, .*/;
my $got = qr/rank \d, element \d+: got .*, expected /;
my $result = qr/(?:wrong without delays: )?$call: $got/;
my $unordered = qr/: a data race \(ThreadSanitizer\)$/m;
my $input = qr/.*rank \d's input.* at no_end_barrier\.cu:18.*$unordered/m;
my $access = qr/(?:reads|writes)/;
my $line = qr/relaxed_flag\.cu:\d+/;
my $other = qr/rank \d \(block \d, thread \d+\) $access it at $line/;
my %bugs = (
    no_end_barrier => $tsan ? $input : $result,
    one_slot       => $result,
    relaxed_flag => qr/.*$access rank \d's slots at $line, and $other$unordered/m,
    host_epoch => $result,
    grid_epoch => $result,
);
delete $bugs{relaxed_flag} unless $tsan; # x86 keeps stores in order

for my $bug (sort keys %bugs) {
    my ($status, $output, $seconds) =
      hunt('', "--kernel tests/race/$bug.cu --seconds 60 --timeout 30");
    is($status, 1, "$bug: exit status") or diag($output);
    like($output, qr/^FOUND   emulated driver, 3 ranks: $bug: $bugs{$bug}/m,
        "$bug: is found, and described");
    my ($seed) = $output =~ /to repeat: --race --seed (\d+)$/m;
    ok(defined $seed, "$bug: and can be had again");
    cmp_ok($seconds, '<', 60, "$bug: in a minute");
}

# Kernels of other collectives are hunted alike.
my $wrong = qr/.*call \d of \d.*got /;
my %others = (
    all_gather     => $tsan ? qr/.*writes rank \d's output.*$unordered/m : $wrong,
    reduce_scatter => $tsan ? qr/.*rank \d's input.*$unordered/m : $wrong,
    send_receive     => $wrong,
    all_to_all_v     => $wrong,
    all_gather_v     => $wrong,
    reduce_scatter_v => qr/.*a wait of rank \d reached its limit/,
    wait_for_all     => $tsan
    ? qr/the caller's work in the stream .* rank \d's output.*$unordered/m
    : qr/.*rank \d or rank \d left before the other one had come/,
);
for my $bug (sort keys %others) {
    my $kernel = "--kernel tests/own/collectives.cu:$bug";
    my ($status, $output) = hunt('', "$kernel --compile -DBUG --seconds 60 --timeout 6");
    is($status, 1, "$bug: exit status") or diag($output);
    like($output, qr/^FOUND   emulated driver, 3 ranks: $bug: $others{$bug}/m, "$bug: is found");
    ($status, $output) = hunt('', "$kernel --seconds 1 --seed $$");
    is($status, 0, "$bug, right: exit status") or diag($output);
    like($output, qr/^# nothing was found$/m, "$bug, right: nothing is found");
}

# A kernel that crashes is found, also where ThreadSanitizer would end the process by itself.
{
    my ($status, $output) = hunt('', '--kernel tests/own/faults.cu:crash --seconds 60');
    is($status, 1, 'crash: exit status') or diag($output);
    like($output, qr/^FOUND .*ranks: crash: ended by signal 11 /m, 'crash: is found');
}

# The library's kernels, as your own, with a bug in each.
my $limit = qr/.*a wait of rank \d reached its limit/;
my %library = (
    put_early       => $tsan ? qr/.*writes rank \d's output.* at .*$unordered/m : $wrong,
    push_unanswered => qr/(?:$wrong|$limit)/,
);
for my $bug (sort keys %library) {
    my $kernel = "--kernel tests/race/$bug.cu --timeout 6 --compile '-I" . abs_path('.');
    my ($status, $output, $seconds) = hunt('', "$kernel' --seconds 60");
    is($status, 1, "$bug: exit status") or diag($output);
    like($output, qr/^FOUND   emulated driver, 3 ranks: $bug: $library{$bug}/m, "$bug: is found");
    cmp_ok($seconds, '<', 60, "$bug: in a minute");
    ($status, $output) = hunt('', "$kernel -DMENDED' --seconds 2 --seed $$");
    is($status, 0, "$bug, mended: exit status") or diag($output);
    like($output, qr/^# nothing was found$/m, "$bug, mended: nothing is found");
}

# The line of a race is also reported if the user's folders have names of the tree's folders.
SKIP: {
    skip 'no ThreadSanitizer', 2 unless $tsan;
    my $place = "$folder/emu/include";
    system("mkdir -p $place/emu && cp tests/race/relaxed_flag.cu $place/emu") == 0 or die;
    for my $path ("$place/emu/relaxed_flag.cu", "$folder/emu/relaxed_flag.cu") {
        system("cp tests/race/relaxed_flag.cu $path") == 0 or die;
        my (undef, $output) = hunt('', "--kernel $path --seconds 60 --timeout 6");
        like($output, qr/^FOUND .*: relaxed_flag: $bugs{relaxed_flag}/m,
            "$path: the line of a race is reported") or diag($output);
    }
}

# --seed runs the burst with the printed number first, after one without delays. Threads never run
# the same way twice, so this tries several numbers.
my ($status, $output);
for my $seed (4242 .. 4246) {
    ($status, $output) = hunt('', "--kernel tests/race/host_epoch.cu --seconds 60 --seed $seed");
    $output =~ s/to repeat: --race --seed $seed$/as asked for/m;
    last if $output =~ /^ +burst 1: /m;
}
like($output, qr/^ +burst 1: \d calls?.*; as asked for$/m,
    '--seed: the first burst is of that number') or diag($output);

# ---- correct kernels ----------------------------------------------------------------------------

for my $bug (sort keys %bugs) {
    my ($status, $output) =
      hunt('', "--kernel tests/race/$bug.cu --compile -DMENDED --seconds 1 --seed $$");
    is($status, 0, "$bug, mended: exit status") or diag($output);
    like($output,
        qr/^ok      emulated driver, 3 ranks: $bug \(\d+ bursts?\)\n# nothing was found$/m,
        "$bug, mended: nothing is found");
}
($status, $output) =
  hunt('', '--kernel examples/05_your_own_allreduce/allreduce.cu:push --seconds 1 -t 2');
like($output, qr/^ok      emulated driver, 2 ranks: push \(\d+ bursts?\)$/m,
    'so many ranks as were asked for');
my @algos = qw(oneshot oneshot_sentinel twoshot_push twoshot_put twoshot twoshot_bulk copies
    oneshot_mc twoshot_mc);
for ('', '--algo all', '--algo put,twoshot') {
    my $want = /put/ ? 'twoshot' : join ' ', sort @algos;
    ($status, $output) = hunt('', "$_ --seconds 1");
    is($status, 0, "the library's algorithms $_: exit status") or diag($output);
    is(join(' ', sort $output =~ /^ok      emulated driver, 3 ranks: (\w+) \(\d+ bursts?\)$/mg),
        $want, 'each that the all-reduce has, and no other, has its turn') or diag($output);
}

my $others = join ',', qw(allgather reduce alltoallv barrier sendrecv reduce_scatterv_device);
($status, $output) = hunt('', "--collective $others --seconds 3");
is($status, 0, "other collectives: exit status") or diag($output);
is(join(', ', sort $output =~ /^ok      emulated driver, 3 ranks: ([\w ]+) \(\d+ bursts?\)$/mg),
    'copies of allgather, oneshot of allgather, oneshot of alltoallv, oneshot of barrier, '
      . 'oneshot of reduce, oneshot of reduce_scatterv_device, oneshot_mc of allgather, '
      . 'put of allgather, sendrecv, twoshot of reduce, twoshot_mc of reduce, '
      . 'twoshot_push of reduce', 'each of theirs has its turn')
  or diag($output);

# ---- messages -----------------------------------------------------------------------------------

{
    my $copy = "$folder/symwin-perf";
    system("cp $perf $copy") == 0 or die;
    my $arguments = '--race --timeout 6 --kernel tests/race/host_epoch.cu';
    $output = `env TMPDIR=$folder SYMWIN_DRIVER=emu timeout 100 $copy $arguments 2>&1`;
    like($output, qr/^# no symwin-perf with ThreadSanitizer found \(make race/m,
        'without ThreadSanitizer: says so');
    like($output, qr/^FOUND .*$result/m, 'and finds what can be found');
}

# What SYMWIN_PERF_TSAN names must prove that it is a symwin-perf under ThreadSanitizer.
for (['/nonexistent', 'SYMWIN_PERF_TSAN is "/nonexistent": give the path'],
    ['',         'SYMWIN_PERF_TSAN is "": give the path'],
    ['/bin/true', 'SYMWIN_PERF_TSAN: /bin/true did not start as a symwin-perf of this build'],
    [$folder,    "SYMWIN_PERF_TSAN: $folder did not start as a symwin-perf"],
    [$perf,      "SYMWIN_PERF_TSAN: $perf was built without ThreadSanitizer"])
{
    my ($value, $want) = @$_;
    ($status, $output) =
      hunt("SYMWIN_PERF_TSAN=$value", '--kernel tests/race/host_epoch.cu --seconds 1 -t 2');
    is($status, 1, "SYMWIN_PERF_TSAN=$value: exit status");
    like($output, qr/^symwin-perf: \Q$want\E/m, 'is refused');
    unlike($output, qr/^FOUND|nothing was found/m, 'and nothing is said of the kernel');
}
($status, $output) = hunt('', '--algo rails --seconds 1');
is($status, 1, 'no algorithm to hunt in: exit status');
like($output, qr/^symwin-perf: --race made no call: none of the algorithms/m, 'says so');
for ('--csv a.csv', '--picture a.svg', '--against nccl', '--link', '--nproc 2') {
    ($status, $output) = hunt('', $_);
    is($status, 2, "$_: exit status");
    like($output, qr/--race times nothing/, "$_: is refused");
}
is_deeply([glob "$folder/symwin-perf.*"], [], 'nothing is left behind');

done_testing();
