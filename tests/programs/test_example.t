#!/usr/bin/env perl
# The example end to end: its output, every type and operation, its errors for bad input, and that a
# rank which cannot continue ends the others too.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';
use Time::HiRes qw(time);

my $build   = $ENV{SYMWIN_BUILD} || 'build';
our $example = "$build/allreduce_sm";

# With a sanitizer a run takes many times as long, and other tests run all kernels there. So runs
# that differ only in size, type or operation are thinned out.
my $sanitized = do {
    open my $flags, '<', "$build/flags";
    $flags && grep { /-fsanitize/ } <$flags>;
};

my $step = do {
    open my $flags, '<', "$build/flags";
    $flags && grep { /-fsanitize=thread/ } <$flags>;
} ? 31 : 7;

sub thinned {
    my @all = @_;
    return $sanitized ? map { $all[$_] } grep { $_ % $step == 0 } 0 .. $#all : @all;
}

# Takes an environment, then arguments. Returns the exit status, the output and the seconds.
sub example {
    my ($environment, $arguments) = @_;
    my $begin  = time;
    my $output = `env SYMWIN_DRIVER=emu $environment timeout 60 $example $arguments 2>&1`;
    return ($? >> 8, $output, time - $begin);
}

sub verified {
    my ($environment, $arguments, $name) = @_;
    my ($status, $output) = example($environment, $arguments);
    ok($status == 0 && $output =~ /^Results verified correctly$/m, $name
      || "$environment $arguments")
      or diag("exit status $status\n$output");
}

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output) = example($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag($output);
    like($output, $want, "$name: says why");
    unlike($output, qr/verified|cleaned up successfully/, "$name: claims no success");
}

# ---- what it prints ----------------------------------------------------------------------------

my $ranks = sub { join '', map { "  Rank $_ " . $_[0]->($_) . "\n" } 0 .. 3 };
my ($status, $output) = example('NTHREADS=4 SYMWIN_EMU_DEVICES=4', '');
is($status, 0, 'four ranks: exit status');
$output =~ s/(driver emu, device \d+: ).*/$1NAME/g;
is($output, join('',
        "Starting AllReduce example with 4 ranks\n",
        $ranks->(sub { "driver emu, device $_[0]: NAME" }),
        $ranks->(sub { "communicator initialized using device $_[0]" }),
        "Symmetric memory:\n",
        $ranks->(sub { 'allocated 4.00 MB per buffer' }),
        $ranks->(sub { 'buffers registered as windows' }),
        $ranks->(sub { 'data initialized' }),
        "Starting AllReduce with 1048576 elements (4 MB)\n",
        "AllReduce completed successfully\n",
        "Verification - 1048576 elements on each of 4 ranks equal the host's own sum\n",
        "Results verified correctly\n",
        $ranks->(sub { 'buffers deregistered' }),
        "All resources cleaned up successfully\n"),
    'four ranks: every line, in order');

($status, $output) = example('SYMWIN_EMU_DEVICES=3', '1K');
like($output, qr/^Starting AllReduce example with 3 ranks$/m, 'NTHREADS: one rank a device');
($status, $output) = example('NTHREADS=5 SYMWIN_EMU_DEVICES=2', '1K');
like($output, qr/^  Rank 3 communicator initialized using device 1$/m, 'ranks share devices');
($status, $output) = example('', '--help');
is($status, 0, '--help: exit status');
like($output, qr/^usage: .*NTHREADS.*bf16.*avg.*twoshot/s, '--help: names what there is');

# ---- what it computes --------------------------------------------------------------------------

verified("NTHREADS=$_", $sanitized ? '1K' : '1M', "$_ ranks") for 1, 2, 8;
verified('NTHREADS=3', $_, "$_ elements") for thinned(1, 2, 7, 4097, '3K', '300001');
my @runs;
for my $type (qw(f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i32 u32 i64 u64)) {
    push @runs, map { "1031 $type $_" } qw(sum prod min max avg);
}
verified('NTHREADS=3', $_) for thinned(@runs);
verified('NTHREADS=4', "--algo $_ 20K bf16", "algorithm $_")
  for thinned(qw(auto oneshot twoshot oneshot_mc twoshot_mc copies));

