#!/usr/bin/env perl
# symwin-perf --kernel on the emulated driver: correct kernels, from source to table and picture;
# and what it refuses. test_own_faults.t has wrong kernels, test_race.t --race.
use strict;
use warnings;
use Cwd qw(abs_path);
use Test::More;
use Time::HiRes qw(time);

require './tests/helpers/own.pl';
our ($perf, $folder);

my $cxx     = $ENV{CXX} || 'g++';
my $example = 'examples/05_your_own_allreduce/allreduce.cu';

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output) = perf($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag($output);
    like($output, $want, "$name: says why");
    unlike($output, qr/^# (all checks passed|picture)/m, "$name: claims no success");
}

my $here = abs_path('.');

cmp_ok(scalar(() = slurp($example) =~ /\n/g), '<=', 60, 'the example has 60 lines at most');

# ---- correct kernels ----------------------------------------------------------------------------

my $begin = time;
my ($status, $output) =
  perf('', "--kernel $here/$example:pull --kernel $here/$example:push -e 4K --csv $folder/a.csv");
my $seconds = time - $begin;
is($status, 0, 'two kernels of one file: exit status') or diag($output);
is(scalar(() = $output =~ /^# allreduce\.cu:pu(?:ll|sh) compiled for the emulated driver in /mg), 2,
    'are compiled');
like($output, qr/^# pull: f32; sum; in windows; 32 blocks of 512 threads, or fewer$/m,
    'say what they can do');
is(scalar(() = $output =~ /^ok      emulated driver, [23] ranks: .* \(\d+ calls?\)$/mg), 36,
    'each line is right');
unlike($output, qr/^FAILED/m, 'and none wrong');
like($output, qr/^# all checks passed$/m, 'which is said');
my @own = grep { $_->[5] =~ /^pu(ll|sh)$/ } map { [split] } grep { /^ +\d/ } split /\n/, $output;
is(join(' ', map { "$_->[0] $_->[5] $_->[9]" } @own),
    '1024 pull 0 1024 push 0 4096 pull 0 4096 push 0',
    'they are timed, and checked');
like($own[0][18], qr/^pull:\d+x\d+$/, 'with the grid');
cmp_ok($own[0][19], '>', 0, 'and the ratio to the library');
like($output, qr/^ +1024 .* twoshot_push /m, 'beside all algorithms');
is(scalar(() = slurp("$folder/a.csv") =~ /^own,pu(?:ll|sh),f32,sum,/mg), 4,
    'the CSV file has them');
cmp_ok($seconds, '<', 60, 'all of it in a minute');
SKIP: {
    skip 'no python3', 2 unless `python3 -c 'print(1)' 2>/dev/null`;
    like($output, qr/^# picture: pull\.svg$/m, 'there is a picture');
    like(slurp("$folder/pull.svg"), qr/^<svg .*>symwin, fastest<.*>symwin auto<.*>pull<.*>push</s,
        'with a line for each');
}
is_deeply([glob "$folder/symwin-perf.*"], [], 'nothing is left behind');

# A picture with another name, a kernel in a shared object, arguments for the compiler.
spew("$folder/shared.cc", "#include \"$here/$example\"\nSYMWIN_KERNEL_EMULATED(pull)\n");
is(system("$cxx -std=c++17 -fPIC -shared -I. -o $folder/shared.so $folder/shared.cc"), 0,
    'a shared object is made');
($status, $output) =
  perf('', "--kernel $folder/shared.so:pull -t 2 -e 1K --algo none --picture $folder/b.svg");
is($status, 0, 'a shared object: exit status') or diag($output);
like($output, qr/^ok .*3 ranks: a missing rank/m, 'is checked');
spew("$folder/words.cu", "#include \"symwin/kernel.cuh\"\n#include HEADER\n");
spew("$folder/header.h", slurp($example));
($status, $output) = perf('',
    "--kernel words.cu:push --compile '-DHEADER=\"header.h\" -I $folder' -t 2 -e 1K --algo none");
is($status, 0, 'words for the compiler: exit status') or diag($output);
like($output, qr/^# push: f32; sum; at most 65536 bytes; at most 8 ranks; 16 blocks/m,
    'and a kernel in an included file');

# Kernels of other collectives, in one table for each.
my @others = qw(all_gather reduce_scatter all_to_all broadcast gather scatter reduce);
my $own = "$here/tests/own/collectives.cu";
($status, $output) = perf('', join(' ', map { "--kernel $own:$_" } @others)
      . ' -b 96 -e 96 -n 1 -G 1 -t 3 --in-place both');
is($status, 0, 'other collectives: exit status') or diag($output);
is(scalar(() = $output =~ /^ok      emulated driver, [23] ranks: /mg), 18 * @others,
    'each line is right');
like($output, qr/^# all_gather: allgather; f32,i32; in windows; 16 blocks/m, 'which is said');
like($output, qr/^# reduce: reduce; f32; sum; in windows; 16 blocks/m, 'with the operations');
is(join(' ', $output =~ /^# collective: (\w+)$/mg),
    'allgather alltoall broadcast gather scatter reduce_scatter reduce', 'a table for each');
for (['all_gather', 'auto oneshot copies put', 8, '0 0'],
    ['all_to_all', 'auto oneshot copies put', 8, '0 -'],
    ['broadcast', 'auto oneshot twoshot twoshot_push copies put', 24, '0 0'],
    ['gather', 'auto oneshot twoshot copies', 8, '0 -'],
    ['scatter', 'auto oneshot copies put', 8, '0 0'],
    ['reduce_scatter', 'auto oneshot twoshot', 8, '0 0'],
    ['reduce', 'auto oneshot twoshot twoshot_push', 24, '0 0'])
{
    my ($name, $algos, $count, $wrong) = @$_;
    my ($table) = grep { /^ .* $name /m } split /^# collective: /m, $output;
    my @rows = map { [split] } grep { /^ +\d/ } split /\n/, $table;
    is(join(' ', map { $_->[5] } @rows), "$algos $name", "$name: beside its algorithms");
    is("$rows[-1][1] $rows[-1][9] $rows[-1][13]", "$count $wrong", 'and it is right');
}

# Sends and receives, unequal parts, barriers.
my @more = qw(send_receive all_to_all_v all_gather_v reduce_scatter_v wait_for_all);
($status, $output) = perf('', join(' ', map { "--kernel $own:$_" } @more)
      . ' -b 96 -e 96 -n 1 -G 1 -t 3 --in-place both --picture c.svg');
is($status, 0, 'more collectives: exit status') or diag($output);
is(scalar(() = $output =~ /^ok      emulated driver, [23] ranks: /mg), 18 * 4 + 2 * 5,
    'each line is right');
is(scalar(() = $output =~ /^ok .*: late ranks \(24 calls\)$/mg), 2, 'ranks are late to a barrier');
is(scalar(() = $output =~ /^ok .*: in place \(not supported\)$/mg), 4,
    'neither sends and receives nor an all-to-all of unequal parts are in place');
like($output, qr/^# wait_for_all: barrier; 16 blocks of 512 threads, or fewer$/m,
    'a barrier has no types');
for (['sendrecv', 'send_receive', 'auto oneshot', 24, '0 -'],
    ['alltoallv_device', 'all_to_all_v', 'auto oneshot', 8, '0 -'],
    ['allgatherv_device', 'all_gather_v', 'auto oneshot', 8, '0 0'],
    ['reduce_scatterv_device', 'reduce_scatter_v', 'auto oneshot', 8, '0 0'],
    ['barrier', 'wait_for_all', 'auto oneshot', 0, '0 -'])
{
    my ($collective, $name, $algos, $count, $wrong) = @$_;
    my ($table) = grep { /\A$collective$/m } split /^# collective: /m, $output;
    my @rows = map { [split] } grep { /^ +\d/ } split /\n/, $table // '';
    is(join(' ', map { $_->[5] } @rows), "$algos $name", "$name: beside the library's");
    is("$rows[-1][1] $rows[-1][9] $rows[-1][13]", "$count $wrong", 'and it is right');
}
($status, $output) =
  perf('', "--kernel $own:wait_for_all -t 2 -n 1 -G 1 --algo none --picture barrier.svg");
is($status, 0, 'a barrier alone: exit status') or diag($output);
like($output, qr/^# no picture: a barrier has no sizes$/m, 'there is no picture of it');

# A kernel that supports none of the calls has no row, and that is said.
($status, $output) = perf('', "--kernel $own:broadcast -t 2 -e 1K -n 1 -G 1 -d f64");
is($status, 0, 'other types than the kernel has: exit status') or diag($output);
like($output, qr/^# broadcast has no row: it supports none of these calls/m, 'and no row');
unlike($output, qr/^ +\d.* broadcast /m, 'indeed');

# ---- a reader that leaves ----------------------------------------------------------------------

# Whoever reads the output may leave early, at any line.
for my $lines (1, 2, 5) {
    my $command = "TMPDIR=$folder SYMWIN_DRIVER=emu timeout 100 $perf --kernel $here/$example:pull";
    my $read = `{ $command -e 1K; echo \$? >$folder/status; } 2>&1 | head -n $lines`;
    is(scalar(() = $read =~ /\n/g), $lines, "$lines lines are read");
    select undef, undef, undef, 0.05 until slurp("$folder/status") =~ /\n/;
    is(slurp("$folder/status"), "141\n", 'SIGPIPE ends it');
    unlink "$folder/status";
    is_deeply([glob "$folder/symwin-perf.*"], [], 'nothing is left behind');
}

# ---- what it refuses ----------------------------------------------------------------------------

refused('', '--kernel none.cu', 1, qr/--kernel none\.cu: No such file/, 'no file');
refused('', "--kernel $here/$example", 2,
    qr/the file has several kernels: give .*where NAME is one of pull push/, 'no name');
refused('', "--kernel $here/$example:nope", 2,
    qr/\Asymwin-perf: --kernel [^\n]*: the file has no kernel nope; it has pull push\n\z/,
    'no such kernel');
refused('', "--kernel $here/README.md", 2, qr/give FILE\.cu\[:NAME\]/,
    'no kernel at all');
spew("$folder/macros.cu", join "\n", '#define KERNEL(of) \\', '    __global__ void of(int n)',
    '__global__ void first(int n) {}', '__global__ void second(int n) {}', '');
refused('', "--kernel $folder/macros.cu", 2, qr/where NAME is one of first second\n/,
    "a macro's parameter is no kernel");
refused('', "--kernel $folder/shared.so", 2, qr/give the kernel's name: .*shared\.so:NAME/,
    'an object without a name');
refused('', "--kernel $folder/shared.so:push", 1,
    qr/the file has no push_emulated: put SYMWIN_KERNEL_EMULATED\(push\)/, 'not in the object');
spew("$folder/code.cubin", 'x');
refused('', '--kernel code.cubin:a', 1, qr/needs a GPU, and there is none/, 'code for GPUs');
spew("$folder/bad.cu",
    "#include \"symwin/kernel.cuh\"\n/* __global__ void no( */\n"
      . "SYMWIN_KERNEL_ABOUT(bad, \"types=f31\")\n"
      . "extern \"C\" __global__ void __launch_bounds__(64) "
      . "bad(const struct symwin_kernel_args args) { (void)args; }\n");
refused('', '--kernel bad.cu', 1,
    qr/SYMWIN_KERNEL_ABOUT\(bad\): "types=f31" is unknown or has an invalid value/,
    'a word that there is not');
for (['collective=alltoallw', 'is unknown or has an invalid value'],
    ['collective=alltoallv_device', 'is unknown or has an invalid value'],
    ['collective=barrier types=f32', 'are about collectives that have data, and barrier does not'],
    ['collective=alltoallv multiple=4', 'is about collectives that have equal parts'],
    ['collective=allgather ops=sum', 'is about collectives that reduce, and allgather does not'])
{
    my ($words, $want) = @$_;
    spew("$folder/bad.cu",
        "#include \"symwin/kernel.cuh\"\nSYMWIN_KERNEL_ABOUT(bad, \"$words\")\n"
          . "extern \"C\" __global__ void bad(const struct symwin_kernel_args) {}\n");
    refused('', '--kernel bad.cu', 1, qr/SYMWIN_KERNEL_ABOUT\(bad\): .* $want/, $words);
}
refused('', "--kernel $own:gather --collective gather", 2,
    qr/the kernel says which collective it is .*: leave out --collective/, '--collective');
refused('', "--kernel $own:gather -r 1", 2, qr/the check has every root, .*: leave out -r/,
    'a root');
spew("$folder/empty.cu", "int a;\n");
refused('', '--kernel empty.cu', 2, qr/the file has no __global__ function/,
    'a file without kernels');
my ($timeout) = grep { -x } map { "$_/timeout" } split /:/, $ENV{PATH};
mkdir "$folder/bin";
symlink $timeout, "$folder/bin/timeout";
refused("CXX= PATH=$folder/bin", "--kernel $here/$example:pull", 1,
    qr/needs a C\+\+ compiler: set CXX/, 'no compiler');
refused('CXX=/none/c++', "--kernel $here/$example:pull", 1,
    qr/CXX is "\/none\/c\+\+", which cannot be run; .* needs a C\+\+ compiler: set CXX/,
    'another compiler is not taken');
refused("CXX='/bin/true word'", "--kernel $here/$example:pull", 1,
    qr/allreduce\.cu: \/bin\/true made no file for the emulated driver, with exit status 0$/m,
    'a compiler that makes no file');
refused('', "--kernel $here/$example:pull --tune t.csv", 2,
    qr/--tune cannot be combined with --kernel/,
    'a kernel and --tune');
refused('', '--picture a.svg', 2, qr/need --kernel or --race/, 'a picture of nothing');
refused('SYMWIN_RANK=0 SYMWIN_NRANKS=2', "--kernel $here/$example:pull", 2, qr/without a launcher/,
    'a launcher');
refused('TMPDIR=/nowhere', "--kernel $here/$example:pull", 1,
    qr/cannot create a folder to compile in: \/nowhere/, 'no folder');
refused('', join(' ', map { "--kernel $here/$example:pull" } 1 .. 9), 2, qr/--kernel: at most 8/,
    'too many kernels');

done_testing();
