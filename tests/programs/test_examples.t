#!/usr/bin/env perl
# What all examples have in common: --version, an exit status that reports output that could not be
# written, and processes that end with their parent. Also --version of other programs, and what
# benches refuse.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time sleep);

require './tests/helpers/files.pl';

my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $scratch = tempdir(CLEANUP => 1);
my ($version) = slurp('symwin.h') =~ /#define SYMWIN_VERSION "(.*)"/;
my $own_threads = slurp("$build/flags") =~ /-fsanitize=thread/ ? 2 : 1;
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;
my $limit = $sanitized ? 200 : 60;
$ENV{SYMWIN_DRIVER} = 'emu';
$ENV{NTHREADS} = 2;

# The program, its name, and arguments of a short run. with_nccl cannot run without a GPU. Under a
# sanitizer fast_allreduce takes long, and test_fast_allreduce makes such runs there.
my @examples = (
    ['allreduce_sm', 'allreduce_sm', '1K'], ['allreduce_ub', 'allreduce_ub', '1K'],
    ['memory_channel', 'memory_channel', '1K'],
    ['fast_allreduce-emu', 'fast_allreduce', $sanitized ? undef : '1K'],
    ['all_to_all-emu', 'all_to_all', '20'], ['with_nccl', 'with_nccl', undef],
);
sub run_of {
    my ($command) = @_;
    my $output = `timeout $limit $command 2>$scratch/stderr`;
    return ($? >> 8, $output, slurp("$scratch/stderr"));
}

for (@examples) {
    my ($program, $name, $run) = @$_;
    my ($status, $output, $errors) = run_of("$build/$program --version");
    is("$status $output$errors", "0 $name (symwin) $version\n", "$name --version");
    for my $arguments (grep { defined } '--version', '--help', $run) {
        ($status, $output, $errors) = run_of("$build/$program $arguments >/dev/full");
        is($status, 1, "$name $arguments >/dev/full: exit status");
        is($errors, "$name: stdout could not be written to: No space left on device\n",
            'and a sentence with the reason');
    }
    next if !defined $run || $name eq 'with_nccl';
    ($status, $output, $errors) = run_of("$build/$program --nproc 2 $run >/dev/full");
    is($status, 1, "$name --nproc 2 $run >/dev/full: exit status");
    like($errors, qr/stdout could not be written to: No space left on device$/m, 'and a sentence');
    ($status, $output, $errors) = run_of("$build/$program --nproc 2 $run >&-");
    is($status, 1, "$name --nproc 2 $run, stdout closed: exit status");
    unlike($errors, qr/SYMWIN_/, 'what it prints does not go into a descriptor of the library');
    like($errors, qr/stdout could not be written to: Bad file descriptor$/m, 'and a sentence');
}

for (['--nproc', '--nproc needs a value'], ['--algo', '--algo needs a value behind it'],
    ['--frob', 'unknown argument "--frob": --help'],
    ['--nproc=0', '--nproc is "0": give'],
    ['--algo x', 'no ALGO "x"; --help'],
    ['1T', 'COUNT is "1T": give a number from 1 to 1099511627776; K, M or G may']) {
    my ($arguments, $want) = @$_;
    my ($status, $output, $errors) = run_of("$build/allreduce_sm $arguments");
    ok($status == 2 && $output eq '' && $errors =~ /\Aallreduce_sm: \Q$want\E[^\n]*\n\z/,
        "allreduce_sm $arguments: one sentence")
      or diag("$status $errors");
}
is((run_of("$build/allreduce_sm --nproc=2 1K"))[0], 0, 'a value behind "="');

# Their Makefiles. A library that is there stays as it is: this tree has nothing to build it with.
mkdir "$scratch/tree";
mkdir "$scratch/tree/build";
spew("$scratch/tree/build/libsymwin.a", '');
my $make = "env PKG_CONFIG_PATH=$scratch MAKEFLAGS= MFLAGS= make --no-print-directory "
  . '-C examples/06_fast_allreduce';
my ($made, $commands, $complaint) =
  run_of("$make -n -W fast_allreduce.cu NVCC= CXX=c++ SYMWIN=$scratch/tree");
