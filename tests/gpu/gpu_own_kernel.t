#!/usr/bin/env perl
# symwin-perf --kernel and --race on real GPUs: the example from source to picture within two
# minutes. Planted bugs that show in every run must be found; findings of the others are only
# printed. Correct kernels must have none.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time);

my $build  = $ENV{SYMWIN_BUILD} || 'build';
my $perf   = abs_path("$build/bench/symwin-perf");
my $folder = tempdir(CLEANUP => 1);

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';
my ($nvcc) = grep { -x } map { "$_/nvcc" } split(/:/, $ENV{PATH}),
    map { "$_/bin" } $ENV{CUDA_HOME} // (), '/usr/local/cuda';
plan skip_all => 'no nvcc' unless defined $nvcc;

sub perf {
    my ($arguments) = @_;
    my $begin  = time;
    my $output = `env SYMWIN_DRIVER=cuda timeout 200 $perf $arguments 2>&1`;
    return ($? >> 8, $output, time - $begin);
}

my $example = 'examples/05_your_own_allreduce/allreduce.cu';
my ($status, $output, $seconds) =
  perf("--kernel $example:pull --kernel $example:push --picture $folder/own.svg");
is($status, 0, 'two kernels of one file: exit status');
diag($output);
is(scalar(() = $output =~ /^ok      GPUs, \d+ ranks: /mg), 18, 'each line is right on GPUs');
like($output, qr/^ +1024 .* push .*push:\d+x512/m, 'they are timed');
ok(-s "$folder/own.svg" || !`python3 -c 'print(1)' 2>/dev/null`, 'and drawn');
cmp_ok($seconds, '<', 120, 'in two minutes');

my @others = qw(all_gather reduce_scatter all_to_all broadcast gather scatter reduce);
my $others = join ' ', map { "--kernel tests/own/collectives.cu:$_" } @others;
($status, $output) = perf("$others -e 4K --picture $folder/others.svg");
is($status, 0, 'kernels of other collectives: exit status') or diag($output);
is(scalar(() = $output =~ /^ok      GPUs, \d+ ranks: /mg), 9 * @others, 'each line is right');

# As GPU code, so that the emulated driver does not find them first.
for my $bug (qw(host_epoch grid_epoch one_slot no_end_barrier relaxed_flag)) {
    for my $mended ('', '-DMENDED') {
        my $code = "$folder/$bug$mended.cubin";
        my $flags = "-std=c++17 -O3 -arch=native -DSYMWIN_RACE $mended -I.";
        is(system("$nvcc $flags --cubin -o $code tests/race/$bug.cu"), 0,
            "$bug $mended: compiles");
        ($status, $output) = perf("--race --kernel $code:$bug --seconds 4");
        diag($output);
        is($status, 0, "$bug, mended: nothing is found") if $mended;
        is($status, 1, "$bug: is found") if !$mended && $bug =~ /epoch/;
    }
}

($status, $output) = perf('--race --seconds 10');
is($status, 0, "the library's algorithms: nothing is found") or diag($output);

done_testing();
