#!/usr/bin/env perl
# The example on real GPUs: ranks that share a GPU, and one rank per GPU.
use strict;
use warnings;
use Test::More;

my $example = ($ENV{SYMWIN_BUILD} || 'build') . '/allreduce_sm';

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

sub verified {
    my ($ranks, $arguments) = @_;
    my $output = `env SYMWIN_DRIVER=cuda NTHREADS=$ranks timeout 100 $example $arguments 2>&1`;
    ok($? == 0 && $output =~ /driver cuda/ && $output =~ /^Results verified correctly$/m,
        "$ranks ranks $arguments") or diag($output);
}

verified($_, '') for 1, 2, 4;
verified(4, $_) for '64M', '1000003 bf16', '16M f16 max', '12345 u8 avg';
for my $type (qw(f64 f32 f16 bf16 e4m3 e5m2 i8 u8 i32 u32 i64 u64)) {
    verified(2, "65537 $type $_") for qw(sum prod min max avg);
}

done_testing();
