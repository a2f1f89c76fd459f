#!/usr/bin/env perl
# symwin-info on the emulated driver: text and JSON report the configured machine, trial objects are
# gone, exit statuses, refused arguments; folders, limits and IMEX as set up here; dumps of
# symwin_dump(), whole or cut; what a running process reports, and why one does not.
use strict;
use warnings;
use File::Temp qw(tempdir);
use IO::Socket::UNIX;
use IPC::Open2;
use JSON::PP;
use POSIX ();
use Test::More;

require './tests/helpers/files.pl';

my $build     = $ENV{SYMWIN_BUILD} || 'build';
my $info      = "$build/symwin-info";
my $folder    = tempdir('/tmp/sw.XXXXXX', CLEANUP => 1);
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;
my $python    = `python3 -c 'print(1)' 2>/dev/null`;
delete @ENV{'XDG_RUNTIME_DIR', grep { /^SYMWIN_NCCL/ } keys %ENV};
mkdir "$folder/tmp";
$ENV{TMPDIR} = "$folder/tmp";

# Runs symwin-info with `arguments`, after `before` in a shell of its own, for limits. Returns the
# exit status and both outputs.
sub info {
    my ($before, $arguments) = @_;
    my $output = 
      `export SYMWIN_DRIVER=emu; sh -c '$before exec timeout 60 $info $arguments' 2>$folder/stderr`;
    return ($? >> 8, $output, slurp("$folder/stderr"));
}