# ---- ranks as processes ------------------------------------------------------------------------

# Every process prints its lines in the order of its steps.
sub processes {
    my ($environment, $arguments, $ranks, $name) = @_;
    my ($status, $output) = example($environment, $arguments);
    is($status, 0, "$name: exit status") or diag($output);
    for my $rank (0 .. $ranks - 1) {
        my @lines = $output =~ /^  Rank $rank (\w+)/mg;
        is("@lines", 'driver communicator allocated buffers data buffers', "$name: rank $rank");
    }
    is(scalar(() = $output =~ /^Results verified correctly$/mg), 1, "$name: verified, said once");
    like($output, qr/^All resources cleaned up successfully\n\z/m, "$name: cleaned up, said last");
}

processes('', '--nproc 4 10K',           4, '--nproc 4');
processes('NTHREADS=2', '--nproc 2 10K', 4, 'two processes of two threads');
processes('', '--nproc 1 10K',           1, '--nproc 1');

# What a launcher sets; here the shell is the launcher.
sub launched {
    my ($name, $set) = @_;
    my $processes = join ' ', map { my $r = $_; "env @{[$set->($r)]} $example 10K &" } 0 .. 2;
    my $output = `export SYMWIN_DRIVER=emu; $processes wait 2>&1`;
    is(scalar(() = $output =~ /^Verification - 10240 elements on each of 3 ranks /mg), 1,
        "$name: one verdict for all processes") or diag($output);
    is(scalar(() = $output =~ /^All resources cleaned up successfully$/mg), 1,
        "$name: cleaned up, said once");
}

my $port = free_port();
launched('torchrun', sub { "RANK=$_[0] WORLD_SIZE=3 LOCAL_RANK=$_[0] LOCAL_WORLD_SIZE=3 "
          . "MASTER_ADDR=localhost MASTER_PORT=$port TORCHELASTIC_RUN_ID=test" });
launched('Open MPI', sub { "OMPI_COMM_WORLD_RANK=$_[0] OMPI_COMM_WORLD_SIZE=3 "
          . "OMPI_COMM_WORLD_LOCAL_RANK=$_[0] OMPI_COMM_WORLD_LOCAL_SIZE=3 "
          . "PMIX_NAMESPACE=test-$$" });

($status, $output) = example('SYMWIN_EMU_MEM=16M', '--nproc 2 64M');
is($status, 1, 'processes without memory: exit status');
like($output, qr/Rank [01] failed: SYMWIN_NO_MEMORY/, 'processes without memory: say why');
unlike($output, qr/verified|cleaned up/, 'processes without memory: claim no success');

# ---- built with MPI=1 --------------------------------------------------------------------------

