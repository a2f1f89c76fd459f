#!/usr/bin/env perl
# PyTorch and a client by ctypes, unchanged, on NCCL alone and with libsymwin-nccl.so: results are
# right, losses are those of NCCL, and symwin has served the calls. Ranks share GPUs if there are
# fewer.
#
#   usage: perl tests/gpu/gpu_nccl_torch.t [RANKS|WORD]...
#
# Numbers choose how many processes, 2 and 4 otherwise. Words choose what runs: collectives, ddp,
# fsdp, graphs, ctypes, example; hosts: collectives, DDP and graphs of ranks that are on two hosts
# for symwin, which goes between them by NCCL. All of it takes minutes, since NCCL sends over
# sockets where ranks share a GPU: run by tools/run-tests.sh, it may need SYMWIN_TEST_TIMEOUT=900.
use strict;
use warnings;
use Cwd qw(abs_path);
use POSIX qw(strtod);
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $gpus  = `python3 -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null`;
plan skip_all => 'python3 has no PyTorch that finds a GPU' unless $gpus =~ /^[1-9]/;
plan skip_all => "no $build/libsymwin-nccl.so" unless -e "$build/libsymwin-nccl.so";

my @modes  = qw(collectives ddp fsdp graphs);
my @counts = grep { /^\d+$/ } @ARGV;
my %only   = map { $_ => 1 } grep { !/^\d+$/ } @ARGV;
@counts = (2, 4) if !@counts;

my $serve     = 'SYMWIN_NCCL_SERVE=all SYMWIN_NCCL_REPORT=1';
my $preloaded = "LD_PRELOAD=$build/libsymwin-nccl.so $serve";
my $named     = "VLLM_NCCL_SO_PATH=$build/libsymwin-nccl-full.so $serve";
my $port      = 29650;

# What symwin must have served at least in each mode.
my @most   = qw(allreduce allgather reduce_scatter broadcast reduce send receive);
my %serves = (
    collectives => [@most],
    ddp         => ['allreduce'],
    fsdp        => [qw(allgather reduce_scatter)],
    graphs      => [qw(allreduce allgather reduce_scatter)],
    ctypes      => [@most],
);

sub wanted { return grep { !%only || $only{$_} } @_ }

sub run {
    my ($ranks, $environment, $script) = @_;
    $port += 2; # nccl_ctypes.py takes the next one too
    my $hosts = $gpus >= $ranks ? 'NCCL_HOSTID=one' : '';
    my $output = `timeout -k 10 150 env $hosts $environment python3 -m torch.distributed.run \\
        --nproc-per-node $ranks --master-addr 127.0.0.1 --master-port $port $script 2>&1`;
    return ($?, $output);
}

sub last_lines {
    my ($output) = @_;
    my @lines = grep { !/: loss \d/ } split /\n/, $output;
    return join "\n", @lines > 80 ? @lines[-80 .. -1] : @lines;
}

# How many calls of a collective symwin has served, by the rows of all ranks' reports:
#   symwin:      1     0     4 allreduce        4 KiB       200 symwin  saved ...
sub served {
    my ($output, $name) = @_;
    my $calls = 0;
    $calls += $1 while $output =~ /symwin:.*? \Q$name\E\s.*?\s(\d+) symwin\b/g;
    return $calls;
}

sub check_served {
    my ($output, $what, @names) = @_;
    my %seen;
    my %calls = map { $_ => served($output, $_) } grep { !$seen{$_}++ } @names;
    my @none = grep { !$calls{$_} } sort keys %calls;
    ok(!@none, "$what: symwin served " . join ', ', sort keys %calls)
      or diag("not served: @none\n", join "\n", grep { /symwin/i } split /\n/, $output);
    note("$what: ", join ', ', map { "$_ $calls{$_}" } sort keys %calls);
}

