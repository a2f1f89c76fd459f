#!/usr/bin/env perl
# symwin-perf on the emulated driver: its output and files, the calls that it makes, that it finds a
# wrong element, what it refuses, and that it ends when something fails. Times are not checked: they
# are meaningless here.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use JSON::PP;
use Test::More;

require './tests/helpers/files.pl';

my $build  = $ENV{SYMWIN_BUILD} || 'build';
our $perf  = "$build/bench/symwin-perf";
my $folder = tempdir(CLEANUP => 1);

# Under a sanitizer a run takes many times as long.
my $flags     = slurp("$build/flags");
my $sanitized = $flags =~ /-fsanitize/;

# Under ThreadSanitizer, tests of single-threaded code are skipped.
my $threads = $flags =~ /-fsanitize=thread/;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub perf {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$perf $arguments", 60);
}

# The rows of the table, as lists of columns, less that of the root. Links have no type and no
# operation.
sub rows {
    my @rows = map { [split] } grep { /^ +\d/ } split /\n/, $_[0];
    splice @$_, 4, 1 for @rows;
    return @rows;
}

# Expects `rows` rows, or at least that many with "+", since the number of algorithms may change.
sub good {
    my ($environment, $arguments, $rows, $name) = @_;
    my ($status, $output, $error) = perf($environment, $arguments);
    my @rows = rows($output);
    my $enough = $rows =~ s/\+// ? @rows >= $rows : @rows == $rows;
    ok($status == 0 && $enough && $output =~ /^# Wrong elements: 0 OK$/m, $name || $arguments)
      or diag("exit status $status, " . @rows . " rows, $rows wanted\n$output$error");
    return @rows;
}

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output, $error) = perf($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag("$output$error");
    like($error, $want, "$name: says why");
    unlike($output, qr/OK$/m, "$name: claims no success");
}

# Runs that wait for a timeout are started early and run in parallel: [file, pipe].
my $runs = 0;

sub started {
    my ($environment, $arguments, $signal) = @_;
    my $errors = "$folder/stderr" . ++$runs;
    open my $run, '-|',
        "exec env SYMWIN_DRIVER=emu $environment timeout 60 $perf $arguments 2>$errors"
      or die;
    while (<$run>) {
        $signal and /^# rank 1: .*process (\d+)/ and $signal = [$signal, $1];
        last if /\(elements\)/; # the head's last line: it measures now
    }
    kill @$signal if ref $signal; # otherwise it has failed, as its status will show
    return ($errors, $run);
}

sub ended {
    my ($errors, $run) = @_;
    1 while <$run>;
    close $run;
    return ($? >> 8, slurp($errors));
}

my @died    = started('', '--nproc 3 -b 4K -e 4K -n 1 -G 1000', 'KILL');
my @stopped = started('', '--nproc 3 -b 4K -e 4K -n 1 -G 1000 --timeout 1', 'STOP');
my @stuck   =
    started('SYMWIN_PERF_BREAK=hang', "-t 2 -b 1K -e 1K --timeout 1 --csv $folder/stuck.csv", '');

# ---- the table ---------------------------------------------------------------------------------

