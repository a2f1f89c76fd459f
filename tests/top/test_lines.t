#!/usr/bin/env perl
# Lines of at most 100 columns, in sources and in the text of documents. Tables and links of
# documents may be longer.
use strict;
use warnings;
use File::Find;
use Test::More;

my $most = 100;
my (%longest, $lines);

sub look {
    my ($file) = @_;
    open my $in, '<:encoding(UTF-8)', $file or die "$file: $!\n";
    while (my $line = <$in>) {
        chomp $line;
        $lines++;
        next if length $line <= $most;
        next if $file =~ /\.md$/ && $line =~ /^\s*(\||!\[|\S+$)/;
        push @{$longest{$file}}, "line $. has " . length($line) . ' columns';
    }
}

find({no_chdir => 1, wanted => sub {
    $File::Find::prune = 1 if m{^\./(build[^/]*|\.git|fuzz/corpus|bench/results)$};
    look($_) if -f && m{(\.(c|h|cc|cu|cuh|py|sh|t|pl|map|md)|/Makefile)$};
}}, '.');
cmp_ok($lines // 0, '>', 50000, 'the tree was read');
is(join("\n", map { "$_: $longest{$_}[0]" } sort keys %longest), '', "at most $most columns");
done_testing;