# Whether every rank says that all its checks were right; and it made some.
sub right {
    my ($output, $ranks, $mode) = @_;
    my $counts = () = $output =~ /^rank \d+: $mode: [1-9]\d* checks, 0 failed/mg;
    my $ends   = () = $output =~ /^rank \d+: $mode: right$/mg;
    return $ends == $ranks && ($mode =~ /ddp|fsdp/ || $counts == $ranks);
}

sub check_modes {
    my ($ranks, $environment, $what, @names) = @_;
    my ($status, $output) = run($ranks, $environment, "tests/gpu/nccl_torch.py @names");
    for my $mode (@names) {
        ok($status == 0 && right($output, $ranks, $mode), "$ranks processes, $what: $mode")
          or diag("exit status $status\n", last_lines($output));
    }
    check_served($output, "$ranks processes, $what: @names", map { @{$serves{$_}} } @names)
      if $environment =~ /SERVE/;
    return $output;
}

sub losses {
    my ($output, $mode) = @_;
    return {$output =~ /^rank (\d+: $mode: loss \d+) (\S+)$/mg};
}

# The losses of a run with symwin beside those of NCCL alone.
sub check_losses {
    my ($ranks, $mode, $alone, $with) = @_;
    my ($expected, $found) = (losses($alone, $mode), losses($with, $mode));
    my ($equal, $furthest) = (0, 0);
    for my $step (keys %$expected) {
        my $value = (strtod($expected->{$step}))[0];
        my $other = defined $found->{$step} ? (strtod($found->{$step}))[0] : 0;
        $equal++ if $value == $other;
        my $distance = $value ? abs($other / $value - 1) : 1;
        $furthest = $distance if !($distance <= $furthest); # NaN too
    }
    my $steps = keys %$expected;
    ok($steps == 50 * $ranks && keys %$found == $steps && $furthest <= 1e-6,
        "$ranks processes: losses of $mode are those of NCCL");
    diag("$ranks processes, $mode: ", $equal == $steps
        ? "all $steps losses are equal to the bit"
        : sprintf '%d of %d losses are equal to the bit, the others within %.1e', $equal, $steps,
        $furthest);
}

# Four processes have one run for each mode, so that what one does cannot hide what another lacks.
for my $ranks (@counts) {
    my @names = wanted(@modes);
    my $alone = @names ? check_modes($ranks, '', 'NCCL', @names) : '';
    for my $set ($ranks == 4 ? map { [$_] } @names : @names ? \@names : ()) {
        my $with = check_modes($ranks, $preloaded, 'symwin', @$set);
        check_losses($ranks, $_, $alone, $with) for grep { /ddp|fsdp/ } @$set;
    }
    check_modes($ranks, "$preloaded PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        'symwin, expandable segments', 'graphs') if wanted('graphs');
    check_modes($ranks, "$preloaded NCCL_WORLD_HOSTS=2 SYMWIN_ADDR=127.0.0.1",
        'symwin, two hosts', $_) for wanted('hosts') ? qw(collectives ddp graphs) : ();
    for my $way (wanted('ctypes') ? (['NCCL', ''], ['named', $named], ['preloaded', $preloaded])
        : ()) {
        my ($what, $environment) = @$way;
        my ($status, $output) = run($ranks, $environment, 'tests/gpu/nccl_ctypes.py');
        my $right = () = $output =~ /^rank \d+: ctypes: [1-9]\d* checks, 0 failed/mg;
        ok($status == 0 && $right == $ranks, "$ranks processes, $what: ctypes")
          or diag("exit status $status\n", last_lines($output));
        check_served($output, "$ranks processes, $what: ctypes", @{$serves{ctypes}})
          if $environment;
    }
}
if (wanted('example')) {
    my $output = `timeout -k 10 150 examples/08_pytorch_unchanged/run.sh 2 $build 2>&1`;
    my $status = $?;
    my $same = () = $output =~ /^(?:DDP|FSDP|inference) .*(?:to the bit|within)/mg;
    ok($status == 0 && $same == 3, 'examples/08_pytorch_unchanged')
      or diag("exit status $status\n", last_lines($output));
    note($output);
}
done_testing();