# The same with --json; returns the decoded facts.
sub facts {
    my ($before, $arguments, $want) = @_;
    my ($status, $output, $error) = info($before, "$arguments --json");
    my $facts = eval { decode_json($output) };
    ok($status == ($want // 0) && defined $facts && $error eq '',
        "$before $arguments --json: exit status, and parses")
      or diag("exit status $status\n$@$output$error");
    return $facts // {};
}

# ---- the machine --------------------------------------------------------------------------------

my $facts = facts('SYMWIN_EMU_DEVICES=3 SYMWIN_EMU_MEM=4G SYMWIN_EMU_OLD=1', '');
my @devices = @{ $facts->{devices} };
my ($version) = slurp('symwin.h') =~ /#define SYMWIN_VERSION "(.*)"/;
is($facts->{driver}{name}, 'emu', 'driver');
is($facts->{driver}{libsymwin}, $version, 'version of the library');
ok($facts->{driver}{kernels} && $facts->{driver}{version} >= 12000, 'kernels and version');
is(scalar @devices, 3, 'devices');
is("@{[map { $_->{ordinal} } @devices]}", '0 1 2', 'their ordinals');
is("@{[map { $_->{total_bytes} >> 30 } @devices]}", '4 4 4', 'memory');
is("@{[map { $_->{capability} } @devices]}", '90 90 80', 'compute capability');
is("@{[map { $_->{multicast} + 0 } @devices]}", '1 1 0', 'multicast attribute');
is("@{[map { $_->{multicast_granularity} // 'none' } @devices]}",
    '2097152 2097152 none', 'and granularity');
is("@{[map { $_->{granularity} } @devices]}", '2097152 2097152 2097152', 'granularity');
is(scalar(keys %{ { map { $_->{uuid} => 1 } @devices } }), 3, 'UUIDs differ');
like($devices[1]{uuid}, qr/^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/,
    'and look as nvidia-smi has them');
is(scalar(grep { $_->{usable} && $_->{kernels} && !defined $_->{problem} } @devices),
    3, 'all can be used');
is(scalar(grep { $_->{vmm} && $_->{posix_fd}{works} && $_->{posix_fd}{tried} } @devices),
    3, 'descriptors work');
is(scalar(grep { $_->{access} && $_->{p2p_access} && $_->{p2p_atomics} && $_->{p2p_rank} == 0 }
        @{ $facts->{links} }),
    6, 'all pairs are peers');
ok($facts->{usable}, 'so the machine can be used');

my @fabric = (
    [0, 0, 0, 0, 'attribute no, not tried'],
    [1, 1, 1, 0,
        'attribute yes, tried: cuMemCreate gave CUDA_ERROR_NOT_PERMITTED (no IMEX channel?)'],
    [2, 1, 1, 1, 'attribute yes, tried: works'],
);
for (@fabric) {
    my ($kind, $attribute, $tried, $works, $words) = @$_;
    my $handles = facts("SYMWIN_EMU_DEVICES=1 SYMWIN_EMU_FABRIC=$kind", '')->{devices}[0]{fabric};
    is(join(' ', map { $handles->{$_} + 0 } qw(attribute tried works)),
        "$attribute $tried $works", "fabric $kind");
    is($handles->{words}, $words, "fabric $kind in words");
    my ($status, $output) = info("SYMWIN_EMU_DEVICES=1 SYMWIN_EMU_FABRIC=$kind", '');
    like($output, qr/^ +fabric handles: \Q$words\E$/m, "fabric $kind in the report");
    is($status, 0, 'which symwin can do without');
}

$facts = facts('SYMWIN_EMU_DEVICES=2 SYMWIN_EMU_MULTICAST=0 SYMWIN_EMU_STRANGERS=1', '');
is(scalar(grep { $_->{multicast} || defined $_->{multicast_granularity} } @{ $facts->{devices} }),
    0, 'no multicast');
is(scalar(grep { $_->{access} || $_->{p2p_access} } @{ $facts->{links} }), 0, 'strangers');

sub words {
    my ($before, $name, @want) = @_;
    my ($status, $output, $error) = info($before, '');
    like($output, $_, "$name: $_") for @want;
    is($error, '', "$name: nothing on stderr");
    return $output;
}

my $alike = '0-1: each symwin emulated GPU, 4 GiB, \d+ multiprocessors, compute capability 9\.0\n';
my $details = '(?:     .*\n)+     UUID of 0: \S+\n     UUID of 1: \S+\n';
words('SYMWIN_EMU_DEVICES=3 SYMWIN_EMU_MEM=4G SYMWIN_EMU_OLD=1', 'words',
    qr/^  emu, version \d+\.\d+, 3 devices\n  libsymwin \Q$version\E, which has kernels for it$/m,
    qr/^  $alike$details  2: /m,
    qr/^  2: symwin emulated GPU, 4 GiB, \d+ multiprocessors, compute capability 8\.0$/m,
    qr/^     POSIX descriptors: attribute yes, tried: works$/m,
    qr/^     multicast: attribute yes; granularity 2 MiB, recommended 512 MiB$/m,
    qr/^     multicast: attribute no$/m,
    qr/^        1 yes   - yes$/m,
    qr/^  All are peers/m,
    qr/^  All links: access yes, native atomics yes, performance rank 0$/m,
    qr/^  2 of 3 devices claim it\n  the library would use it here/m,
    qr/^symwin can use every device\.$/m);
like(words('SYMWIN_EMU_DEVICES=8', 'devices that are alike',
        qr/^  0-7: each symwin emulated GPU, 8 GiB/m),
    qr/\A(?!.*POSIX descriptors.*POSIX descriptors)/s, 'are described once');
is((info('', '--version'))[1], "symwin-info (symwin) $version\n", '--version');
words('SYMWIN_EMU_DEVICES=3 SYMWIN_EMU_STRANGERS=1', 'strangers',
    qr/^        1  no   -  no$/m, qr/^  6 of 6 pairs are no peers/m);
words('SYMWIN_EMU_DEVICES=1', 'one device', qr/^  emu, version \S+, 1 device$/m,
    qr/^  There is one device/m,
    qr/^  the library would not use it here: it takes two devices that claim it$/m);

# ---- what cannot be used ------------------------------------------------------------------------

my ($status, $output, $error) = info('SYMWIN_DRIVER=other', '');
is($status, 1, 'no driver: exit status');
like($output, qr/^  none: SYMWIN_DRIVER is "other"/m, 'no driver: why');
like($output, qr/^symwin cannot use every device/m, 'no driver: the last line');
$facts = facts('SYMWIN_DRIVER=other', '', 1);
like($facts->{driver}{problem}, qr/SYMWIN_DRIVER is "other"/, 'no driver: JSON');
ok(!$facts->{usable} && @{ $facts->{devices} } == 0, 'no driver: no devices');
is((info('SYMWIN_EMU_DEVICES=0', ''))[0], 1, 'a machine without devices');

# Variables that only the creation of a communicator reads: all that are wrong are named.
my $valid = facts('SYMWIN_EMU_DEVICES=1 SYMWIN_TIMEOUT_MS=7 SYMWIN_TUNING=0', '');
is_deeply($valid->{wrong_variables}, [], 'variables: none is wrong');
$valid = facts('SYMWIN_EMU_DEVICES=1 SYMWIN_ADDR=127.0.0.1', '');
is_deeply($valid->{wrong_variables}, [], 'variables: nor is an address');
is(join(' ', glob "$folder/tmp/*/*"), '', 'variables: nothing is left of the id');
spew("$folder/table", "a,b\n");
for (["SYMWIN_TUNING=$folder/none", 'SYMWIN_TUNING cannot be read: No such file'],
    ["SYMWIN_TUNING=$folder/table", "$folder/table"],
    ['SYMWIN_NVLS=7 SYMWIN_TIMEOUT_MS=x SYMWIN_HOST_ID=', 'SYMWIN_NVLS is "7"',
        'SYMWIN_TIMEOUT_MS is "x"', 'SYMWIN_HOST_ID is ""'],
    ['SYMWIN_RANK=9 SYMWIN_NRANKS=4', 'SYMWIN_RANK is "9"'],
    ['SYMWIN_PORT=x', 'SYMWIN_PORT is "x"'],
    ["SYMWIN_GRAPH_LAUNCH=2 SYMWIN_TUNING=$folder/none SYMWIN_RANK=1 SYMWIN_NRANKS=x",
        'SYMWIN_GRAPH_LAUNCH is "2"', 'SYMWIN_TUNING cannot', 'SYMWIN_NRANKS is "x"'])
{
    my ($before, @want) = @$_;
    ($status, $output) = info("SYMWIN_EMU_DEVICES=1 $before", '');
    is($status, 1, "$before: exit status");
    is(scalar(() = $output =~ /^  WRONG: /mg), @want, "$before: all are named");
    like($output, qr/^  WRONG: .*\Q$_\E/m, "$before: $_") for @want;
    like($output, qr/^No communicator can be created with these variables/m, 'the last line');
    $facts = facts("SYMWIN_EMU_DEVICES=1 $before", '', 1);
    ok(!$facts->{usable} && @{ $facts->{wrong_variables} } == @want, 'and in JSON');
}

# Those of libsymwin-nccl.so: wrong values, and names that nothing reads.
my $right = 'SYMWIN_NCCL=x SYMWIN_NCCL_SERVE=auto,reduce=all SYMWIN_NCCL_MEMORY=1M '
  . 'SYMWIN_NCCL_REPORT=1 SYMWIN_NCCL_PEERS=0';
is_deeply(facts("SYMWIN_EMU_DEVICES=1 $right", '')->{wrong_variables}, [], 'NCCL: none is wrong');
for (['SYMWIN_NCCL_SREVE=all SYMWIN_NCCL_MEM=', 'SYMWIN_NCCL_SREVE is none of symwin',
        "SYMWIN_NCCL_MEM is none of symwin's: those are SYMWIN_NCCL_PEERS, SYMWIN_NCCL_SERVE, "
          . 'SYMWIN_NCCL_MEMORY, SYMWIN_NCCL_REPORT, SYMWIN_NCCL'],
    ['SYMWIN_NCCL_SERVE=allg=none SYMWIN_NCCL=', 'SYMWIN_NCCL_SERVE is "allg=none"',
        'SYMWIN_NCCL is "": set it to the path of libnccl.so.2, or unset it'],
    ['SYMWIN_NCCL_MEMORY=1K SYMWIN_NCCL_REPORT=2 SYMWIN_NCCL_PEERS=no',
        'SYMWIN_NCCL_MEMORY is "1K"', 'SYMWIN_NCCL_REPORT is "2"', 'SYMWIN_NCCL_PEERS is "no"'])
{
    my ($before, @want) = @$_;
    ($status, $output) = info("SYMWIN_EMU_DEVICES=1 $before", '');
    is($status, 1, "$before: exit status");
    is(scalar(() = $output =~ /^  WRONG: /mg), @want, "$before: all are named");
    like($output, qr/^  WRONG: \Q$_\E/m, "$before: $_") for @want;
    like($output, qr/^symwin can use every device, but variables for programs on NCCL are wrong/m,
        'the last line');
    $facts = facts("SYMWIN_EMU_DEVICES=1 $before", '', 1);
    ok(!$facts->{usable} && @{ $facts->{wrong_variables} } == @want, 'and in JSON');
}
$output = (info('SYMWIN_DRIVER=other SYMWIN_NVLS=7', ''))[1];
like($output, qr/^  WRONG: SYMWIN_NVLS is "7"/m, 'also without a driver');

# One descriptor more than every process has: memory takes it, and none is left for the export.
if (!$sanitized) {
    ($status, $output) = info('ulimit -n 4;', '');
    is($status, 1, 'no descriptors: exit status');
    my $problem = 'NOT USABLE: memory that can be exported as a descriptor';
    like($output, qr/^     $problem: .*cuMem\w+ gave CUDA_ERROR/m,
        'no descriptors: why');
    $facts = facts('ulimit -n 4;', '', 1);
    is(scalar(grep { $_->{usable} || $_->{posix_fd}{works} || !$_->{problem} }
            @{ $facts->{devices} }), 0, 'no descriptors: JSON');
}

# ---- the system ---------------------------------------------------------------------------------

sub limit {
    my ($name, $facts) = @_;
    return (grep { $_->{name} eq $name } @{ $facts->{limits} })[0];
}

$facts = facts('ulimit -n 50;', '');
is(limit('RLIMIT_NOFILE', $facts)->{value}, 50, 'limit of descriptors');
like(limit('RLIMIT_NOFILE', $facts)->{warning}, qr/^\d+ are left/, 'is low');
$facts = facts('ulimit -n 1000;', '');
is(limit('RLIMIT_NOFILE', $facts)->{warning}, undef, 'or is not');
ok(limit('vm.max_map_count', $facts)->{value} >= limit('vm.max_map_count', $facts)->{used},
    'mappings are counted');
chomp(my $overcommit = slurp('/proc/sys/vm/overcommit_memory'));
is(limit('vm.overcommit_memory', $facts)->{value} // '', $overcommit, 'overcommit');
if (!$sanitized) {
    $facts = facts('ulimit -v 60000000;', '');
    is(limit('RLIMIT_AS', $facts)->{value}, 60000000 * 1024, 'limit of addresses');
    like(limit('RLIMIT_AS', $facts)->{warning}, qr/a communicator on all devices takes 72 GiB/,
        'is low');
}

sub folders {
    my ($before, $want, $name) = @_;
    my $facts = facts("$before SYMWIN_EMU_DEVICES=1", '');
    my @said = map {
        ($_->{used} ? 'used' : $_->{usable} ? 'usable' : defined $_->{folder} ? 'bad' : 'unset')
    }
      @{ $facts->{folders} };
    is("@said", $want, "folders: $name");
    return $facts->{folders};
}

folders('', 'used unset usable', 'TMPDIR');
is(join(' ', glob "$folder/tmp/* $folder/tmp/.??*"), '', 'nothing is left in it');
folders("XDG_RUNTIME_DIR=$folder TMPDIR=$folder/none", 'bad used usable', 'XDG_RUNTIME_DIR');
like(folders("TMPDIR=$folder/none", 'bad unset used', 'none')->[0]{words}, qr/No such file/,
    'folders: why not');
my $long = "$folder/" . 'x' x 60;
mkdir $long;
like(folders("TMPDIR=$long", 'bad unset used', 'too long')->[0]{words}, qr/too long/,
    'folders: too long');
mkdir "$folder/open";
mkdir "$folder/open/symwin-$>";
chmod 0755, "$folder/open/symwin-$>";
like(folders("TMPDIR=$folder/open", 'bad unset used', 'open to others')->[0]{words},
    qr/this user alone/,
    'folders: open to others, why');

my $root = "$folder/root";
my $none = facts('', "--root $root")->{imex};
ok(!$none->{channels_folder} && $none->{channel_count} == 0 && !$none->{nodes_config}, 'no IMEX');
mkdir $_ for $root, "$root/dev", "$root/etc", "$root/etc/nvidia-imex",
  "$root/dev/nvidia-caps-imex-channels";
spew("$root/dev/nvidia-caps-imex-channels/$_", '') for qw(channel10 channel2 other);
symlink '/nowhere', "$root/dev/nvidia-caps-imex-channels/channel0";
spew("$root/etc/nvidia-imex/nodes_config.cfg", "# a comment\n10.0.0.1\n\n10.0.0.2\n");
my $imex = facts('', "--root $root")->{imex};
is(join(' ', map { "$_->{name}:" . ($_->{usable} + 0) } @{ $imex->{channels} }),
    'channel0:0 channel2:1 channel10:1', 'channels');
is($imex->{nodes}, 2, 'nodes');
($status, $output) = info('', "--root $root");
like($output, $_, "IMEX: $_")
  for qr/has 3 channels$/m, qr/^    channel0: NOT for this process/m,
  qr/^    channel2: can be read and written$/m,
  qr/nodes_config.cfg names 2 nodes$/m;

# ---- the command line ---------------------------------------------------------------------------

for (['--other', qr/unknown: --other/], ['-j', qr/unknown/], ['word', qr/unknown: word/],
    ['--root', qr/missing/],
    ['--show', qr/missing/], ['--pools --show x', qr/different things/], ['--pid', qr/missing/],
    ['--pid 1 --pools', qr/different things/], ['--pid 1 --show x', qr/different things/],
    (map { ["--pid $_", qr/takes the number of a process, not \Q$_\E;/] }
            '0', '-1', 'x', '7x', '99999999999'),
    ['--table', qr/--table is for/], ['--pid 1 --root /', qr/--root/],
    ['--root / --pools', qr/--root/],
    ['--json --nothing', qr/unknown/]) {
    my ($arguments, $want) = @$_;
    my ($status, $output, $error) = info('', $arguments);
    is("$status$output", '2', "$arguments: exit status, and no output");
    like($error, $want, "$arguments: why");
}
($status, $output, $error) = info('', '--help');
ok($status == 0 && $error eq '', '--help');
like($output, qr/^ +\Q$_\E /m, "--help names $_")
  for qw(--json --root --pid --table --pools --show --help);
for ('', '--json', '--help', '--version') {
    my ($status, $output, $error) = info('', "$_ >/dev/full");
    is("$status$error",
        "1symwin-info: its output cannot be written: No space left on device\n",
        "symwin-info $_ >/dev/full");
}
is((info('SYMWIN_DRIVER=other', '--help'))[0], 0, '--help needs no driver');

# ---- dumps --------------------------------------------------------------------------------------

my $lines = facts('SYMWIN_EMU_DEVICES=1', '--pools');
my %counts;
$counts{ $_->{what} }++ for ref $lines eq 'ARRAY' ? @$lines : ();
is(join(' ', map { "$_:$counts{$_}" } sort keys %counts),
    'alloc:3 arena:1 chunk:2 comm:1 device:1 range:1 symwin-dump:1 window:1', '--pools: lines');
my ($small) = grep { $_->{what} eq 'alloc' && $_->{asked} == 100 << 10 } @$lines;
is($small->{windows}, 1, '--pools: a window on an allocation');
is((grep { $_->{what} eq 'window' } @$lines)[0]{name}, $small->{name},
    '--pools: the window is there');
($status, $output) = info('SYMWIN_EMU_DEVICES=1', '--pools');
is($status, 0, '--pools: exit status');
like($output, $_, "--pools: $_")
  for qr/^Process \d+, libsymwin \Q$version\E$/m, qr/^Device 0: 3 allocations of/m,
  qr/^  chunk 0x\w+ on device 0, 64 MiB, suballocated, 2 allocations$/m,
  qr/^    0x\w+ +at +0: +1000 bytes in +1024, 0 windows$/m,
  qr/^Communicator 0, without a name: rank 0 of 1 on device 0, 1 windows/m;
is(join(' ', glob "$folder/tmp/*/*"), '', '--pools: nothing is left where processes meet');

my $dump =
  "symwin-dump 1 pid=7 version=9\ndevice 0 allocations=1 asked_bytes=5 later=x\nlater 3 a=1\n";
sub shown {
    my ($text, $want_status, $want_error, $name) = @_;
    spew("$folder/dump", $text);
    for my $json ('', '--json') {
        my ($status, $output, $error) = info('SYMWIN_DRIVER=other', "--show $folder/dump $json");
        is($status, $want_status, "$name $json: exit status");
        like($error, $want_error, "$name $json: what it says");
        ok(eval { decode_json($output) }, "$name: JSON all the same") if $json;
    }
}
shown("${dump}end lines=3\n", 0, qr/^$/, 'a dump of a later version');
shown($dump, 1, qr/a part of/, 'one without its end');
shown("${dump}end lines=4\n", 1, qr/a part of/, 'one with a line lost');
shown('symwin-dump 2 pid=7', 1, qr/not what/, 'another format');
shown('', 1, qr/dump is empty: give what symwin_dump\(\) wrote$/, 'nothing');
shown('symwin-dump 1 pid=7', 1, qr/a part of/, 'a cut head');
spew("$folder/dump", $dump =~ s/asked_bytes.*//sr);
for my $form ('', '--table', '--json') {
    ($status, $output, $error) = info('', "$form --show $folder/dump");
    is($status, 1, "a cut line $form: exit status");
    like($error, qr/a part of/, 'is said');
    unlike($output, qr/device/i, 'and not shown');
}
($status, $output, $error) = info('', "--show $folder");
is("$status$output", '1', 'a folder: exit status');
is($error, "symwin-info: $folder cannot be read: Is a directory\n", 'says so');
is((info('', '--show - </dev/null'))[2],
    "symwin-info: standard input is empty: give what symwin_dump() wrote\n", 'and no input');
shown("\n\n", 1, qr/not what/, 'empty lines');
shown("\0\xff\xfe" x 3000, 1, qr/not what/, 'no text');
shown("symwin-dump 1\n" . ('a' x 5000) . "\n", 1, qr/a part of/, 'a long line');
spew("$folder/dump",
    "symwin-dump 1 pid=7\e]0;owned\a\narena \e[31m flags=\x7f\xc2\x9b thread=a\nend lines=2\n");
for my $form ('', '--table') {
    ($status, $output) = info('', "$form --show $folder/dump");
    is($status, 0, "control characters $form: exit status");
    unlike($output, qr/[^\n -~]/, 'none is printed');
    like($output, qr/\Q7?]0;owned?\E.*\Q?[31m\E.*\Q???\E/s, 'the rest is');
}
is((info('', '--show - </dev/null'))[0], 1, 'standard input');
($status, $output, $error) = info('', "--show $folder/none");
is($status, 1, 'no such file: exit status');
like($error, qr/none cannot be read: No such file/, 'no such file: why');

# The tables of a dump: for each table its headings joined by commas, its number of rows, and the
# rows without all columns.
sub tables {
    my ($text) = @_;
    my (@tables, $columns);
    for (split /\n\n/, $text) {
        my ($heading, @rows) = map { [ split ' ' ] } split /\n/;
        push @tables,
          [ join(',', @$heading), scalar @rows, scalar(grep { @$_ != @$heading } @rows) ];
    }
    return @tables;
}
($status, $output) = info('SYMWIN_EMU_DEVICES=1', '--pools --table');
is($status, 0, '--table: exit status');
my @tables = tables($output);
is(join(' ', map { $_->[0] =~ s/,.*//r . ":$_->[1]" } @tables),
    'symwin-dump:1 device:1 arena:1 chunk:2 alloc:3 comm:1 window:1 range:1',
    '--table: one for each kind of line');
is(scalar(grep { $_->[2] } @tables), 0, '--table: rows have all columns');
is($tables[4][0], 'alloc,chunk,offset,asked,bytes,windows', '--table: columns');
spew("$folder/dump", $dump . "device 1 asked_bytes=6 allocations=2\nend lines=4\n");
($status, $output) = info('', "--show $folder/dump --table");
is($output, "symwin-dump  pid  version\n1              7        9\n\n"
      . "device  allocations  asked_bytes  later\n0                 1            5      x\n"
      . "1                 2            6      ?\n\nlater  a\n3      1\n",
    '--table: to the letter');
shown($dump, 1, qr/a part of/, 'a table without its end');

# ---- running processes --------------------------------------------------------------------------

# Starts a process with one allocation, a communicator and a window. Returns its pid and the pipe
# that ends it when closed.
sub start {
    my @settings = @_;
    my $pid = open2(my $from, my $to, 'env', 'SYMWIN_DRIVER=emu', @settings,
        "$build/tests/test_info_socket", 'hold');
    is(scalar <$from>, "ready\n", "a process with @settings");
    return ($pid, $to);
}

sub end {
    my ($pid, $to) = @_;
    close $to;
    waitpid $pid, 0;
    is($?, 0, 'which ends well');
}

my ($pid, $to) = start('SYMWIN_INFO=1');
$lines = facts('', "--pid $pid");
%counts = ();
$counts{ $_->{what} }++ for ref $lines eq 'ARRAY' ? @$lines : ();
is(join(' ', map { "$_:$counts{$_}" } sort keys %counts),
    'alloc:1 arena:1 chunk:1 comm:1 device:1 symwin-dump:1 window:1', '--pid: what it has');
is($lines->[0]{pid}, $pid, '--pid: and not what this program has');
($status, $output, $error) = info('SYMWIN_DRIVER=other', "--pid $pid");
is("$status$error", '0', '--pid: exit status, without a driver');
like($output, $_, "--pid: $_")
  for qr/^Process $pid, libsymwin \Q$version\E$/m, 
  qr/^    0x\w+ +at +0: +102400 bytes in +102400, 1 windows$/m,
  qr/^Communicator 0, without a name: rank 0 of 1 on device 0, 1 windows/m,
  qr/^  flat range at 0x\w+, \d+ \wiB for each rank$/m;
($status, $output) = info('', "--pid $pid --table");
is(join(':', @{ (tables($output))[-1] }),
    'window,comm,bytes,offset,transports,allocations:1:0', '--pid --table');
mkdir "$folder/other";
is((info("TMPDIR=$folder/other XDG_RUNTIME_DIR=", "--pid $pid"))[0], 0,
    'from where TMPDIR is another');
my $all =
  `for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do $info --pid $pid & done; wait`;
is(scalar(() = $all =~ /^Process $pid,/mg), 20, 'many at the same time');
is(join(' ', glob "$folder/tmp/symwin-$>/*"), "$folder/tmp/symwin-$>/info-$pid", 'its socket');
kill 'STOP', $pid;
for (1 .. 1000) { # stopping takes a moment
    last if slurp("/proc/$pid/stat") =~ /\) T /;
    select undef, undef, undef, 0.01;
}
($status, $output, $error) = info('', "--pid $pid");
is("$status$output", '1', 'a stopped process');
like($error,
    qr/process $pid does not answer within \d+ s: is it stopped \(kill -CONT $pid\)/, 'why');
kill 'CONT', $pid;
is((info('', "--pid $pid"))[0], 0, 'and when it goes on');
end($pid, $to);
is(join(' ', glob "$folder/tmp/symwin-$>/*"), '', 'nothing is left of its socket');

sub refused {
    my ($number, $want, $name) = @_;
    my ($status, $output, $error) = info('', "--pid $number");
    is("$status$output", '1', "$name: exit status, and no output");
    like($error, $want, "$name: why");
}
refused($pid, qr/there is no process $pid here/, 'no such process');
my $zombie = fork // BAIL_OUT("fork: $!");
POSIX::_exit(0) if !$zombie;
select undef, undef, undef, 0.05 until slurp("/proc/$zombie/stat") =~ /\) Z/;
refused($zombie, qr/there is no process $zombie here, or it has ended/, 'a process that has ended');
waitpid $zombie, 0;
{
    my $setting = 'SYMWIN_INFO=0';
    my ($other, $ends) = start($setting);
    refused($other,
        qr/process $other was not started with SYMWIN_INFO=1.*: set that, and start it again$/m,
        $setting);
    end($other, $ends);
}

# A process of this user or of another one that does not use symwin.
sub asleep {
    my ($user) = @_;
    my $sleeper = fork // BAIL_OUT("fork: $!");
    if (!$sleeper) {
        $ENV{SYMWIN_INFO} = 1;
        POSIX::setuid($user) if $user;
        exec 'sleep', '60';
    }
    select undef, undef, undef, 0.05 until slurp("/proc/$sleeper/comm") eq "sleep\n";
    return $sleeper;
}
my $sleeper = asleep(0);
refused($sleeper, qr/process $sleeper does not listen: it has not used symwin yet/,
    'a process without symwin');
{
    # A killed process had this pid, or a process in another PID namespace shares the folder.
    my $left = "$folder/tmp/symwin-$>/info-$sleeper";
    my $answers = IO::Socket::UNIX->new(Local => $left, Listen => 1) // BAIL_OUT("$left: $!");
    refused($sleeper, qr/process $sleeper does not listen:/,
        "another process's socket, by its number");
    close $answers;
    refused($sleeper, qr/process $sleeper does not listen:/, 'a socket that was left');
    unlink $left;
}
kill 'KILL', $sleeper;
waitpid $sleeper, 0;
SKIP: {
    skip 'only root can be another user', 2 if $>;
    $sleeper = asleep(65534);
    refused($sleeper,
        qr/process $sleeper is of user 65534, whom alone it answers: sudo -u '#65534'/,
        "another user's");
    kill 'KILL', $sleeper;
    waitpid $sleeper, 0;
}

# ---- checked by other programs ------------------------------------------------------------------

SKIP: {
    skip 'no python3', 2 unless $python;
    for ('', '--pools') {
        system("SYMWIN_DRIVER=emu $info --json $_ | python3 -m json.tool >/dev/null 2>&1");
        is($?, 0, "python3 parses --json $_");
    }
}

# A faulty multicast program can put a host's GPUs out of service: symwin-info has no call that
# creates or changes a multicast object.
is(join(' ', map { slurp($_) =~ /(cuMulticast(?!GetGranularity)\w+)/ ? "$_: $1" : () }
            glob 'tools/info/*'),
    '', 'only asks about multicast');

done_testing();
