#!/usr/bin/env perl
# examples/02_user_buffers on real GPUs: ranks that share a GPU, one rank per GPU, and processes.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $example = ($ENV{SYMWIN_BUILD} || 'build') . '/allreduce_ub';

sub verified {
    my ($environment, $arguments, $name) = @_;
    my $output = `env SYMWIN_DRIVER=cuda $environment timeout 100 $example $arguments 2>&1`;
    ok($? == 0 && $output =~ /driver cuda/ && $output =~ /buffers connected$/m
      && $output !~ /not connected/
          && $output =~ /^Results verified correctly$/m, $name) or diag($output);
}

verified("NTHREADS=$_", '', "$_ ranks") for 1, 2, 4;
verified('NTHREADS=4', $_, "4 ranks $_") for '64M', '1000003 bf16', '16M f16 max', '12345 u8 avg';
verified('', "--nproc $_ 1000003", "$_ processes") for 2, 4;
verified('NTHREADS=2', '--nproc 2 16M bf16', 'two processes of two threads');

done_testing();
