#!/usr/bin/env perl
# The device headers as users see them: each alone, and all of them in two files of a program. And
# docs/device-api.md: it has every call as declared, with who calls it, its order and how it fails,
# and its examples compile.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

my $cxx     = $ENV{CXX}          || 'g++';
my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $scratch = tempdir(CLEANUP => 1);
my @headers = grep { $_ ne 'symwin/race.cuh' } sort glob 'symwin/*.cuh'; # part of symwin/device.cuh
my $warn    = '-Wall -Wextra -Wpedantic -Wshadow -Werror -I.';

sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or BAIL_OUT("$path: $!");
    local $/;
    return scalar <$file>;
}

sub spew {
    my ($path, $text) = @_;
    open my $file, '>', $path or BAIL_OUT("$path: $!");
    print $file $text;
    close $file;
}

# ---- the headers -------------------------------------------------------------------------------

for my $header (@headers, 'symwin/race.cuh') {
    spew("$scratch/one.cu", "#include \"$header\"\n#include \"$header\"\n");
    my $output = `$cxx -x c++ -std=c++17 $warn -fsyntax-only $scratch/one.cu 2>&1`;
    is($?, 0, "$header compiles alone, and twice") or diag($output);
}

my ($user) = slurp('tests/user/user.h') =~ /(.*)/s;
is(join(' ', grep { $user !~ /"\Q$_\E"/ } @headers), '',
    'tests/user has all of them, in two files');
SKIP: {
    my $program = "$build/tests/user/ring-emu";
    skip "there is no $program", 1 unless -x $program;
    my $output = `SYMWIN_DRIVER=emu timeout 100 $program 2>&1`;
    like($output, qr/^ok 1 - .*\n1\.\.1\n\z/, 'which run on the emulated driver') or diag($output);
}

# ---- what they declare for nvcc ----------------------------------------------------------------

spew("$scratch/all.cu", join '', map { "#include \"$_\"\n" } @headers);
my $cuda = "$cxx -x c++ -std=c++17 -D__CUDACC__ -D__CUDA_ARCH__=900 -I. $scratch/all.cu";
my $text = `$cuda -E -P`;
$text =~ s/\s+/ /g;
my %declared; # name => declaration as a user reads it
my $template = qr/(?:template <[^{};<>]*> )?/;
my $prefix = qr/static __device__ __forceinline__/;
while ($text =~ /($template)$prefix ([\w ]*?[ *])(symwin_\w+)(\([^()]*\))/g) {
    $declared{$3} = "$1$2$3$4";
}
cmp_ok(scalar keys %declared, '>', 120, 'they declare functions');

my %names = map { $_ => 1 } keys %declared;
$names{$_} = 1 for $text =~ /\b(symwin_\w+|SYMWIN_\w+)\b/g;    # types, constants, the host's calls
my @macros = grep { !/_CUH$|_H$/ }
  map { /^#define (SYMWIN_\w+)/ ? $1 : () } split /\n/, `$cuda -E -dM`;
$names{$_} = 1 for @macros;
my @foreign = map { /^#define (\w+)/ && $1 !~ /^(SYMWIN_|SW_)/ ? $1 : () }
  map { split /\n/, slurp($_) } @headers;
is("@foreign", '', 'every macro of theirs begins with SYMWIN_');

# ---- the document ------------------------------------------------------------------------------

my $document = slurp('docs/device-api.md');
my @examples = $document =~ /^```cuda\n(.*?)^```$/gms;
(my $prose = $document) =~ s/^```.*?^```$//gms;

my (%documented, @bare);
for my $section (split /^(?=#{2,4} )/m, $prose) {
    my ($title) = $section =~ /^#+ (.*)/;
    # A contract follows the calls that it is for.
    my @parts = split /(?<=\n)(?=\*By:\*)/, $section;
    for my $i (0 .. $#parts) {
        my ($contract, $rest) = $parts[$i] =~ /^(\*By:\*.*?)(?:\n\n|\z)(.*)/s;
        my $calls = defined $contract ? $rest : $parts[$i];
        my $next  = $parts[$i + 1] // '';
        for my $span ($calls =~ /`([^`]*)`/g) {
            $span =~ s/\s+/ /g;
            next unless $span =~ /^(?:template <[^>]*> )?\w[\w ]*[ *](symwin_\w+)\(/;
            $documented{$1} = $span;
            push @bare, $1
              unless $next =~ /^\*By:\*.*?\*Order:\*.*?\*Fails:\*/s
                && (split /\n\n/, $next)[0] =~ /\*Fails:\*/;
        }
    }
}
is(join(' ', grep { !$documented{$_} } sort keys %declared), '', 'the document has every call');
is(join("\n", grep { $declared{$_} && $documented{$_} ne $declared{$_} } sort keys %documented), '',
    'as the headers declare it');
is(join(' ', sort @bare), '', 'with who calls it, its order and how it fails');

my @unknown = grep { !$names{$_} } $prose =~ /\b(symwin_\w+|SYMWIN_\w+)\b(?!\.)/g;
is("@unknown", '', 'and no name that is not there');

# Host macros and macros of lists are documented in symwin.h; the rest is for kernels.
my %host = map { $_ => 1 } map { /^\s*#\s*define (SYMWIN_\w+)/ ? $1 : () }
  map { split /\n/, slurp($_) } glob 'symwin.h symwin/*.h';
is(join(' ', grep { !$host{$_} && $prose !~ /\b$_\b/ } sort @macros), '', 'every macro');
my @structs = map { slurp($_) =~ /^struct (symwin_(?!emu_)\w+)/gm } @headers;
is(join(' ', grep { $prose !~ /\b$_\b/ } @structs), '', 'and every type');

my %anchors;
for my $title ($prose =~ /^#+ (.*)/gm) {
    (my $anchor = lc $title) =~ s/[^\w\- ]//g;
    $anchor =~ s/ /-/g;
    $anchors{$anchor} = 1;
}
is(join(' ', grep { !$anchors{$_} } $prose =~ /\]\(#([\w-]+)\)/g), '', 'links lead to headings');
is(join(' ', grep { !-e "docs/$_" } $prose =~ /\]\((?!https?:|#)([^)#]+)\)/g), '', 'and to files');

cmp_ok(scalar @examples, '>', 10, 'it has examples');
for my $i (0 .. $#examples) {
    spew("$scratch/example.cu", join('', map { "#include \"$_\"\n" } @headers) . $examples[$i]);
    my ($first) = $examples[$i] =~ /(\w+)\(/;
    my $output =
      `$cxx -x c++ -std=c++17 $warn -Wno-unused-function -fsyntax-only $scratch/example.cu 2>&1`;
    is($?, 0, "example " . ($i + 1) . " compiles") or diag("$examples[$i]$output");
}

done_testing();
