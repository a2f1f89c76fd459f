#!/usr/bin/env perl
# symwin.torch in 2 and 4 processes, which share GPUs if there are fewer: every operator, graphs,
# compilers, gradients, DistributedDataParallel, a transformer, memory pools, vLLM's interface.
# tests/gpu/symwin_torch.py says what its sections do. It ends within 240 s.
#
#   usage: perl tests/gpu/gpu_symwin_torch.t [RANKS|SECTION]...
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Copy qw(copy);
use File::Temp qw(tempdir);
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $gpus  = `timeout 60 python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null`;
plan skip_all => 'python3 has no PyTorch that finds a GPU' unless $gpus =~ /^[1-9]/;
plan skip_all => "no $build/libsymwin.so" unless -e "$build/libsymwin.so";

# The package as it is in the sources, with the declarations that a wheel's build writes.
my $package = tempdir(CLEANUP => 1);
mkdir "$package/symwin";
copy($_, "$package/symwin/") for glob 'python/symwin/*.py';
system("python3 python/bindings.py . $package/symwin/_api.py") == 0
  or BAIL_OUT('python/bindings.py failed');

my @sections = qw(operators sizes messages gradients symmetric captured one_kernel profiled compiled
  ddp transformer transformer_compiled pool engine refused inductor);
my @counts = grep { /^\d+$/ } @ARGV;
my @wanted = grep { !/^\d+$/ } @ARGV;
@counts   = (2, 4)    if !@counts;
@sections = @wanted if @wanted;

my %seconds = (2 => 90, 4 => 120); # of the script; it is ended a little later
for my $ranks (@counts) {
    my $limit  = $seconds{$ranks} || 100;
    my $end    = $limit + 5;
    my $port   = 29770 + $ranks;
    my $output = `SYMWIN_TORCH_SECONDS=$limit PYTHONPATH=$package \\
        SYMWIN_LIBRARY=$build/libsymwin.so SYMWIN_DRIVER=cuda PYTHONDONTWRITEBYTECODE=1 \\
        timeout -k 5 $end python3 -m torch.distributed.run --nproc-per-node $ranks \\
        --master-addr 127.0.0.1 --master-port $port tests/gpu/symwin_torch.py @wanted 2>&1`;
    my $status = $?;
    my $wrong  = 0;
    for my $section (@sections) {
        my $what  = "$ranks processes: $section";
        my $right = () = $output =~ /^rank \d+: $section: right$/mg;
        my @skipped = $output =~ /^rank \d+: $section: skipped: (.*)$/mg;
      SKIP: {
            skip "$what: $skipped[0]", 1 if @skipped == $ranks;
            next if ok($right + @skipped == $ranks, $what);
            $wrong++;
            diag($_) for $output =~ /^(rank \d+: $section: wrong.*)$/mg;
            diag("$right of $ranks ranks said that they were right");
        }
    }
    note($_) for $output =~ /^(rank 0: kernel: .*)$/mg;
    next if !$wrong;
    my @lines = split /\n/, $output;
    diag("exit status $status\n", join "\n", @lines > 120 ? @lines[-120 .. -1] : @lines);
}
done_testing();
