#!/usr/bin/env perl
# examples/torch on real GPUs, if PyTorch is installed. Also tensors of its expandable segments, as
# windows and as registered buffers.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $library = ($ENV{SYMWIN_BUILD} || 'build') . '/libsymwin.so';
my $gpus = `python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null`;
plan skip_all => 'python3 has no PyTorch that finds a GPU' unless $gpus =~ /^[1-9]/;
plan skip_all => "no $library" unless -e $library;

sub near {
    my ($found, $expected) = @_;
    return abs($found - $expected) <= 1e-4 * abs $expected;
}

for my $ranks (grep { $_ <= $gpus } 1, 2, 4) {
    my $output = `timeout 100 python3 -m torch.distributed.run --nproc-per-node $ranks \\
        --master-port 29617 examples/torch/train_step.py $library 2>&1`;
    my $status = $?;
    my ($norm, @losses) = split ' ', `python3 tests/gpu/torch_step.py $ranks`;
    my $right = 0;
    my $gradients = qr/gradients of norm (\S+), (\d+) bytes/;
    my $rest = qr/symwin's pool holds (\d+); loss after the step (\S+)/;
    while ($output =~ /^rank (\d+): $gradients; $rest$/mg) {
        $right += near($2, $norm) && $3 <= $4 && near($5, $losses[$1]);
    }
    ok($status == 0 && $right == $ranks, "$ranks ranks: as in PyTorch's own memory")
      or diag("exit status $status, $right ranks right, expected $norm @losses\n$output");
}

# Ranks share GPUs if there are fewer GPUs.
for my $mode ('threads', 'processes') {
    for my $ranks (2, 4) {
        my $script = "tests/gpu/torch_expandable.py $library";
        my $command =
          $mode eq 'threads'
          ? "python3 $script $ranks"
          : "python3 -m torch.distributed.run --nproc-per-node $ranks --master-port 29618 $script";
        my $output = `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True timeout 200 $command 2>&1`;
        my $status = $?;
        my $windows = () =
          $output =~ /^rank \d+: window of (?:30|100) MiB on \d+ allocations: right$/mg;
        my $buffers = () = $output =~ /^rank \d+: registered buffer of (?:30|100) MiB: right$/mg;
        ok($status == 0 && $windows == 2 * $ranks,
            "expandable segments, $ranks $mode: tensors are windows")
          or diag("exit status $status, $windows of @{[2 * $ranks]}\n$output");
        ok($status == 0 && $buffers == 2 * $ranks,
            "expandable segments, $ranks $mode: registered tensors are connected")
          or diag("exit status $status, $buffers of @{[2 * $ranks]}\n$output");
    }
}

done_testing();
