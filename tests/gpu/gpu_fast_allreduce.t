#!/usr/bin/env perl
# examples/06_fast_allreduce on real GPUs, built by nvcc: threads that share a GPU, one rank per
# GPU, and processes. Its tests must notice a missing signal.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $example = ($ENV{SYMWIN_BUILD} || 'build') . '/fast_allreduce';
plan skip_all => "no $example: nvcc makes it (make gpu-tests)" unless -x $example;

sub example {
    my ($environment, $arguments) = @_;
    my $output = `env SYMWIN_DRIVER=cuda $environment timeout 300 $example $arguments 2>&1`;
    return ($? >> 8, $output);
}

sub verified {
    my ($environment, $arguments, $name) = @_;
    my ($status, $output) = example($environment, $arguments);
    ok($status == 0 && $output =~ /driver cuda/ && $output =~ /^All results verified$/m, $name)
      or diag($output);
    diag($output) if $name =~ /a device/;
}

verified('', '', 'a thread for each device');
verified("NTHREADS=$_", '1M', "$_ threads") for 1, 2, 4;
verified('', '--nproc 2 64K', 'two processes');
verified('NTHREADS=2', '--nproc 2 1K', 'two processes of two threads');

for my $signal (qw(start end)) {
    my ($status, $output) = example('NTHREADS=2', "--without $signal 64K");
    ok($status == 1 && $output =~ /^barrier: /m && $output !~ /verified/,
        "without the $signal signal") or diag($output);
    diag(grep { /^(?:barrier|f32)/ } map { "$_\n" } split /\n/, $output);
}
my ($status, $output) = example('NTHREADS=2', '--absent 1 --timeout 500 64K');
ok($status == 1 && $output =~ /rank 0: gave up: a rank has not signalled for 500 ms/,
    'a rank that is late') or diag($output);

done_testing();
