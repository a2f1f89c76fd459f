#!/usr/bin/env perl
# The library's rooms: who may call whom, read from the objects by nm, and whose private headers a file includes. A room is
# a set of files; it may use the rooms named behind it, and all that those may use.
use strict;
use warnings;
use File::Basename qw(basename);

my $build = $ENV{SYMWIN_BUILD} // 'build';

# Room, what it may use, its files.
my @rooms = (
    ['base', '', 'error types sha256 tickets service closer settings'],
    ['driver', 'base', 'check driver device fatbins'],
    ['memory', 'driver', 'physical carve pool place share vmm_alloc torch'],
    ['control', 'driver', 'page exchange wire stream links letters group comm report'],
    [
        'bootstrap', 'control',
        'id id_file unique_id environment launcher claim door root handout knock arrivals bootstrap join'
    ],
    [
        'window', 'memory control',
        'segment multicast attach window registry cache register register_call register_nccl connect handles'
    ],
    ['collective', 'window', 'collective choice tuning tables copies order launch graph_launch'],
    ['channel', 'window', 'channel channel_meet'],
    ['inspect', 'bootstrap collective channel', 'dump listen'],
    ['top', 'bootstrap collective channel', 'symwin'],
);

# Defined above by intention: what begins when a process has a driver (driver.h).
my %hooks = (sw_hook_driver_loaded => 'inspect');

my (%room_of, %may);
for my $row (@rooms) {
    my ($room, $uses, $files) = @$row;
    $room_of{$_} = $room for split ' ', $files;
    $may{$room} = {$room => 1, map { %{$may{$_}} } split ' ', $uses};
}

my ($checks, $failed) = (0, 0);

sub check {
    my ($right, $what, @why) = @_;
    $failed++ if !$right;
    printf "%sok %d - %s\n", $right ? '' : 'not ', ++$checks, $what;
    print "# $_\n" for @why;
}

my @objects = glob "$build/obj/*.o";
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
    (my $file = basename $object) =~ s/(\.c)?\.o$//;
    if (!$room_of{$file}) {
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
        my ($from, $to) = ($room_of{$file}, $room_of{$definer});
        next if $may{$from}{$to} || ($hooks{$name} // '') eq $to;
        push @{$up{$from}}, "$file.c calls $name() of $definer.c, in $to";
    }
}
check(!$up{$_->[0]}, "$_->[0] calls no room above it", @{$up{$_->[0]} // []}) for @rooms;

print "1..$checks\n";
exit $failed ? 1 : 0;
