# Whole files, free ports and programs on the emulated driver, for tests in Perl.
use strict;
use warnings;
use File::Temp qw(tempdir);
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

# Runs a command on the emulated driver, with an environment and a limit in seconds. Returns the
# exit status, stdout and stderr.
my $scratch;
sub emulated {
    my ($environment, $command, $limit) = @_;
    $scratch //= tempdir(CLEANUP => 1);
    my $output = `env SYMWIN_DRIVER=emu $environment timeout $limit $command 2>$scratch/stderr`;
    return ($? >> 8, $output, slurp("$scratch/stderr"));
}

# A TCP port that nobody uses.
sub free_port {
    my $socket = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 0, Listen => 1)
        or BAIL_OUT("no port: $!");
    return $socket->sockport;
}

1;
