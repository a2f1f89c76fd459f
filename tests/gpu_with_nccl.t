#!/usr/bin/env perl
# examples/03_with_nccl on real GPUs, on NCCL itself: its allocator's memory, and symwin's by preloading.
use strict;
use warnings;
use Cwd qw(abs_path);
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my %environment = (NCCL => '', symwin => "LD_PRELOAD=$build/libsymwin-nccl.so");
delete $ENV{NCCL_NVLS_ENABLE}; # the program switches it off

sub with_nccl {
    my ($owner, $arguments) = @_;
    my $output = `env $environment{$owner} timeout 100 $build/with_nccl $arguments 2>&1`;
    return ($? >> 8, $output);
}

my ($status, $output) = with_nccl('NCCL', 'register');
plan skip_all => $output =~ s/\s+\z//r if $status == 77;

sub verified {
    my ($owner, $arguments) = @_;
    my ($status, $output) = with_nccl($owner, $arguments);
    my @owners = $output =~ /memory of (\w+)/g;
    ok($status == 0 && $output =~ /^All resources cleaned up successfully$/m && @owners && !grep({ $_ ne $owner } @owners),
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

done_testing();
