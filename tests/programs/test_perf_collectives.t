#!/usr/bin/env perl
# symwin-perf --collective on the emulated driver: what each collective's table has, that wrong
# elements are found in each, and NCCL beside them, by a stand-in (tests/nccl/fake_collectives.c).
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build  = $ENV{SYMWIN_BUILD} || 'build';
my $perf   = "$build/bench/symwin-perf";
my $folder = tempdir(CLEANUP => 1);
my $sanitized = slurp("$build/flags") =~ /-fsanitize/; # a run takes many times as long
my @reducing = qw(allreduce reduce_scatter reduce reduce_scatterv reduce_scatterv_device);
my @unequal = qw(alltoallv allgatherv reduce_scatterv);
my @all = (qw(allreduce allgather alltoall broadcast gather scatter reduce_scatter reduce barrier),
    @unequal, 'sendrecv', map { "${_}_device" } @unequal);
my %is_unequal = map { ($_ => 1, "${_}_device" => 1) } @unequal;

sub perf {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$perf $arguments", 60);
}

# Expects a run without wrong elements, all of it checked. Returns the rows of its CSV file.
sub good {
    my ($environment, $arguments) = @_;
    my ($status, $output, $error) = perf($environment, "$arguments --csv $folder/rows.csv");
    ok($status == 0 && $output =~ /^# Wrong elements: 0 OK$/m && $output !~ /^# Not checked/m,
        "$arguments: is right")
      or diag("exit status $status\n$output$error");
    my @lines = grep { !/^#/ } split /\n/, slurp("$folder/rows.csv");
    my @names = split /,/, shift @lines // '';
    return map { my %row; @row{@names} = split /,/, $_, -1; \%row } @lines;
}

sub refused {
    my ($environment, $arguments, $want) = @_;
    my ($status, $output, $error) = perf($environment, $arguments);
    is($status, 2, "$arguments: exit status") or diag("$output$error");
    like($error, qr/\Asymwin-perf: [^\n]*$want[^\n]*\n\z/, 'says why');
}

# The factor of nccl-tests from the algorithm's to the bus bandwidth, for three ranks.
sub factor {
    my ($name) = @_;
    return 4 / 3 if $name eq 'allreduce';
    return $name =~ /^(broadcast|reduce|barrier|sendrecv)$/ ? 1 : 2 / 3;
}

# ---- one ---------------------------------------------------------------------------------------

for my $name ($sanitized ? qw(allgather reduce barrier alltoallv sendrecv) : @all) {
    for my $how ('-d bf16', $sanitized ? () : '-d i32 --window 0') {
        next if $name eq 'barrier' && $how =~ /window 0/;
        my @rows = good('', "-t 3 -b 96 -e 3072 -f 4 -n 2 $how --collective $name --in-place both");
        my ($type) = $how =~ /-d (\w+)/;
        my $want = join ' ',
          map { ("$_ $type out", $name eq 'sendrecv' ? () : "$_ $type in") } 96, 384, 1536;
        $want = '0 none out' if $name eq 'barrier';
        is(join(' ', map { "$_->{bytes} $_->{type} $_->{placement}" } @rows), $want,
            'sizes are those of the larger buffer');
        for (@rows) {
            is("$_->{collective} $_->{op}",
                "$name " . ((grep { $name eq $_ } @reducing) ? 'sum' : 'none'),
                'what was called');
            next if $_->{bytes} == 0;
            cmp_ok(abs($_->{busbw_gbs} / $_->{algbw_gbs} - factor($name)), '<', 1e-4,
                'the bus bandwidth of nccl-tests');
            my $parts = $_->{bytes} / $_->{count} / ($type eq 'bf16' ? 2 : 4);
            is($parts, $name =~ /^(allreduce|broadcast|reduce|sendrecv)$/ ? 1 : 3, 'and its count');
        }
    }
    # Without its barrier the check is a race, at which ThreadSanitizer ends the program.
    next if $sanitized && $name eq 'barrier';
    my ($status, undef, $error) =
      perf('SYMWIN_PERF_BREAK=idle', "-t 2 -b 64 -e 64 -n 1 --collective $name");
    is($status, 1, "what the last repetition did not do in $name: exit status");
    like($error, qr/^symwin-perf: rank \d: auto, \w+ \w+, \d+ bytes out of place: \d+ wrong;/m,
        'is found');
}

# Without its barrier, rank 0 reads too early every time, and rank 1 never, since rank 1 comes late.
# On a busy machine rank 0 may be later.
unless ($sanitized) {
    my $who = '';
    for (1 .. 3) {
        my (undef, undef, $error) =
          perf('SYMWIN_PERF_BREAK=idle', '-t 2 -n 1 --collective barrier --algo all');
        $who = join ' ', $error =~ /^symwin-perf: rank (\d):/mg;
        last if $who eq '0 0';
    }
    is($who, '0 0', 'a barrier that does not wait is found, not by chance');
}

my ($status, $output) = perf('', '-t 2 --collective barrier --window 0');
like($output, qr/^# Not checked: 1 of 1 results$/m, "without windows, a barrier's row says N/A");

# ---- several -----------------------------------------------------------------------------------

my @rows = good('', '-t 3 -b 96 -e 96 -n 1 -G 1 --collective all');
is(join(' ', map { $_->{collective} } @rows), "@all", 'all, each in turn');
($status, $output) =
  perf('', '-t 3 -b 96 -e 96 -n 1 -G 1 -r 2 --collective reduce,barrier,scatter');
is(join(' ', $output =~ /^# collective: (\w+)$/mg), 'reduce barrier scatter',
    'tables are in the order that was asked for');
is(join(' ', $output =~ /^ +\d+ +\d+ +\w+ +\w+ +(-?\d+) auto/mg), '2 -1 2', 'with the root');
is(join(' ', $output =~ /^# Avg bus bandwidth of (\w+): [\d.e-]+$/mg), 'reduce scatter',
    'and a mean of each that has one');
good('', '-t 3 -b 96 -e 384 -n 2 -d f16 -o sum,max --collective gather,scatter,broadcast,reduce '
      . '--in-place both -r 1');
for my $name ($sanitized ? () : qw(gather broadcast scatter reduce)) {
    ($status) = perf('SYMWIN_PERF_BREAK=idle', "-t 3 -b 96 -e 96 -n 1 -r 2 --collective $name");
    is($status, 1, "another root, no call of $name: is found");
}

SKIP: {
    skip 'no python3', 3 unless `python3 -c 'print(1)' 2>/dev/null`;
    perf('', "-t 2 -b 96 -e 384 -n 1 -G 1 --collective all --csv $folder/all.csv");
    my $plot = "python3 bench/plot.py --output $folder/a.svg $folder/all.csv --collective";
    my $said = `$plot all_gather 2>&1; $plot allgather 2>&1`;
    like($said,
        qr/\Aplot.py: no row has collective all_gather; there is collective allgather, [^\n]*\n\z/,
        'a picture of one of several is drawn');
    like(slurp("$folder/a.svg"), qr/all-gather, 2 ranks, f32, graph, out of place/,
        'with its name');
    like(`$plot barrier 2>&1`, qr/^plot.py: no row has collective barrier/,
        'a barrier has no sizes');
}

# Only algorithms that the collective has.
for (['reduce_scatter', 'auto oneshot twoshot'], ['allgather', 'auto oneshot copies put'],
    ['barrier', 'auto oneshot'], ['sendrecv', 'auto oneshot'])
{
    my ($name, $want) = @$_;
    @rows = good('', "-t 2 -b 1K -e 1K -n 1 -G 1 --algo all --collective $name");
    is(join(' ', map { $_->{algo} } @rows), $want, 'all of its algorithms');
}
@rows = good('', '-t 2 -b 1K -e 1K -n 1 -G 1 --algo put --collective all');
is(join(' ', map { $_->{collective} } @rows), 'allgather alltoall broadcast scatter',
    'and those collectives that have the algorithm');

refused('', '-t 2 --algo put', 'no collective that was selected has put');
refused('', '-t 2 --collective prefix',
    '--collective: unknown name "prefix"; names are allreduce allgather alltoall');
refused('', '-t 2 --collective barrier,reduce_scatterv_device --tune a',
    'what ends in _device has the rows of the same call without it');
refused('', '-t 2 --collective gather --against torch',
    'torch has allreduce, allgather and reduce_scatter only');
refused('', '-t 2 --collective all --kernel a.cu', 'the kernel says which collective it is');
refused('', '-t 2 --collective gather -r 2', '-r is 2, and there are 2 ranks');
refused('', '-t 2 --collective allgather,barrier -r 1', '-r is about collectives with a root');
refused('', '-t 2 --collective gather,barrier -o max', 'reduces nothing: leave out -o');
refused('', '-t 2 --collective barrier,sendrecv --tune a',
    'barrier and sendrecv have no choice to measure');
refused('', '-t 2 --collective reduce,barrier --tune a',
    'name only others by --collective, or all');
refused('', "-t 2 --collective $_ --in-place 1", 'a rank of sendrecv needs two: leave it out')
  for 'sendrecv', 'barrier', 'barrier,sendrecv';
refused('', '-t 2 --collective sendrecv -r 0', '-r is about collectives with a root');
refused('', '-t 2 --collective sendrecv --algo put', 'no collective that was selected has put');

# Every rank sends to the next one: one rank to itself, and in streams and processes too.
for ('-t 1', '-t 4 -G 0', '-t 2 -n 7 --group 3 --rotate 3',
    $sanitized ? () : '--nproc 3 --percentiles 2 --rotate 2')
{
    @rows = good('', "$_ -b 1K -e 64K -f 64 -n 2 --collective sendrecv");
    is(join(' ', map { "$_->{bytes} $_->{collective} $_->{blocks}" } @rows),
        '1024 sendrecv  65536 sendrecv ', 'sends and receives have no query');
}
{
    my ($status, undef, $error) =
      perf('SYMWIN_PERF_BREAK=1', '-t 3 -b 96 -e 96 -n 1 --collective sendrecv');
    is($status, 1, 'one wrong element: exit status');
    like($error, qr/^symwin-perf: rank 0: auto, f32 none, 96 bytes .* 1 wrong; element 12 is/m,
        'is found');
}

# Unequal parts: one rank has none, or sends itself nothing; in streams and processes, several pairs
# of buffers and groups too; every rank's output is checked, to its last element.
for ('-t 3 -b 64K --in-place both',
    $sanitized ? () : ('-t 1', '-t 4 -G 0', '-t 2 -n 7 --group 3 --rotate 3',
        '-t 5 -d i8,f64 -o sum,avg', '--nproc 3 --rotate 2'))
{
    my $collectives = join ',', @unequal, map { "${_}_device" } @unequal;
    good('', "-b 1K -e 64K -f 64 -n 2 $_ --collective $collectives");
}
for my $name (qw(alltoallv allgatherv reduce_scatterv_device)) {
    my ($status, undef, $error) =
      perf('SYMWIN_PERF_BREAK=1', "-t 3 -b 48 -e 48 -n 1 --collective $name");
    is($status, 1, "one wrong element of $name: exit status");
    like($error, qr/^symwin-perf: rank 0: auto, f32 \w+, 48 bytes .* 1 wrong; element \d+ is/m,
        'is found');
}
{
    my @rows = good('', '-t 3 -b 96 -e 1000 -i 37 -n 1 -G 1 -d u8 --collective alltoallv');
    is(join(' ', grep { $_ % 48 } map { $_->{bytes} } @rows), '',
        'shares are multiples of 16 bytes');
    @rows = good('', '-t 3 -b 12 -e 12 -n 1 -G 1 -d u8 --collective alltoallv,allgatherv_device');
    is(join(' ', map { $_->{count} } @rows), '4 4', 'or shorter');
}

# ---- NCCL --------------------------------------------------------------------------------------

SKIP: {
    skip 'no stand-in for NCCL: make tests has not run here', 1
      unless -e "$build/tests/nccl/older/libnccl.so.2";
    my ($nccl, $older) =
      map { 'SYMWIN_NCCL=' . abs_path("$build/tests/nccl/$_/libnccl.so.2") } qw(collectives older);
    my $against = '--against nccl,nccl-reg,nccl-window,nccl-plain --in-place both';

    # Before 2.28, sends and receives.
    for (['of today', $nccl, '-G 2'],
        $sanitized ? () : (['of today, streams', $nccl, '-G 0'], ['older', $older, '-G 1']))
    {
        my ($which, $environment, $how) = @$_;
        @rows = good($environment, "-t 3 -b 96 -e 96 -n 2 -r 1 $how --collective all $against");
        my %ways;
        for (@rows) {
            $ways{$_->{collective}}{$_->{algo}} .= $_->{placement};
            next if $_->{library} eq 'symwin';
            cmp_ok($_->{ratio}, '>', 0, "$which: $_->{collective}, $_->{algo}: a ratio");
        }
        for my $name (@all) {
            my $places = $name =~ /^(barrier|sendrecv)$/ ? 'out' : 'outin';
            my $theirs = $name =~ /^(alltoall|sendrecv)$/ ? 'out' : 'outin';
            my %want = (auto => $places);
            if ($name ne 'barrier' && !$is_unequal{$name}) {
                $want{$_} = $theirs for qw(nccl nccl-reg nccl-plain);
                $want{'nccl-window'} = $theirs unless $name =~ /^(broadcast|reduce)$/;
            }
            is_deeply($ways{$name}, \%want, "$which: $name: what NCCL has of it");
        }
    }
    for my $name ($sanitized ? 'gather' : grep { $_ ne 'barrier' && !$is_unequal{$_} } @all) {
        my ($status, $output, $error) = perf("FAKE_NCCL=wrong $nccl",
            "-t 2 -b 64 -e 64 -n 1 --collective $name --algo none --against nccl");
        is($status, 1, "wrong results of NCCL's $name: exit status");
        like($error, qr/rank \d: nccl, .* wrong; element \d+ is/, 'are found');
    }
    @rows = good($nccl, '-t 3 -b 96 -e 96 -n 1 -r 2 -G 0 -d f32 -o mulsum --algo none '
          . '--collective allreduce,reduce_scatter,reduce --against nccl,nccl-window');
    is(join(' ', map { "$_->{collective}:$_->{algo}" } @rows),
        'allreduce:nccl allreduce:nccl-window reduce_scatter:nccl reduce_scatter:nccl-window '
          . 'reduce:nccl', 'a pre-multiplied sum');
    @rows = good($nccl, '-t 3 -b 96 -e 96 -n 7 -G 1 --group 3 --rotate 3 --algo none '
          . '--collective allgather,reduce --against nccl-plain');
    is(join(' ', map { "$_->{collective}:$_->{algo}" } @rows),
        'allgather:nccl-plain reduce:nccl-plain', 'groups of NCCL\'s calls');
    refused($nccl, '-t 2 --group 2 --against nccl,torch',
        '--group groups calls of symwin and NCCL');
    refused($nccl, '-t 2 --collective barrier --against nccl',
        'no collective that was selected has nccl');
    refused($nccl, '-t 2 --collective broadcast,reduce --against nccl-window',
        'no collective that was selected has nccl-window');
}

# ---- PyTorch, by a stand-in for torchrun that prints rows of all collectives ---------------------

{
    my @printed = map {
        my ($way, $op, $count) = @$_;
        "torch,$way,f32,$op,96,$count,out,symmetric,graph,3,1,1,1e6,1,1,0,1,1,1,,"
    } ['torch-two-shot', 'sum', 24], ['torch-low-contention', 'none', 8],
      ['torch-reduce-scatter', 'sum', 8];
    spew("$folder/torchrun", join "\n", '#!/bin/sh', "echo \"\$*\" >>$folder/words",
        map { "echo $_" } @printed);
    chmod 0755, "$folder/torchrun" or die;
    @rows = good("SYMWIN_TORCHRUN=$folder/torchrun",
        '-t 3 -b 48 -e 96 -f 2 -n 1 -G 1 --collective all --algo auto --against torch');
    my @theirs = grep { $_->{library} eq 'torch' } @rows;
    is(join(' ', map { "$_->{collective}:$_->{algo}" } @theirs),
        'allreduce:torch-two-shot allgather:torch-low-contention '
          . 'reduce_scatter:torch-reduce-scatter',
        "PyTorch's rows, each of its own collective");
    cmp_ok($_->{ratio}, '>', 1, "$_->{algo}: the ratio to the same collective") for @theirs;
    my @runs = slurp("$folder/words") =~ /--sizes (\S+) .* --collective (\w+)$/mg;
    is("@runs", '48,96 allreduce 48,96 allgather 48,96 reduce_scatter', 'a run for each');
    unlink "$folder/words";
    perf("SYMWIN_TORCHRUN=$folder/torchrun",
        '-t 3 -b 32 -e 96 -f 3 -n 1 -G 1 --collective allgather --against torch');
    like(slurp("$folder/words"), qr/--sizes 96 /, 'parts of whole 16 bytes only');
}

done_testing();
