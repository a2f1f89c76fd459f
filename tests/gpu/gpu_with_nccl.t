#!/usr/bin/env perl
# examples/03_with_nccl on real GPUs with NCCL itself: memory from NCCL's allocator and, with symwin
# preloaded, from symwin's.
use strict;
use warnings;
use Cwd qw(abs_path);
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my %environment = (NCCL => '', symwin => "LD_PRELOAD=$build/libsymwin-nccl.so");

sub with_nccl {
    my ($owner, $arguments, $more) = @_;
    my $output =
      `env $environment{$owner} @{[$more // '']} timeout 100 $build/with_nccl $arguments 2>&1`;
    return ($? >> 8, $output);
}

my ($status, $output) = with_nccl('NCCL', 'register');
plan skip_all => $output =~ s/\s+\z//r if $status == 77;

sub verified {
    my ($owner, $arguments) = @_;
    my ($status, $output) = with_nccl($owner, $arguments);
    my @owners = $output =~ /memory of (\w+)/g;
    ok($status == 0 && $output =~ /^All resources cleaned up successfully$/m && @owners
      && !grep({ $_ ne $owner } @owners),
        "memory of $owner: $arguments") or diag("exit status $status\n$output");
    diag("$owner $_") for grep { /^  Rank 0 (allocated|registered) \d+ in/ } split /\n/, $output;
}

for my $owner (qw(NCCL symwin)) {
    verified($owner, "--windows 500 $_") for qw(register window);
}
for my $order (qw(forward backward mixed)) {
    verified('symwin', "--order $order --free $_ window") for qw(before after);
}
verified('symwin', '--order mixed --free after register');

# What NCCL reports (NCCL_DEBUG). Symmetric kernels load and store the windows themselves. On a
# buffer that is registered by IPC, NCCL's ring stores into the peer's buffer. Neither copies
# through NCCL's own buffers.
sub said {
    my ($owner, $mode, $more) = @_;
    my (undef, $output) = with_nccl($owner, "--windows 3 $mode",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=REG,TUNING $more");
    my @kernels = $output =~ /NCCL INFO (AllReduce.* Bytes -> .*)/g;
    my @direct = $output =~ /IPC register buffer \S+ (size \d+) .*? to peer \d+ regAddr/g;
    my @symmetric = grep { /\[Symmetric\]/ } @kernels;
    return {kernels => \@kernels, direct => [sort @direct], symmetric => \@symmetric};
}

if ((grep { /^GPU \d/ } `nvidia-smi -L 2>/dev/null`) < 2) {
    note('one GPU: its rank has no peers');
    done_testing();
    exit;
}
my $own = said('NCCL', 'window', '');
my $ours = said('symwin', 'window', '');
my $off = said('symwin', 'window', 'NCCL_WIN_ENABLE=0'); # NCCL then registers them as buffers
ok(@{$ours->{kernels}} && @{$ours->{symmetric}} == @{$ours->{kernels}},
    'windows: all all-reduces are symmetric kernels');
is_deeply($ours->{kernels}, $own->{kernels}, 'the same ones as on memory of NCCL');
ok(@{$off->{kernels}} && !@{$off->{symmetric}}, 'without windows none is')
  or diag("@{$off->{kernels}}");

$own = said('NCCL', 'register', '');
$ours = said('symwin', 'register', '');
ok(scalar(grep { $_ eq 'size 4194304' } @{$ours->{direct}}) >= 2,
    'registered buffers are mapped by the peers');
is_deeply([$ours->{direct}, $ours->{kernels}], [$own->{direct}, $own->{kernels}],
    'the same ones as of memory of NCCL');

done_testing();
