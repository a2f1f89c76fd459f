#!/usr/bin/env perl
# docs/rooms.svg is what tools/rooms.py makes of the sources; and what its --check notices.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

plan(skip_all => 'no python3') unless `python3 -c 'print(1)' 2>/dev/null`;

is(`python3 tools/rooms.py --check 2>&1`, '',
    'docs/rooms.svg is up to date; else run tools/rooms.py');

# A copy, to change.
my $folder = tempdir(CLEANUP => 1);
system("mkdir $folder/tools $folder/docs && cp tools/rooms.py $folder/tools"
       . " && cp docs/rooms.svg $folder/docs && cp -r src *.c $folder") == 0
    or BAIL_OUT("$folder: no copy");

sub rooms {
    my ($option) = @_;
    my $said = `cd / && python3 $folder/tools/rooms.py $option 2>&1`;
    return ($? >> 8) . " $said";
}

# Puts the text at the end of a file for the check alone.
sub with {
    my ($path, $more) = @_;
    my $before = -e "$folder/$path" ? slurp("$folder/$path") : undef;
    spew("$folder/$path", ($before // '') . $more);
    my $said = rooms('--check');
    defined $before ? spew("$folder/$path", $before) : unlink "$folder/$path";
    return $said;
}

is(rooms(''), '0 ', 'it draws, from any folder');
is(rooms('--check'), '0 ', 'what it has drawn is up to date');
my $picture = slurp("$folder/docs/rooms.svg");
like($picture, qr{^<svg .*</svg>\n$}s, 'a picture');
like($picture, qr{>\Q$_\E</text>}, "with $_") for qw(symwin.c bootstrap inspect);
is(system("python3 -c 'import sys, xml.dom.minidom; xml.dom.minidom.parse(sys.argv[1])' "
          . "$folder/docs/rooms.svg"), 0, 'which is XML');

my $old = qr{^1 rooms.py: docs/rooms.svg is not what the sources give: run tools/rooms.py$};
is(with('src/base/error.c', "\n" x 40), '0 ', 'a few more lines: still up to date');
like(with('src/base/error.c', "\n" x 1000), qr{^1 .* says that base has about [\d,]+ lines, and it},
     'many more lines: not');
like(with('src/base/more.c', "\n"), $old, 'one more file: not');
like(with('src/memory/pool.c', qq{#include "src/window/window.h"\n}), $old,
     'a room that uses another: not');
like(with('docs/rooms.svg', "\n"), $old, 'a picture that was edited: not');
mkdir "$folder/src/attic";
like(rooms('--check'), qr{^1 rooms.py: src/attic has no box}, 'a room without a box');
rmdir "$folder/src/attic";
unlink "$folder/docs/rooms.svg";
like(rooms('--check'), qr{^1 rooms.py: docs/rooms.svg: No such file}, 'no picture');

done_testing();
