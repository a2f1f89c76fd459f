# Whole files and free ports, for tests in Perl.
use strict;
use warnings;
use IO::Socket::INET;
use Test::More;

# The text of a file; empty if it cannot be read.
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

# A TCP port that nobody uses.
sub free_port {
    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1)
        or BAIL_OUT("no port: $!");
    return $socket->sockport;
}

1;
