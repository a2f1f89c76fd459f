#!/usr/bin/env perl
# The library's rooms (its source folders): which room calls which, and which files of a room call
# each other, read from the objects by nm; and which private headers a file includes. A room may
# use the rooms listed for it, and all that those may use.
use strict;
use warnings;

my $build = $ENV{SYMWIN_BUILD} // 'build';

# A room, and the rooms that it may use. Its files are in src/ROOM.
my @rooms = (
    ['base',       ''],
    ['driver',     'base'],
    ['memory',     'driver'],
    ['control',    'driver'],
    ['bootstrap',  'control'],
    ['window',     'memory control'],
    ['collective', 'window'],
    ['channel',    'window'],
    ['rails',      'bootstrap collective'],
    ['inspect',    'rails channel'],
    ['top',        'rails channel'],
);

# Files in the root, which a reader opens first, and objects made by tools/embed.sh, which have no
# folder.
my %elsewhere = (
    'vmm_alloc.c' => 'memory',
    'multicast.c' => 'window',
    'symwin.c'    => 'top',
    'fatbins'     => 'driver',
    'tables'      => 'collective',
);

# Defined in a higher room by intention: called once a process has loaded the driver
# (src/driver/driver.h).
my %hooks = (sw_hook_driver_loaded => 'inspect');

my %may;
for my $row (@rooms) {
    my ($room, $uses) = @$row;
    $may{$room} = {$room => 1, map { %{$may{$_}} } split ' ', $uses};
}

# The room of a source file, or of an object's name without its suffix.
sub room_of {
    my ($file) = @_;
    return $1 if $file =~ m{^src/(\w+)/};
    return $elsewhere{$file};
}

my ($checks, $failed) = (0, 0);

sub check {
    my ($right, $what, @why) = @_;
    $failed++ if !$right;
    printf "%sok %d - %s\n", $right ? '' : 'not ', ++$checks, $what;
    print "# $_\n" for @why;
}

my @objects = glob "$build/obj/*.o $build/obj/src/*/*.o";
if (!@objects) {
    print "1..0 # SKIP nothing is built in $build\n";
    exit 0;
}
if (!grep { -x "$_/nm" } split /:/, $ENV{PATH}) {
    print "1..0 # SKIP there is no nm\n";
    exit 0;
}

my (%definer, %wanted);
my @unknown;
for my $object (@objects) {
    (my $file = $object) =~ s{^\Q$build\E/obj/(.*)\.o$}{$1};
    next if $file =~ m{\.c$} && !-e $file; # its source is gone
    if (!$may{room_of($file) // ''}) {
        push @unknown, "$file is in no room";
        next;
    }
    open my $nm, '-|', 'nm', '-P', $object or die "nm: $!\n";
    while (my $line = <$nm>) {
        my ($name, $kind) = split ' ', $line;
        if ($kind eq 'U') {
            $wanted{$file}{$name} = 1;
        } elsif ($kind =~ /^[TDBRCVW]$/) {
            $definer{$name} = $file;
        }
    }
    close $nm or die "nm $object failed\n";
}
check(!@unknown, 'each file is in a room', @unknown);
check(keys %definer > 300, 'the objects define what the library has', 'symbols: ' . keys %definer);

my %up;
for my $file (sort keys %wanted) {
    for my $name (sort keys %{$wanted{$file}}) {
        my $definer = $definer{$name} or next;
        my ($from, $to) = (room_of($file), room_of($definer));
        next if $may{$from}{$to} || ($hooks{$name} // '') eq $to;
        push @{$up{$from}}, "$file calls $name() of $definer";
    }
}
check(!$up{$_->[0]}, "$_->[0] calls no room above it", @{$up{$_->[0]} // []}) for @rooms;

# Files of one room that call each other. In these rooms calls go one way.
my @one_way = qw(base driver memory control bootstrap window);
my %calls;
for my $file (keys %wanted) {
    for my $name (keys %{$wanted{$file}}) {
        my $definer = $definer{$name} or next;
        $calls{$file}{$definer} = $name if $definer ne $file && room_of($definer) eq room_of($file);
    }
}

sub reaches {
    my ($from, $to, $seen) = @_;
    return 1 if $from eq $to;
    return 0 if $seen->{$from}++;
    return scalar grep { reaches($_, $to, $seen) } keys %{$calls{$from}};
}

my %circles;
for my $file (sort keys %calls) {
    for my $callee (sort keys %{$calls{$file}}) {
        push @{$circles{room_of($file)}}, "$file calls $calls{$file}{$callee}() of $callee, which "
            . "leads back" if reaches($callee, $file, {});
    }
}
check(!$circles{$_}, "files of $_ call each other one way", @{$circles{$_} // []}) for @one_way;

# Only the public header of another room may be included. inspect reads all rooms.
my %includes;
for my $path (glob 'src/*/*.[ch] *.c') {
    my $from = room_of($path);
    open my $file, '<', $path or die "$path: $!\n";
    while (my $line = <$file>) {
        next if $line !~ m{^\s*#\s*include\s+"(src/(\w+)/(\w+)\.h)"};
        my ($header, $to, $name) = ($1, $2, $3);
        push @{$includes{$from}}, "$path includes $header of a room above" if !$may{$from}{$to};
        push @{$includes{$from}}, "$path includes $header, which is not $to.h"
            if $from ne $to && $name ne $to && $from ne 'inspect';
    }
    close $file;
}
check(!$includes{$_->[0]}, "$_->[0] includes public headers of rooms below",
    @{$includes{$_->[0]} // []}) for @rooms;

# The driver's interface may be longer.
my %tables = map { $_ => 1 } 'src/driver/cuda_abi.h', 'src/driver/driver_list.h';
my @long;
for my $path ('symwin.h', grep { !$tables{$_} } glob 'src/*/*.h') {
    open my $file, '<', $path or die "$path: $!\n";
    my $lines = () = <$file>;
    push @long, "$path has $lines lines" if $lines > ($path eq 'symwin.h' ? 399 : 200);
}
check(!@long, 'no private header has more than 200 lines, and symwin.h under 400', @long);

print "1..$checks\n";
exit $failed ? 1 : 0;
