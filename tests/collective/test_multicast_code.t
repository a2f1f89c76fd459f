#!/usr/bin/env perl
# What nvcc makes of kernels/multicast.cu for sm_90 and sm_100: each kernel has multimem
# instructions, of the forms that symwin/multimem.cuh names, and the alias fences. Skipped where the
# build has no nvcc.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = $ENV{SYMWIN_BUILD} || 'build';
my ($nvcc) = slurp("$build/flags.cu") =~ /\A(\S*nvcc)\s/;
plan skip_all => 'this build has no nvcc' unless defined $nvcc;

my $scratch = tempdir(CLEANUP => 1);
my @adds    = qw(acc::f32.v4.bf16x2 acc::f32.v4.f16x2 f64 u32 u64 v4.f32);
my @orders  = qw(s32 s64 u32 u64 v4.bf16x2 v4.f16x2);
my @loads   = ((map { "add.$_" } @adds), map { my $op = $_; map { "$op.$_" } @orders } qw(max min));
my @forms   = ((map { "ld_reduce.relaxed.sys.global.$_" } @loads), 'st.relaxed.sys.global.v4.f32');

sub code_of {
    my ($arch) = @_;
    my $status = system "$nvcc -std=c++17 -O3 -arch=compute_$arch -ptx -I. -o $scratch/$arch.ptx "
      . "kernels/multicast.cu 2>$scratch/$arch.txt";
    return $status == 0 ? slurp("$scratch/$arch.ptx") : undef;
}

for my $arch (90, 100) {
  SKIP: {
        my $code = code_of($arch);
        if (!defined $code && slurp("$scratch/$arch.txt") =~ /nsupported gpu architecture/i) {
            skip "this nvcc does not know sm_$arch", 3;
        }
        ok(defined $code, "sm_$arch: compiled") or do {
            diag(slurp("$scratch/$arch.txt"));
            next;
        };
        my %found;
        $found{$_}++ for $code =~ /\bmultimem\.([\w.:]+)/g;
        is(join("\n", sort keys %found), join("\n", sort @forms), "sm_$arch: the instructions");

        my @kernels = split /^\s*(?:\.visible )?\.entry /m, $code;
        shift @kernels;
        my @without = grep { !/\bmultimem\./ || !/\bfence\.proxy\.alias\b/ } @kernels;
        is(join(' ', map { /^(\w+)/ } @without), '',
            "sm_$arch: all of " . @kernels . ' kernels have them, and fences');
    }
}

done_testing();
