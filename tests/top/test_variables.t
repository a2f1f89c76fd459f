#!/usr/bin/env perl
# Every variable SYMWIN_... that any file reads is in docs/environment.md, and only settings.c reads
# those of its own table.
use strict;
use warnings;
use FindBin;
use Test::More;

chdir "$FindBin::Bin/../.." or die "chdir: $!";

sub slurp {
    my ($file) = @_;
    open my $handle, '<', $file or die "$file: $!";
    local $/;
    return <$handle>;
}

my $page  = slurp('docs/environment.md');
my %table = map { $_ => 1 } slurp('src/base/settings.c') =~ /\{"(SYMWIN_\w+)"/g;
cmp_ok(scalar keys %table, '>=', 19, 'the table has rows');
my $read = 0;
for my $file (sort glob('*.c src/*/*.c emu/*.c nccl/*.c bench/*.c bench/*/*.c tools/info/*.c '
            . 'examples/*/*.c examples/*/*.cu')) {
    my $text = slurp($file);
    for my $name ($text =~ /(?:getenv|is_set|switched)\(\s*"(SYMWIN_\w+)"/g) {
        $read++;
        ok($page =~ /`\Q$name\E`/, "$file: $name is documented");
        ok(!$table{$name} || $file !~ m{\A(?:src/.*|[^/]*\.c)\z},
            "$file: $name is not the table's");
    }
}
cmp_ok($read, '>', 5, 'variables are found');
ok($page =~ /`$_`/, "$_ is documented") for sort keys %table;
done_testing();