is($made, 0, 'make NVCC= in examples/06: exit status') or diag($complaint);
unlike($commands, qr/^make/m, 'the library that is there is used');
like($commands, qr/^c\+\+ .*-o fast_allreduce-emu/m, 'and the program built');
($made, $commands, $complaint) = run_of("$make NVCC= SYMWIN=");
is($made, 2, 'make SYMWIN= without an installed symwin: exit status');
like($complaint, qr/\*\*\* pkg-config finds no symwin: set PKG_CONFIG_PATH/, 'says what to do');
SKIP: {
    skip 'pkg-config is not installed', 2 unless grep { -x "$_/pkg-config" } split /:/, $ENV{PATH};
    spew("$scratch/symwin.pc", "Name: symwin\nDescription: -\nVersion: 1\n");
    ($made, $commands, $complaint) = run_of("$make NVCC= SYMWIN=");
    is($made, 2, 'make NVCC= SYMWIN=: exit status');
    like($complaint, qr/\*\*\* fast_allreduce-emu needs symwin's source tree/, 'says why');
}

# Rank 0 has no descriptor left to write the id: the others would wait for it for a minute.
for (['allreduce_sm', '--nproc 3 1K'], ['memory_channel', '--nproc 2 1K'],
    ['fast_allreduce-emu', '--nproc 3 1K'], ['all_to_all-emu', '--nproc 3 20']) {
    my ($program, $arguments) = @$_;
    my $since = time;
    my ($status, $output, $errors) = run_of("bash -c 'ulimit -n 6; $build/$program $arguments'");
    is($status, 1, "$program without descriptors: exit status");
    like($errors, qr/\A\w+: \S+_from_env: \S+ cannot be written: Too many open files\b.*\n\z/,
        'one reason, that of rank 0');
    cmp_ok(time - $since, '<', $sanitized ? 30 : 10, 'at once');
}

# A sanitizer needs more addresses than any of these.
for ($sanitized ? () : (60, 300)) {
    my $mib = $_;
    my ($status, $output, $errors) =
      run_of("bash -c 'ulimit -v ${\($mib * 1024)}; $build/allreduce_sm 1K'");
    is($status, 1, "$mib MiB of addresses: exit status");
    like($errors, qr/\bulimit -v limits this process to $mib MiB of addresses: raise it/,
        'the limit is named') or diag("$output$errors");
}

for (['memory', '0', '65', 'x', '1 1'], ['pool', '0', '65', '1x', '1 1'],
    ['startup', '0', '129', '1 0', '1 65', '1 1 ab', '1 1 a 1'],
    ['registration', '1', '--help'], ['order', '1', '17', '--help', '2 2'],
    ['host', '1', '17', '2 63', '2 2M', '2 1K 0', '2 1K 1001', '2 1K 1 1']) {
    my ($name, @wrong) = @$_;
    SKIP: {
        skip "no $build/bench/$name: make benches has not run here", 1 + @wrong
          unless -x "$build/bench/$name";
        my ($status, $output, $errors) = run_of("$build/bench/$name --version");
        is("$status $output$errors", "0 $name (symwin) $version\n", "$name --version");
        for my $arguments (@wrong) {
            ($status, $output, $errors) = run_of("$build/bench/$name $arguments");
            ok($status == 2 && $output eq '' && $errors =~ /\A$name: [^\n]+\n\z/,
                "$name $arguments: refused")
              or diag("$status $output$errors");
        }
    }
}
SKIP: {
    skip 'no build/bench/host', 3 unless -x "$build/bench/host";
    my ($status, $output, $errors) = run_of("$build/bench/host 3 64 2");
    my ($head, @rows) = map { [split /,/] } split /\n/, $output;
    is("$status $errors", '0 ', 'host: it ends');
    is(scalar(@rows), 20, 'prints each call, and those of groups twice');
    is_deeply([grep { @$_ != @$head || grep { !/\A-?\d+\.\d{3}\z/ } @$_[2 .. $#$_] } @rows], [],
        'with all figures');
}
SKIP: {
    skip 'no build/bench/registration', 1 unless -x "$build/bench/registration";
    is(join(' ', run_of("$build/bench/registration >/dev/full")),
        "1  registration: what it printed cannot be written: No space left on device\n",
        'a full disk');
}

SKIP: {
    skip 'no python3', 4 if !`python3 -c 'print(1)' 2>/dev/null`;
    for my $file (qw(bench/plot.py bench/report.py bench/links.py bench/rivals/torch_symm.py)) {
        my ($name) = $file =~ m{([^/]+)\z};
        is(join(' ', run_of("python3 $file --version")), "0 $name (symwin) $version\n ",
            "$name --version");
    }
}

# ---- where there is no GPU
# ------------------------------------------------------------------------

SKIP: {
    my ($status, $output, $errors) =
      run_of("env -u SYMWIN_DRIVER $build/allreduce_sm --nproc 3 1K");
    skip 'there is a GPU', 2 if $output =~ /driver cuda/;
    is($status, 0, 'three processes without a GPU: exit status') or diag("$output$errors");
    is(scalar(() = $errors =~ /^symwin: no GPU here/mg), 1, 'it is said once') or diag($errors);
}

# ---- processes whose parent is killed ------------------------------------------------------------

sub alive {
    my ($pid) = @_;
    my $stat = -e "/proc/$pid/stat" ? slurp("/proc/$pid/stat") : '';
    return $stat =~ /\) [^ZX]/;
}

for (['allreduce_sm', '1M'], ['allreduce_ub', '1M'], ['memory_channel', '--nproc', '2', '--best',
    '4M'],
    ['fast_allreduce-emu', '1M'], ['all_to_all-emu', '--nproc', '3', '2K']) {
    my ($program, @arguments) = @$_;
    @arguments = ('--nproc', '3', @arguments) if $arguments[0] ne '--nproc';
    my $ranks = $arguments[1];
    my $pid = fork // die "fork: $!";
    if ($pid == 0) {
        open STDOUT, '>', "$scratch/killed" or die;
        open STDERR, '>&', \*STDOUT or die;
        delete $ENV{NTHREADS};
        exec "$build/$program", @arguments;
        die "exec: $!";
    }
    my @children;
    my $until = time + $limit;
    while (@children < $ranks && time < $until) {
        sleep 0.01;
        @children = split ' ',
            (-e "/proc/$pid/task/$pid/children" ? slurp("/proc/$pid/task/$pid/children") : '');
    }
    is(scalar @children, $ranks, "$program: $ranks processes");
    # The process has a thread for its rank once all earlier steps are done. Then the others wait
    # for it. ThreadSanitizer has a thread of its own from the fork on.
    sleep 0.005 until time > $until || @{[glob "/proc/$children[0]/task/*"]} > $own_threads;
    kill STOP => $children[0];
    kill KILL => $pid;
    waitpid $pid, 0;
    my $since = time;
    sleep 0.02 while time - $since < 20 && grep { alive($_) } @children;
    is(join(' ', grep { alive($_) } @children), '', 'end with the one that is killed');
    cmp_ok(time - $since, '<', 5, 'at once');
    kill KILL => $_ for grep { alive($_) } @children;
}

done_testing();
