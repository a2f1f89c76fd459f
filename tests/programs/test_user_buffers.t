#!/usr/bin/env perl
# examples/02_user_buffers end to end: its output, ranks as threads and as processes, odd counts,
# and its errors for bad input.
use strict;
use warnings;
use Test::More;

require './tests/helpers/files.pl';

my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $example = "$build/allreduce_ub";
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub example {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$example $arguments", 60);
}

sub verified {
    my ($environment, $arguments, $name) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    ok($status == 0 && $output =~ /^Results verified correctly$/m && $errors eq '', $name)
      or diag("exit status $status\n$output$errors");
    return $output;
}

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag($errors);
    like($errors, $want, "$name: says why");
    unlike($output, qr/verified|cleaned up successfully/, "$name: claims no success");
}

# ---- what it prints ----------------------------------------------------------------------------

my $ranks = sub { join '', map { "  Rank $_ " . $_[0]->($_) . "\n" } 0 .. 3 };
my ($status, $output, $errors) = example('NTHREADS=4 SYMWIN_EMU_DEVICES=4', '');
is($status, 0, 'four ranks: exit status');
is($errors, '', 'four ranks: nothing on stderr');
$output =~ s/(driver emu, device \d+: ).*/$1NAME/g;
is($output, join('',
        "Starting AllReduce example with 4 ranks\n",
        $ranks->(sub { "driver emu, device $_[0]: NAME" }),
        $ranks->(sub { "communicator initialized using device $_[0]" }),
        "User buffers:\n",
        $ranks->(sub { 'allocated 4.00 MB per buffer' }),
        $ranks->(sub { 'buffers registered' }),
        $ranks->(sub { 'data initialized' }),
        "Starting AllReduce with 1048576 elements (4 MB)\n",
        "AllReduce completed successfully\n",
        $ranks->(sub { 'buffers connected' }),
        "Verification - 1048576 elements on each of 4 ranks equal the host's own sum\n",
        "Results verified correctly\n",
        $ranks->(sub { 'buffers deregistered' }),
        "All resources cleaned up successfully\n"),
    'four ranks: every line, in order');
($status, $output) = example('', '--help');
is($status, 0, '--help: exit status');
like($output, qr/^usage: .*allreduce_ub.*registered user buffers.*twoshot/s,
    '--help: names what there is');

# ---- what it computes --------------------------------------------------------------------------

verified("NTHREADS=$_", $sanitized ? '1K' : '1M', "$_ ranks") for 1, 2, 8;
verified('NTHREADS=5 SYMWIN_EMU_DEVICES=2', '1K', 'ranks that share devices');
verified('NTHREADS=3', $_, "$_ elements")
  for $sanitized ? (7, 4097) : (1, 2, 7, 4097, '3K', '300001');
verified('NTHREADS=3', "1031 $_", $_) for 'bf16 max', 'e4m3 avg', 'i64 prod';
verified('NTHREADS=4', "--algo $_ 20K bf16", "algorithm $_")
  for qw(oneshot twoshot twoshot_put copies);

# ---- ranks as processes ------------------------------------------------------------------------

# Every process prints its lines in the order of its steps.
sub processes {
    my ($environment, $arguments, $ranks, $name) = @_;
    my $output = verified($environment, $arguments, $name);
    for my $rank (0 .. $ranks - 1) {
        my @lines = $output =~ /^  Rank $rank (\w+ \w+)/mg;
        is(join(', ', @lines),
            'driver emu, communicator initialized, allocated 0, buffers registered, '
              . 'data initialized, buffers connected, buffers deregistered', "$name: rank $rank");
    }
    like($output, qr/^All resources cleaned up successfully$/m, "$name: cleaned up");
}

processes('', '--nproc 2 10K',           2, '--nproc 2');
processes('', '--nproc 4 10001 bf16',    4, '--nproc 4');
processes('NTHREADS=2', '--nproc 2 10K', 4, 'two processes of two threads');

# ---- what it refuses ---------------------------------------------------------------------------

refused('NTHREADS=2', '0', 2, qr/\Aallreduce_ub: COUNT is "0": give a number/, 'no elements');
refused('NTHREADS=2', '16G f33', 2, qr/no TYPE "f33"/, 'unknown type');
refused('NTHREADS=2', '1K f32 xor', 2, qr/no OP "xor"/, 'unknown operation');
refused('NTHREADS=2', '--algo=ring', 2, qr/no ALGO "ring"/, 'unknown algorithm');
refused('NTHREADS=2', '--frob', 2,
    qr/\A[\w-]+: unknown argument "--frob": --help lists[^\n]*\n\z/, 'unknown option');
refused('', '--nproc 0', 2, qr/--nproc is "0"/, 'no processes');
refused('NTHREADS=0', '', 2, qr/NTHREADS is "0"/, 'no ranks');
refused('SYMWIN_DRIVER=opencl', '', 1, qr/SYMWIN_DRIVER/, 'unknown driver');
refused('NTHREADS=2 SYMWIN_EMU_MEM=16M', '64M', 1, qr/Rank 0 failed: SYMWIN_NO_MEMORY/,
    'memory that is not there');
refused('SYMWIN_EMU_MEM=16M', '--nproc 2 64M', 1, qr/Rank [01] failed: SYMWIN_NO_MEMORY/,
    'processes without memory');

done_testing();
