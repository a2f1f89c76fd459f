#!/usr/bin/env perl
# examples/04_memory_channel end to end: its output, ranks as threads and as processes, odd sizes
# and grids, and its errors for bad input.
use strict;
use warnings;
use Test::More;

require './tests/helpers/files.pl';

my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $example = "$build/memory_channel";
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub example {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$example $arguments", 100);
}

my $number = qr/\d+(?:\.\d+)?(?:e[-+]\d+)?/;

# Each of the tests prints the sizes in the order of the command line.
sub copied {
    my ($environment, $arguments, $sizes, $name) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    my @lines = map { my $test = $_;
        map { qr/GPU 0: \[Bidir $test\] bytes $_, elapsed $number ms\/iter, BW $number GB\/s/ }
          @$sizes }
      'Put', 'Get', 'Put Packets';
    my @got = split /\n/, $output;
    my $begin = join ' ', sort splice @got, 0, 2;
    my $prepares = qr/GPU \d: Preparing for bidirectional copy tests \.\.\./;
    my $ok = $status == 0 && $errors eq '' && @got == @lines + 1 && $got[-1] eq 'Succeed!'
      && $begin =~ /^$prepares $prepares$/;
    $ok &&= $got[$_] =~ /^$lines[$_](, best of all grids: \d+ blocks of \d+ threads)?$/
      for 0 .. $#lines;
    ok($ok, $name) or diag("exit status $status\n$output$errors");
    return $output;
}

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag($errors);
    like($errors, $want, "$name: says why");
    unlike($output, qr/Succeed/, "$name: claims no success");
}

# ---- what it copies ----------------------------------------------------------------------------

my ($status, $output) = example('', '--help');
is($status, 0, '--help: exit status');
like($output, qr/^usage: memory_channel .*--nproc.*--get.*--best/s, '--help: names what there is');

copied('', $sanitized ? '1K 8K' : '', $sanitized ? [1024, 8192] : [1024, 65536, 1048576],
    'two threads');
copied('SYMWIN_EMU_DEVICES=1', '1K 4K', [1024, 4096], 'on one device');
copied('', '8 24 136 1000 65544', [8, 24, 136, 1000, 65544], 'odd sizes, small and large in turn');
copied('', "--blocks $_ 4K 40K", [4096, 40960], "a grid of $_ blocks")
  for $sanitized ? 3 : (1, 3, 7);
copied('', "--threads $_ 4K", [4096], "blocks of $_ threads") for $sanitized ? 33 : (1, 33, 200);
copied('', '--get bulk 8 4K 100000', [8, 4096, 100000], 'get by bulk copies');
copied('', '--get bulk --pieces 2 40K', [40960], 'by fewer pieces');
copied('SYMWIN_EMU_OLD=8', '--get bulk 4K', [4096], 'on devices that have none');
copied('', '--iterations 1 1K', [1024], 'one iteration');
my $best = copied('', '--best --iterations 1 1K', [1024], '--best');
like($best, qr/best of all grids: \d/, 'which names a grid');

# ---- ranks as processes ------------------------------------------------------------------------

copied('', '--nproc 2 1K 20K', [1024, 20480], '--nproc 2');

# What a launcher sets; here the shell is the launcher.
my $port = free_port();
my $processes = join ' ', map {
    "env RANK=$_ WORLD_SIZE=2 LOCAL_RANK=$_ LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost "
      . "MASTER_PORT=$port TORCHELASTIC_RUN_ID=channel $example 1K &" } 0, 1;
$output = `export SYMWIN_DRIVER=emu; $processes wait 2>&1`;
like($output, qr/^GPU 0: \[Bidir Put Packets\] bytes 1024, .*^Succeed!$/ms, 'torchrun');

# ---- what it refuses ---------------------------------------------------------------------------

refused('', '12', 2, qr/BYTES is "12": give a multiple of 8/, 'no whole words');
refused('', '0', 2, qr/BYTES is "0": give a number/, 'no bytes');
refused('', '1X', 2, qr/BYTES is "1X"/, 'unknown suffix');
refused('', '--frob', 2,
    qr/\A[\w-]+: unknown argument "--frob": --help lists[^\n]*\n\z/, 'unknown option');
refused('', $_, 2, qr/\A\w+: $_ needs a value behind it[^\n]*\n\z/, "$_ without a value")
  for '--nproc', '--get';
refused('', '--get quickly', 2, qr/--get is "quickly"/, 'unknown way to get');
refused('', '--blocks 257', 2, qr/--blocks is "257"/, 'more blocks than lanes');
refused('', '--threads 0', 2, qr/--threads is "0"/, 'no threads');
refused('', '--nproc 1', 2, qr/takes two/, 'one process');
refused('RANK=0 WORLD_SIZE=3', '1K', 1, qr/two ranks/, 'three processes');
refused('SYMWIN_DRIVER=opencl', '', 1, qr/SYMWIN_DRIVER/, 'unknown driver');
refused('SYMWIN_EMU_MEM=16M', '16M', 1, qr/GPU [01]: SYMWIN_NO_MEMORY/, 'memory that is not there');
refused('SYMWIN_EMU_MEM=16M', '--nproc 2 16M', 1, qr/GPU [01]: SYMWIN_NO_MEMORY/,
    'nor in processes');

done_testing();
