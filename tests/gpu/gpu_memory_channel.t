#!/usr/bin/env perl
# examples/04_memory_channel on real GPUs: threads and processes, all sizes, every way to get.
use strict;
use warnings;
use Test::More;

plan skip_all => 'no GPU: there is no /dev/nvidiactl and no /dev/dxg'
  unless -e '/dev/nvidiactl' || -e '/dev/dxg';

my $example = ($ENV{SYMWIN_BUILD} || 'build') . '/memory_channel';

sub copied {
    my ($arguments, $name) = @_;
    my $output = `env SYMWIN_DRIVER=cuda timeout 100 $example $arguments 2>&1`;
    ok($? == 0 && $output =~ /^Succeed!$/m, $name) or diag($output);
    note($output);
}

copied('', 'two threads');
copied('--nproc 2', 'two processes');
copied("--get $_ 1K 1M 128M", "get by $_") for qw(threads bulk);
copied('8 24 136 1000 65544 1000008', 'odd sizes');
copied("--blocks $_ 40K 4M", "$_ blocks") for 1, 3, 100;

done_testing();
