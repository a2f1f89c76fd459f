#!/usr/bin/env perl
# examples/torch on real GPUs, where there is a PyTorch.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $library = ($ENV{SYMWIN_BUILD} || 'build') . '/libsymwin.so';
my $gpus = `python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null`;
plan skip_all => 'python3 has no PyTorch that finds a GPU' unless $gpus =~ /^[1-9]/;
plan skip_all => "no $library" unless -e $library;

for my $ranks (grep { $_ <= $gpus } 1, 2, 4) {
    my $output = `timeout 100 python3 -m torch.distributed.run --nproc-per-node $ranks --master-port 29617 \\
        examples/torch/train_step.py $library 2>&1`;
    my $lines = () = $output =~ /^rank \d+: \d+ bytes of gradients in symwin's pool, .*; the step equals the plain one$/mg;
    ok($? == 0 && $lines == $ranks, "$ranks ranks") or diag("exit status $?\n$output");
}

done_testing();
