#!/usr/bin/env perl
# examples/07_all_to_all on real GPUs, built by nvcc: threads that share a GPU, one rank per GPU,
# and processes. A token that an expert forgets is found.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $example = ($ENV{SYMWIN_BUILD} || 'build') . '/all_to_all';
plan skip_all => "no $example: nvcc makes it (make gpu-tests)" unless -x $example;

sub example {
    my ($environment, $arguments) = @_;
    my $output = `env SYMWIN_DRIVER=cuda $environment timeout 300 $example $arguments 2>&1`;
    return ($? >> 8, $output);
}

sub verified {
    my ($environment, $arguments, $name) = @_;
    my ($status, $output) = example($environment, $arguments);
    ok($status == 0 && $output =~ /driver cuda/ && $output =~ /^All tokens verified$/m, $name)
      or diag($output);
}

verified('', '', 'a thread for each device');
verified("NTHREADS=$_", '--width 512 1000', "$_ threads") for 1, 2, 4;
verified('', '--nproc 2 --width 33 1000', 'two processes');

my ($status, $output) = example('NTHREADS=2', '--forget --width 8 100');
ok($status == 1 && $output =~ /^wrong numbers: [1-9]/m && $output !~ /verified/,
    'a forgotten token') or diag($output);

done_testing();