# A fake MPI without a launcher: a forked process would find a real one in that state.
SKIP: {
    skip 'a program of its own needs the flags of the sanitizer', 5 if $sanitized;
    my $folder = tempdir(CLEANUP => 1);
    open my $mpi, '>', "$folder/mpi.h" or BAIL_OUT("$folder/mpi.h: $!");
    print $mpi <<'END';
#include <stdio.h>
typedef int MPI_Comm;
enum { MPI_SUCCESS, MPI_BYTE, MPI_COMM_TYPE_SHARED, MPI_INFO_NULL, MPI_COMM_WORLD };
enum { MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED };
static int said(const char *call, int value) { printf("%s %d\n", call, value); return MPI_SUCCESS; }
static int number(int *out, int value) { *out = value; return MPI_SUCCESS; }
#define MPI_Init(argc, argv) said("MPI_Init", 0)
#define MPI_Init_thread(argc, argv, wanted, got)                                                   \
    (*(got) = (wanted), said("MPI_Init_thread", wanted))
#define MPI_Finalize() said("MPI_Finalize", 0)
#define MPI_Comm_rank(comm, rank) number(rank, 0)
#define MPI_Comm_size(comm, size) number(size, 1)
#define MPI_Comm_split_type(comm, type, key, info, out) number(out, (type) + (key) + (info))
#define MPI_Comm_free(comm) number(comm, 0)
#define MPI_Allgather(mine, n, type, all, m, kind, comm) \
    ((void)(mine), (void)(all), said("MPI_Allgather", comm))
END
    close $mpi;
    my $cc = $ENV{CC} || 'gcc';
    my $built = "$folder/allreduce_sm";
    my $said = `$cc -std=c99 -Wall -DUSE_MPI -I$folder -I. -pthread -o $built \\
        examples/01_allreduce/*.c $build/libsymwin.a -ldl -lm 2>&1`;
    is($said, '', 'compiles with MPI');
    local $example = $built;
    my ($status, $output) = example('', '--nproc 2 10K');
    like($output, qr/^Starting AllReduce example with 2 ranks$/m, 'with MPI, --nproc 2: two ranks');
    unlike($output, qr/^MPI_/m, 'which do not meet through it');
    ($status, $output) = example('NTHREADS=2', '10K');
    like($output, qr/^MPI_Init_thread 1\n.*^Results verified correctly\n.*^MPI_Finalize/ms,
        'with MPI, without a launcher: threads, and MPI knows of them');
    is($status, 0, 'and all is well');
}

# ---- what it refuses ---------------------------------------------------------------------------

refused('NTHREADS=2', '0', 2, qr/COUNT is "0": give a number/, 'no elements');
refused('NTHREADS=2', '12X', 2, qr/COUNT is "12X"/, 'unknown suffix');
refused('NTHREADS=2', '99999999999999999999', 2, qr/COUNT is "9+"/, 'too large a number');
refused('NTHREADS=2', '16G f33', 2, qr/no TYPE "f33"/, 'unknown type');
refused('NTHREADS=2', '1K f32 xor', 2, qr/no OP "xor"/, 'unknown operation');
refused('NTHREADS=2', '--algo=ring', 2, qr/no ALGO "ring"/, 'unknown algorithm');
refused('NTHREADS=2', '--frob', 2,
    qr/\A[\w-]+: unknown argument "--frob": --help lists[^\n]*\n\z/, 'unknown option');
refused('', '--nproc 0', 2, qr/--nproc is "0"/, 'no processes');
refused('NTHREADS=0', '', 2, qr/NTHREADS is "0"/, 'no ranks');
refused('SYMWIN_RANK=9 SYMWIN_NRANKS=4', '1K', 1, qr/SYMWIN_RANK is "9"/, 'no such rank');
refused('SYMWIN_DRIVER=opencl', '', 1, qr/SYMWIN_DRIVER/, 'unknown driver');
refused('NTHREADS=2 SYMWIN_EMU_MEM=16M', '64M', 1, qr/Rank 0 failed: SYMWIN_NO_MEMORY/,
    'memory that is not there');
refused('NTHREADS=2 SYMWIN_EMU_MULTICAST=0', '--algo twoshot_mc 1K', 1,
    qr/Rank [01] failed: SYMWIN_UNSUPPORTED/, 'multicast where there is none');

# Many ranks: one error, not one for each rank.
for (['NTHREADS=1000', '1K'], ['NTHREADS=64', '--nproc 4 1K']) {
    my ($status, $output) = example(@$_);
    is($status, 1, "@$_: exit status");
    like($output, qr/\Aallreduce_sm: \d+ ranks are too many for 8 devices: start at most 128\n\z/,
        "@$_: one sentence");
}
($status, $output) = example('NTHREADS=8 SYMWIN_EMU_MEM=16M', '64M');
is($status, 1, 'eight ranks without memory: exit status');
is(scalar(() = $output =~ /failed:/g), 1, 'one says why') or diag($output);
like($output, qr/^  and so did 7 others$/m, 'and the others are counted');

done_testing();
