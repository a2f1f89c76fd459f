# Whole files, for tests that read and write some.
use strict;
use warnings;
use Test::More;

# What is in it; '' where it cannot be read.
sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or return '';
    local $/;
    return scalar <$file> // '';
}

sub spew {
    my ($path, $text) = @_;
    open my $file, '>', $path or BAIL_OUT("$path: $!");
    print $file $text;
    close $file or BAIL_OUT("$path: $!");
}

1;