my ($status, $output, $error) = perf('', '-t 2 -b 1K -e 4K -f 2 -n 2 --in-place both');
is($status, 0, 'a table: exit status') or diag($error);
like($output, qr/^# symwin-perf [\d.]+, commit \S+, \d{4}-\d\d-\d\dT/, 'says which tool, when');
like($output, qr/^# rank 1: device 1, symwin emulated GPU/m, 'and on which devices');
like($output, qr/^# ranks: 2 in 1 process; mode: graph, 2 repetitions/m, 'and how');
like($output, qr/^# p50, p99, max: of the repetitions/m, 'and what percentiles are of');
my @rows = rows($output);
is_deeply([map { $_->[0] } @rows], [1024, 2048, 4096], 'sizes by a factor');
is_deeply([map { $_->[1] } @rows], [256, 512, 1024], 'counts');
is_deeply([@{$rows[0]}[2 .. 4]], ['f32', 'sum', 'auto'], 'type, operation, algorithm');
is(scalar(@$_), 18, 'columns') for @rows;
for my $row (@rows) {
    ok($row->[5] > 0 && $row->[9] > 0 && $row->[13] > 0 && $row->[16] > 0,
        "$row->[0] bytes: times");
    like($row->[17], qr/^oneshot_sentinel:[1-9]\d*x[1-9]\d*$/,
        "$row->[0] bytes: what was launched");
    is("$row->[8] $row->[12]", '0 0', "$row->[0] bytes: nothing is wrong");
    ok($row->[13] <= $row->[14] && $row->[14] <= $row->[15], 'p50 <= p99 <= max');
}
@rows = good('', '-t 1 -g 3 -b 1000 -e 4001 -i 1500 -n 1 -d i64', 3, 'sizes by a step');
is(join(' ', map { $_->[0] } @rows), '1000 2496 4000', 'are these, cut to whole elements');
is($rows[0][9], '-', 'only out of place: no figures in place');
good('', '-t 2 -b 4 -e 8 -f 2 -d f64 -n 1', 1, 'a size below an element is passed over')
  unless $sanitized;

# ---- files -------------------------------------------------------------------------------------

($status, $output, $error) =
  perf('',
      "-t 3 -b 96 -e 192 -f 2 -n 2 -d bf16,i32 --csv $folder/a.csv --json $folder/a.json --link");
is($status, 0, 'files: exit status') or diag($error);
my $json = eval { local (@ARGV, $/) = "$folder/a.json"; decode_json(<>) };
ok($json, 'the JSON file is JSON') or diag($@);
is($json->{ranks}, 3, 'it has the ranks');
is(scalar @{$json->{devices}}, 3, 'and the devices');
is("$json->{mode} $json->{exit_status}", 'graph 0', 'and how it ran and ended');
like($json->{arguments}, qr/^-t 3 -b 96 /, 'and the arguments');
is(scalar @{$json->{results}}, 7, 'and a result a row');

my @lines = do { local @ARGV = "$folder/a.csv"; <> };
chomp @lines;
ok(6 <= grep({ /^# / } @lines), 'the CSV file has a head');
@lines = grep { !/^#/ } @lines;
my @names = split /,/, shift @lines;
is($names[12], 'time_us', 'its columns have names');
is(scalar @lines, 7, 'it has as many rows');
for my $i (0 .. $#lines) {
    my %row;
    @row{@names} = split /,/, $lines[$i], -1;
    my $result = $json->{results}[$i];
    is(scalar(split /,/, $lines[$i], -1), scalar @names, "row $i: all columns");
    is_deeply([@row{qw(collective library algo type op bytes count placement launched)}],
        [
            map { $_ // '' }
              @$result{qw(collective library algo type op bytes count placement launched)}
        ],
        "row $i: as in JSON");
    cmp_ok($row{time_us}, '==', $result->{time_us}, "row $i: and the time");
    my $factor = $row{library} eq 'link' ? 1 : 4 / 3;
    cmp_ok(abs($row{busbw_gbs} / $row{algbw_gbs} - $factor), '<', 1e-4, "row $i: bus bandwidth");
    cmp_ok(abs($row{bytes} / $row{time_us} / 1e3 / $row{algbw_gbs} - 1), '<', 1e-2,
        "row $i: and its");
    is($row{wrong}, 0, "row $i: is right");
}
is_deeply([map { (split /,/)[1] } @lines[4 .. 6]], [qw(link-engine link-stores link-spread)],
    'links come last');

# A file has a temporary name until the run is complete, so a run that fails keeps the old file.
is_deeply([sort glob "$folder/a.*"], ["$folder/a.csv", "$folder/a.json"], 'no draft is left');

FILES: {
last FILES if $threads;

my $kept = "--csv $folder/kept.csv --json $folder/kept.json";
spew("$folder/kept.$_", "of before\n") for 'csv', 'json';
refused('SYMWIN_TUNING=/nowhere', "-t 2 $kept", 1, qr/cannot be read/, 'files of a run that fails');
is_deeply([map { slurp($_) } sort glob "$folder/kept*"], ["of before\n", "of before\n"],
    'are those of before');
($status, $output, $error) =
    perf('', "-t 2 -b 1K -e 1K -n 1 -d f32,f64 --algo auto,rails $kept");
is($status, 1, 'files of a run that fails after a row: exit status');
is(slurp("$folder/kept.csv") . slurp("$folder/kept.json"), "of before\nof before\n",
    'are those of before');
my %draft = $error =~ /^symwin-perf: --(csv|json): partial results are in (\S+)$/mg;
is(scalar(() = slurp($draft{csv}) =~ /^symwin,auto,f32,/mg), 1, 'what was measured is kept beside');
$json = eval { decode_json(slurp($draft{json})) };
is("$json->{exit_status} $json->{results}[0]{algo}", '1 auto', 'in both') or diag($@);
($status) = perf('SYMWIN_PERF_BREAK=1', "-t 2 -b 1K -e 1K -n 1 $kept");
is($status, 1, 'wrong results: exit status');
$json = eval { decode_json(slurp("$folder/kept.json")) };
is("$json->{exit_status} $json->{results}[0]{wrong}", '1 2', 'are in the files') or diag($@);
($status, $output) = perf('', '-t 2 -b 1K -e 1K -n 1 --csv /dev/stdout');
ok($status == 0 && $output =~ /^symwin,auto,/m && -e '/dev/stdout', 'a device is written to');
SKIP: {
    skip 'no /dev/full', 6 unless -c '/dev/full';
    for ('--help >/dev/full', '-t 2 -b 1K -e 1K -n 1 >/dev/full',
        '-t 2 -b 1K -e 1K -n 1 --csv /dev/full') {
        ($status, undef, $error) = perf('', $_);
        is($status, 1, "$_: exit status");
        like($error, qr/cannot be written: No space left on device$/m, "$_: says why");
    }
}
}

# ---- the picture -------------------------------------------------------------------------------

SKIP: {
    skip 'no python3', 9 unless `python3 -c 'print(1)' 2>/dev/null`;
    my $said = `python3 bench/plot.py --all --output $folder/a.svg $folder/a.csv 2>&1`;
    is("$?$said", '0', 'a picture is drawn');
    my $picture = do { local (@ARGV, $/) = "$folder/a.svg"; <> };
    like($picture, qr{^<svg xmlns="http://www.w3.org/2000/svg".*</svg>\s*\z}s, 'it is SVG');
    like($picture, qr/all-reduce, 3 ranks, bf16 sum, graph, out of place/, 'with a title');
    like($picture, qr/link-(engine|stores|spread): \d/, 'and the limit of the links');
    is(scalar(() = $picture =~ /<polyline /g), 4, 'two lines a panel');
    is(scalar(() = $picture =~ /<circle /g), 8, 'with a dot a size');
    $said = `python3 bench/plot.py --type f64 --output $folder/b.svg $folder/a.csv 2>&1`;
    like($said, qr/^plot.py: no row has collective allreduce, type f64; there is type bf16, i32$/,
        'what is not there is said');
    $said = `python3 bench/plot.py --output $folder/b.svg $0 2>&1`;
    like($said, qr/^plot.py: .*not a row of symwin-perf/, 'and what is no table');
    $said = `env -u TORCH_SYMM_MEM_DISABLE_MULTICAST python3 bench/rivals/torch_symm.py 2>&1`;
    like($said, qr/set TORCH_SYMM_MEM_DISABLE_MULTICAST=1/, "torch's way refuses multicast");
}

# ---- the calls that it makes -------------------------------------------------------------------

if ($sanitized) {
    good('', '-t 3 -b 520 -e 520 -n 2 -G 1 -d f16,u8 -o sum,avg --algo all --in-place both', '12+',
        'types and operations');
} else {
    good('', '-t 3 -b 520 -e 520 -n 1 -w 0 -G 1 -d all -o all --algo all --in-place both', '180+',
        'all types, operations and algorithms');
    good('', '-t 2 -b 4K -e 4K -n 2 --rotate 5',                       1,
        'more buffers than calls');
    good('', '-t 2 -b 4K -e 4K -n 2 --blocks 2 --threads 40 --sm-limit 3 --seed 9', 1, 'grid');
    good('', '-t 1 -b 4K -e 4K -n 2',                                  1, 'one rank');
    @rows = good('', '-t 2 -b 4K -e 4K -n 2 --algo=none --link', 2, 'links alone');
    is(join(' ', map { $_->[4] } @rows), 'link-engine link-stores',
        'are two, where there is one peer');
    @rows = good('', '-t 2 -b 4K -e 4K -n 1 --algo all', '3+', 'all algorithms');
    my $algos = join ' ', map { $_->[4] } @rows;
    like($algos, qr/^auto oneshot twoshot\b/, 'are these');
    unlike($algos, qr/_mc/, 'less those that need multicast, which must be named');
    @rows = good('', '-t 3 -b 4K -e 4K -n 1 --algo oneshot_mc,twoshot_mc', 2, 'multicast');
    like(join(' ', map { $_->[4] } @rows), qr/^oneshot_mc twoshot_mc$/, 'as named');
}
good('', '-t 2 -b 2K -e 2K -n 3 -G 0 --rounds 3 --rotate 2 --in-place both', 1, 'stream launches');
for ('-G 2', $threads ? () : '-G 0 --rotate 3 --in-place 1') {
    my ($status, $output) =
        perf('', "-t 2 -b 256 -e 256 $_ -n 2 --percentiles 100 --csv $folder/calls.csv");
    like($output, qr/^# p50, p99, max: of 100 single calls/m, "percentiles of single calls, $_");
    my @row = split /,/,
        (slurp("$folder/calls.csv") =~ /^(symwin,.*)/m)[0] // ''; # to the nanosecond
    ok($status == 0 && $row[16] < $row[17] && $row[17] < $row[18],
        'have a 99th that is not the longest')
      or diag($output);
}
perf('',
    "-t 2 -b 1K -e 1K -n 63 -w 0 -G 0 --rounds 1 --algo oneshot,copies --csv $folder/calls.csv");
is(join(' ', slurp("$folder/calls.csv") =~ /^symwin,(\w+,)(?:[^,]*,){8}(\d+),/mg),
    'oneshot, 63 copies, 62',
    'no more copies than a stream holds');
good('', '-t 2 -b 4K -e 4K -n 5 --rotate 3 --algo oneshot --window 0',       1, 'plain memory');
good('',
    '-t 2 -b 1100K -e 1100K -d i8 -n 1 -G 1 --host-data --link --in-place both --algo twoshot', 2,
    'data by the host, in chunks; stores need a kernel') unless $threads;
($status, $output, $error) =
  perf('SYMWIN_PERF_BREAK=1', '-t 2 -b 1K -e 1K -n 1 --host-data');
like($error, qr/rank 0: .* 1 wrong; element 128 is 0x\w+ and must be 0x\w+/,
    'which finds what is wrong');
($status, $output) = perf('', '-t 2 -b 4K -e 4K -n 1 -c 0');
is((rows($output))[0][8], 'N/A', 'unchecked');
like($output, qr/^# Not checked: 1 of 1 results$/m, 'is said');

# ---- processes ---------------------------------------------------------------------------------

@rows = good('', '--nproc 3 -b 1K -e 4K -n 2 --link --in-place both', 5, '--nproc 3');
good('', '--nproc 2 -t 2 -b 1K -e 1K -n 2 -G 0', 1, 'two processes of two threads')
    unless $sanitized;
my $port = free_port();
my $processes = join ' ', map {
    "env RANK=$_ WORLD_SIZE=2 LOCAL_RANK=$_ LOCAL_WORLD_SIZE=2 MASTER_ADDR=localhost "
      . "MASTER_PORT=$port TORCHELASTIC_RUN_ID=perf timeout 60 $perf -b 1K -e 1K -n 2 &"
} 0, 1;
$output = `export SYMWIN_DRIVER=emu; $processes wait 2>&1`;
is(scalar(() = $output =~ /^# ranks: 2 in 2 processes;/mg), 1, 'torchrun: one table, of both');
like($output, qr/^# Wrong elements: 0 OK$/m, 'and it is right');

# ---- wrong results are found -------------------------------------------------------------------

for my $arguments ('-t 2 -b 1K -e 1K -n 3 --rotate 3',
    '--nproc 2 -b 3 -e 3 -d u8 -n 1 -G 0 --in-place 1', '-t 2 --algo none --link -b 1K -e 1K',
    '-t 4 --algo none --link -b 1K -e 1K') {
    ($status, $output, $error) = perf('SYMWIN_PERF_BREAK=1', $arguments);
    is($status, 1, "spoilt, $arguments: exit status");
    like($output, qr/^# Wrong elements: [246] FAILED$/m, 'counted at both checks');
    like($error, qr/rank 0: .* 1 wrong; element \d+ is 0x\w+ and must be 0x\w+/, 'and described');
}

# A parent that ignores SIGCHLD passes that on; the exit statuses of forked processes still count.
my $ignoring = qq{perl -e '\$SIG{CHLD} = "IGNORE"; exec \@ARGV' $perf};
{
    local $perf = $ignoring;
    ($status) = perf('SYMWIN_PERF_BREAK=1', '--nproc 2 -b 1K -e 1K -n 1');
    is($status, 1, 'SIGCHLD ignored, --nproc: exit status');
}

# If the last repetition makes no call, every element is wrong: results of an earlier repetition do
# not pass for its own.
for my $arguments ('', '-G 0 --rounds 2',
    $threads ? () : ('--host-data', '--in-place 1', '--in-place 1 -G 0', '--algo none --link')) {
    ($status, $output) =
        perf('SYMWIN_PERF_BREAK=idle', "-t 2 -b 1K -e 1K -n 3 $arguments");
    is($status, 1, "no calls, $arguments: exit status");
    like($output, qr/^# Wrong elements: [3-9]\d\d FAILED$/m,
        "no calls, $arguments: every element is found");
}

ONE_THREAD: {
last ONE_THREAD if $threads;

# ---- PyTorch, by a stand-in for torchrun --------------------------------------------------------

# A stand-in for torchrun: writes its arguments to a file and runs a script.
sub torchrun {
    my ($script) = @_;
    open my $file, '>', "$folder/torchrun" or die;
    print $file "#!/bin/sh\n",
        "echo \"\$TORCH_SYMM_MEM_DISABLE_MULTICAST \$*\" >$folder/words\n$script\n";
    close $file or die;
    chmod 0755, "$folder/torchrun" or die;
    return "SYMWIN_TORCHRUN=$folder/torchrun";
}

sub torch_row {
    my ($way, $type, $bytes, $count, $place, $us, $wrong, $host) = @_;
    return "echo torch,$way,$type,sum,$bytes,$count,$place,symmetric,graph,2,50,9,"
      . "$us,1,1,$wrong,$us,$us,$us,$host,";
}

my $rows = join "\n", 'echo "# torch_symm.py, torch 9.9, now"', 'echo library,algo',
  torch_row('torch-one-shot', 'bf16', 1024, 512, 'out', '1e9', 0, ''),
  torch_row('torch-two-shot', 'bf16', 1024, 512, 'in', '0.001', 0, 7.5);
my $torch = '-t 2 -b 8 -e 1K -f 128 -d bf16 -n 1 --against torch --in-place both';
@rows = good(torchrun($rows), "$torch --csv $folder/t.csv --json $folder/t.json", 4,
    'against PyTorch');
{
    local $perf = $ignoring;
    good(torchrun($rows), $torch, 4, 'against PyTorch, SIGCHLD ignored');
}
like(do { local (@ARGV, $/) = "$folder/words"; <> },
    qr/\A1\ --standalone\ --nproc-per-node=2\ \S*torch_symm\.py\ --sizes\ 1024\ -d\ bf16\ -n\ 1
        \ -w\ 1\ -G\ 2\ --rounds\ 2\ --placement\ both
        \ --collective\ allreduce\n/x,
    'torchrun gets the sizes that its kernels take, and multicast is off');
is(join(' ', map { $_->[4] } @rows), 'auto auto torch-one-shot torch-two-shot',
    'its rows come last');
cmp_ok($rows[2][-1], '>', 1e4,   'with the ratio out of place');
cmp_ok($rows[3][-1], '<', 0.001, 'and in place');
is("$rows[2][16] $rows[3][16]", '- 7.50', "and the host's time where there is one");
@lines = do { local @ARGV = "$folder/t.csv"; <> };
like($lines[-3], qr/^# torch_symm\.py, torch 9\.9, now$/, 'the CSV file has its version');
like($lines[-1],
    qr/^torch,torch-two-shot,bf16,sum,1024,512,in,symmetric,graph,2,50,9,0\.001,
        .*,7\.500,[\d.]+,,,,,allreduce$/x,
    'and its rows');
$json = eval { local (@ARGV, $/) = "$folder/t.json"; decode_json(<>) };
is($json->{results}[4]{library}, 'torch', 'so has the JSON file');
is($json->{results}[4]{host_us}, undef, 'without what was not measured');

# The ratio is to the library's choice, even if another algorithm is faster; without `auto`, to the
# fastest.
my $bound = torchrun(torch_row('torch-one-shot', 'bf16', 1024, 512, 'out', '1e6', 0, ''));
for (['auto,oneshot,twoshot', 'own choice'], ['oneshot,twoshot', 'fastest row']) {
    my ($algos, $words) = @$_;
    ($status, $output) =
        perf($bound, "-t 2 -b 1K -e 1K -d bf16 -n 1 --against torch --algo $algos");
    my @us = map { $_->[5] } rows($output);
    my $ratio = (rows($output))[-1][-1];
    @us = sort { $a <=> $b } @us if $algos !~ /auto/;
    cmp_ok(abs($us[0] * $ratio / 1e6 - 1), '<', 1e-3, "the ratio with $algos");
    like($output, qr/^# ratio: a rival's time divided by that of symwin's $words/m,
        'the head says to what');
}

($status, $output) =
  perf(torchrun(torch_row('torch-one-shot', 'bf16', 1024, 512, 'out', 9, 3, '') . "\nexit 1"),
      $torch);
is($status, 1, 'wrong results of PyTorch: exit status');
like($output, qr/^# Wrong elements: 3 FAILED$/m, 'are counted');
refused(torchrun("$rows\nexit 3"), $torch, 1, qr/gave 2 rows and ended with status 3/,
    'PyTorch fails');
($status, $output) = perf(torchrun("$rows\nexit 3"), $torch);
like($output, qr/^# against torch-one-shot: .*\n(#.*\n)*# Wrong elements: 0 so far$/m,
    'PyTorch fails: the table has its end');
refused(torchrun('echo hello'), $torch, 1,
    qr/torch: hello\n.*gave 0 rows and ended with status 0/s, 'PyTorch without rows');
refused(torchrun(torch_row('torch-one-shot', 'f32', 1024, 512, 'out', 9, 0, '')), $torch, 1,
    qr/gave 0 rows/, 'rows of another type');
my $before = time;
refused(torchrun('exec sleep 50'), "$torch --timeout 1", 1, qr/printed nothing for too long/,
    'PyTorch hangs');
cmp_ok(time - $before, '<', 30, 'and is not waited for');
for ("SYMWIN_TORCHRUN=$folder/none",
    "PATH=$folder/none:/usr/bin:/bin SYMWIN_TORCHRUN=torchrun-that-is-not-there") {
    refused($_, $torch, 1, qr/cannot be run: set SYMWIN_TORCHRUN to its path/, 'no torchrun');
    is((perf($_, $torch))[1], '', 'no torchrun: known before anything is timed');
}
good(torchrun($rows) =~ s/=.*/=torchrun/r . " PATH=$folder:/usr/bin:/bin", $torch, 4,
    'torchrun by PATH');
refused(torchrun($rows), '-t 2 -b 16 -e 512K -i 16 --against torch', 1,
    qr/too many sizes for its command line/, 'too many sizes');
refused('TORCH_SYMM_MEM_DISABLE_MULTICAST=0', $torch, 1,
    qr/TORCH_SYMM_MEM_DISABLE_MULTICAST is "0"/, 'PyTorch with multicast');
refused('', "$torch -d f16,i8", 2, qr/torch sums f32 and bf16 only/,
    'types that PyTorch does not have');
refused('', "$torch $_", 2, qr/torch cannot be combined with --percentiles --rotate --sm-limit/,
    "PyTorch, $_")
  for '--percentiles 9', '--rotate 2', '--sm-limit 8';
refused('', "$torch -t 99",     1, qr/needs a GPU of this host for each rank/,
    'more ranks than GPUs');
{
    my $there = abs_path($perf);
    $output = `cd $folder && SYMWIN_DRIVER=emu $there $torch 2>&1`;
    is($? >> 8, 1, 'elsewhere: exit status');
    like($output, qr/run symwin-perf in symwin's source folder/, 'elsewhere: says why');
}

# ---- the time of a launch -----------------------------------------------------------------------

@rows = good('', '-t 2 --algo none --launch -n 3', 3, 'launches');
is(join(' ', map { "$_->[0] $_->[4]" } @rows), '0 launch 0 launch-early 0 launch-parts',
    'of all kinds');
ok($_->[5] > 0 && $_->[16] > 0, "$_->[4]: times") for @rows;
good('', '-t 2 --algo none --launch -n 3 -G 0 --nproc 1', 3, 'in a stream');
@rows = good('SYMWIN_EMU_DEVICES=1', '-t 2 --algo none --launch', 2,
    'ranks that share a GPU do not begin early');

@rows = good('', '-t 2 --graph-launch -b 1K -e 4K -n 3 -G 0 --in-place both', 2,
    'launches as graphs');

# ---- what it refuses ---------------------------------------------------------------------------

refused('', '-b 0', 2, qr/-b is "0": give a number/, 'no bytes');
refused('', '-b 12X', 2, qr/-b is "12X"/, 'unknown suffix');
refused('', '-t 2 -b 64K -e 1K', 2, qr/\A[^\n]*-e is less than -b[^\n]*\n\z/,
    'a last size before the first');
refused('', "-t 2 $_", 1,
    qr/\Asymwin-perf:\ rank\ 0:\ device\ 0\ has\ no\ room\ for\ 2\ buffers\ of\ 1099511627776
        \ bytes:\ it\ has\ 8589934592\ bytes,\ of\ .*\n\z/x,
    "more than memory holds: $_")
  for '-e 1T', '-b 1T --window 0';
refused('', "-t 2 $_ ''", 2, qr/\A[^\n]*$_ is "": give a file name\n\z/, "$_ without a name")
  for qw(--csv --json --tune --picture);
refused('', '-t 2 -e 1T --tune /nowhere/a', 1, qr/no room for 4 buffers of 1099511627776 bytes/,
    'and for --tune');
for (['-m 2', 'give -n'], ['--agg_iters=2', 'give -n'], ['-N 3', '--rounds'],
    ['-p 1', 'side by side'], ['-z 1', '--percentiles'], ['-y 1', 'a stream of its own'],
    ['-C 1', 'column "launch"'], ['-a 1', 'slowest rank'],
    ['-R 2', '--window'], ['-S 1', 'the time'], ['-u 1', '--kernel'], ['-M 1', 'symwin-info'],
    ['-A 1', '--percentiles'], ['-x 1', '--sm-limit'], ['-V 4', '--blocks'], ['-D 1', '--algo'])
{
    my ($option, $instead) = @$_;
    refused('', "-t 2 $option", 2,
        qr/\Asymwin-perf: \S+ is an option of nccl-tests; [^\n]*\Q$instead\E[^\n]*\n\z/,
        "nccl-tests' $option");
}
for (['-f 2 -i 1K', '-f and -i are two ways'],
    ['--rounds 3 -G 1', '--rounds is about stream launches'], ['--rounds 3', 'give -G 0 too'],
    ['--nproc 2 --graph-launch', '--graph-launch is about stream launches'],
    ['-r 0', '-r is about collectives with a root: name one'],
    ['--root 0 --collective allgather,barrier', '-r is about collectives with a root'],
    ['--collective allgather -o prod', 'moves data reduces nothing: leave out -o'])
{
    my ($options, $why) = @$_;
    refused('', $options, 2, qr/\Asymwin-perf: [^\n]*\Q$why\E[^\n]*\n\z/,
        "without effect: $options");
}
refused("SYMWIN_PERF_BREAK=$_", '--nproc 2 -b 64 -e 64', 2,
    qr/\Asymwin-perf: SYMWIN_PERF_BREAK is "$_": give 1, hang or idle, or unset it\n\z/,
    "SYMWIN_PERF_BREAK=$_")
  for 'zzz', '';
refused("SYMWIN_BOOTSTRAP_TIMEOUT_MS=300 SYMWIN_JOB=late-$$ SYMWIN_RANK=0 SYMWIN_NRANKS=2",
    '-b 64 -e 64', 1, qr/rank 1 did not join within 300 ms/, 'SYMWIN_BOOTSTRAP_TIMEOUT_MS');
refused('', '-d f33', 2, qr/-d: unknown name "f33"/, 'unknown type');
refused('', '-o sum,xor', 2, qr/-o: unknown name "xor"/, 'unknown operation');
refused('', '--algo ring9', 2, qr/--algo: unknown name "ring9"; names are auto /,
    'unknown algorithm');
refused('', '--frob', 2,
    qr/\A[\w-]+: unknown argument "--frob": --help lists[^\n]*\n\z/, 'unknown option');
refused('', '-n', 2, qr/-n needs a value/, 'no value');
refused('', '--link=1', 2, qr/--link takes no value/, 'too many values');
refused('', '--in-place 2', 2, qr/--in-place is "2"/, 'no such place');
refused('', '--against mpi', 2, qr/--against: unknown name "mpi"; names are nccl nccl-window/,
    'unknown rival');
refused('NCCL_NVLS_ENABLE=1', '--against nccl', 1, qr/NCCL_NVLS_ENABLE is "1"/,
    'a rival with multicast');
refused('NCCL_MAX_CTAS=3', '--against nccl --sm-limit 4', 1,
    qr/NCCL_MAX_CTAS is "3" and --sm-limit gives 4/,
    'a limit that NCCL would not have');
refused('', '--against nccl', 2, qr/NCCL needs GPUs/, 'a rival without a GPU');
refused('', '--nproc 2 -G 0 -n 401', 2, qr/\A[^\n]*at most 400 calls without a graph[^\n]*\n\z/,
    'more stream calls than a stream holds, said once');
refused('', '--algo none', 2, qr/--algo none needs/, 'nothing to do');
refused('', '-t 2 -b 2 -e 3', 1, qr/nothing was measured: every size is smaller/,
    'no size is an element');
refused('', '-t 2 -b 1K -e 1K -n 1 --algo all --threads 1024', 1,
    qr/nothing that was selected supports the calls; .*: \S+: 1024 threads were asked for/,
    'no way serves');
refused('', '-t 2 -e 15 -b 8 --link', 2, qr/--link needs -e of at least 16 bytes/,
    'nothing that a link could carry');
is((perf('', '--version'))[1], "symwin-perf (symwin) $1\n", '--version')
    if slurp('symwin.h') =~ /SYMWIN_VERSION "(.*)"/;
good('', '-t 17 -b 1K -e 1K -n 1 --collective alltoallv', 1,
    'counts in host memory for more ranks than the arguments of a kernel have room for');
good('',
    '--nthreads 2 --minbytes=64 --maxbytes 256 --stepfactor 2 --iters 1 -T 30 '
      . "-F $folder/letters.csv",
    3, "nccl-tests' words");
like(slurp("$folder/letters.csv"), qr/^symwin,/m, 'and its -F');
@rows = good('', '-t 2 -b 64 -e 64 -n 1 -d u8,f32,bf16,u8 -o max,sum', 6, 'types and operations');
is(join(' ', map { "$_->[2] $_->[3]" } @rows),
    'u8 max u8 sum f32 max f32 sum bf16 max bf16 sum', 'in the order that was asked for');
{
    my ($status, $output, $error) = perf('', '-t 2 -b 64 -e 64 -n 1 --csv /dev/full');
    is($status, 1, 'a full disk: exit status');
    is($error, "symwin-perf: --csv /dev/full cannot be written: No space left on device\n",
        'a full disk: says so');
}

# If a signal ends it, it names the draft that it leaves.
for (['INT', '-t 2', 'csv'], ['TERM', '-t 2', 'json'], ['TERM', '--nproc 2', 'csv']) {
    my ($signal, $ranks, $kind) = @$_;
    my $name = "$folder/ended-$signal.$kind" . ($ranks =~ /nproc/ ? '2' : '');
    my $pid = fork // die;
    if ($pid == 0) {
        open STDOUT, '>', '/dev/null' or die;
        open STDERR, '>', "$folder/ended" or die;
        $ENV{SYMWIN_DRIVER} = 'emu';
        exec $perf, split(' ', $ranks), qw(-b 64 -e 64M -f 2 -n 10 -G 10), "--$kind", $name;
        die;
    }
    my $until = time + 50;
    my @files;
    select undef, undef, undef, 0.05 until (@files = grep { -s } glob "$name.*") || time > $until;
    select undef, undef, undef, 0.5; # a row is in it
    kill $signal => $pid;
    waitpid $pid, 0;
    isnt($?, 0, "$ranks ended by SIG$signal: exit status");
    $until = time + 20;
    select undef, undef, undef, 0.05 until slurp("$folder/ended") =~ /\n/ || time > $until;
    @files = glob "$name.*";
    is(scalar @files, 1, 'it leaves a draft');
    like(slurp("$folder/ended"), qr/^symwin-perf: --$kind: partial results are in \Q$files[0]\E$/m,
        'and names it');
}

refused('', '-t 512 -g 512', 2, qr/\A[^\n]*262144 ranks: at most 1024\n\z/, 'too many ranks');
for (['one.csv', 'one.csv'], ['one.csv', './one.csv'], ['a.csv', 'a.csv']) {
    my ($csv, $json) = @$_;
    refused('', "-t 2 --csv $folder/$csv --json $folder/$json", 2,
        qr/\A[^\n]*--csv and --json name one file: give two\n\z/, "--csv $csv --json $json");
}
($status) = perf('', '-t 2 -b 64 -e 64 -n 1 --csv /dev/null --json /dev/null');
is($status, 0, 'a device twice');
refused('', '-t 1 --link', 2, qr/--link needs at least two ranks/, 'a link to oneself');
refused('', "-t 2 --kernel $folder/none.cu --algo $_", 2,
    qr/need multicast, which symwin-perf never uses on GPUs: leave them out/, "$_ beside a kernel")
    for ('twoshot_mc', 'auto,oneshot_mc');
refused('', '-t 2 --algo twoshot --window 0', 1, qr/needs both buffers in windows/, 'no windows');
refused('', '-t 2 --threads 1024', 1, qr/1024 threads were asked for/, 'too many threads');
for ('--csv', '--json') {
    refused('', "-t 2 $_ /nowhere/a", 1, qr/$_ \/nowhere\/a: No such/, "$_: no such folder");
    unlike((perf('', "-t 2 $_ /nowhere/a"))[1], qr/^ +\d/m, "$_: known before anything is timed");
}
refused('SYMWIN_EMU_MEM=16M', '--nproc 2 -b 64M', 1, qr/CUDA_ERROR_OUT_OF_MEMORY/, 'no memory');
refused('SYMWIN_RANK=9 SYMWIN_NRANKS=4', '-b 1K', 1, qr/SYMWIN_RANK is "9"/, 'no such rank');
# Before the first agreement, no devices are known for the JSON file.
refused('', "-t 1 --link --json $folder/none.json", 2, qr/--link needs at least two ranks/,
    'JSON without ranks');
refused('SYMWIN_TUNING=/nowhere', "-t 2 --json $folder/none.json", 1,
    qr/SYMWIN_TUNING cannot be read/,
    'JSON of ranks that never meet');
refused('SYMWIN_RANK=9 SYMWIN_NRANKS=4', "--json $folder/none.json", 1, qr/SYMWIN_RANK is "9"/,
    'JSON without a driver');
SKIP: {
    skip 'startup is not built', 3 unless -x "$build/bench/startup";
    local $perf = "$build/bench/startup";
    refused('NCCL_NVLS_ENABLE=1', '2 1', 1, qr/NCCL_NVLS_ENABLE is "1"/, 'startup with multicast');
}
($status, $output) = perf('', '--help');
is($status, 0, '--help: exit status');
like($output, qr/--sm-limit N.*algorithms +auto, oneshot,/s, '--help names options and algorithms');
}

# ---- it always ends ----------------------------------------------------------------------------

@died = ended(@died);
is($died[0], 1, 'a rank of another process is killed: the others end with status 1');
like($died[1], qr/rank 1/, 'and name it');
like($died[1], qr/^symwin-perf: process 1 of --nproc died by signal 9, /m,
    'and what started it says how it ended');
@stopped = ended(@stopped);
is($stopped[0], 1, 'a rank of another process is stopped: the others end with status 1');
like($stopped[1], qr/rank 1/, 'and name it');
@stuck = ended(@stuck);
is($stuck[0], 1, 'a GPU that never finishes: status 1');
like($stuck[1], qr/^symwin-perf: .*rank \d/m, 'and a sentence');
is_deeply([glob "$folder/stuck*"], [], 'and no file, since nothing was measured');

done_testing();
