#!/usr/bin/env perl
# symwin.h and the headers that it includes, as users compile them: C and C++ of several standards
# accept each without a warning, alone and without CUDA's headers; every public function has a
# comment; the link map names exactly the public functions.
use strict;
use warnings;
use Test::More;

my $cc  = $ENV{CC}  || 'gcc';
my $cxx = $ENV{CXX} || 'g++';

sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or BAIL_OUT("$path: $!");
    local $/;
    return scalar <$file>;
}

my @headers = ('symwin.h', slurp('symwin.h') =~ /^#include "(symwin\/.*)"/gm);
my $header = join '', map { slurp($_) } @headers;

# A comment documents the declarations below it, up to the next empty line.
my (@functions, @undocumented);
for my $paragraph (split /\n\s*\n/, $header) {
    my $commented = 0;
    while ($paragraph =~ m{(/\*.*?\*/)|^SYMWIN_API\b[^;(]*?\b(symwin_\w+)\(}gms) {
        if (defined $1) { $commented = 1; next }
        push @functions, $2;
        push @undocumented, $2 unless $commented;
    }
}
cmp_ok(scalar @functions, '>', 20, 'they declare functions');
is("@undocumented", '', 'each has a comment');

my ($global) = slurp('symwin.map') =~ /global:(.*?)local:/s;
is(join(' ', sort $global =~ /(\w+);/g), join(' ', sort @functions), 'symwin.map names the same');

# Every name that the header adds, besides those of C headers, begins with symwin.
my @names = map { /^#define (\w+)/ ? $1 : () } split /\n/, $header;
is(join(' ', grep { !/^SYMWIN_/ } @names), '', 'every macro begins with SYMWIN_');

my @dialects = (
    ['C99'   => "$cc -x c -std=c99 -Wstrict-prototypes -Wc++-compat"],
    ['C11'   => "$cc -x c -std=c11 -Wstrict-prototypes -Wc++-compat"],
    ['C++11' => "$cxx -x c++ -std=c++11"],
    ['C++17' => "$cxx -x c++ -std=c++17"],
);
for (@dialects) {
    my ($name, $compiler) = @$_;
    my $flags = '-Wall -Wextra -Wpedantic -Wshadow -Werror -I. -fsyntax-only -H -';
    for my $file (@headers) {
        my $output = `printf '#include "$file"\\nint main(void) { return SYMWIN_OK; }\\n' \\
                      | $compiler $flags 2>&1`;
        is($?, 0, "$file compiles as $name") or diag($output);
        unlike($output, qr/cuda/i, "needs no header of CUDA's in $name");
    }
}

done_testing();
