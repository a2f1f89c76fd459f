#!/usr/bin/env perl
# bench/report.py on made-up files: the tables that it writes, what it takes for out of date, and
# what it refuses. Also, the pages of this repository are what bench/results give.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

open my $flags, '<', ($ENV{SYMWIN_BUILD} || 'build') . '/flags' or die;
plan(skip_all => 'nothing of it is built, so a sanitizer has nothing to see')
  if grep { /-fsanitize/ } <$flags>;
plan(skip_all => 'no python3') unless `python3 -c 'print(1)' 2>/dev/null`;

my $folder   = tempdir(CLEANUP => 1);
my $results  = "$folder/results";
my $document = "$folder/docs/page.md";
my @blocks =
  qw(number scores head head-stream head-collectives collectives measured graph stream in-place
  algorithms types sms links);
my $names =
  'library,algo,type,op,bytes,count,placement,memory,mode,ranks,calls,repetitions,time_us,'
  . 'algbw_gbs,busbw_gbs,wrong,p50_us,p99_us,max_us,host_us,ratio,launched,blocks,threads,measured';
mkdir $_ for $results, "$folder/docs";

sub spew {
    my ($path, $text) = @_;
    open my $file, '>', $path or die "$path: $!";
    print $file $text;
    close $file or die;
}

sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or return;
    local $/;
    return scalar <$file>;
}

sub head {
    my ($commit, $arguments) = @_;
    return "# symwin-perf 0.1.0, commit $commit, 2026-01-02T03:04:05Z\n# arguments: $arguments\n"
      . "# driver: cuda 13.0, module 580.1; nccl: 2.28.9\n"
      . "# rank 0: device 0, NVIDIA X1, process 7\n$names\n";
}

# [library, algorithm, type, bytes, placement, us, launched, blocks], and changes to a good row.
sub row {
    my ($library, $algo, $type, $bytes, $place, $us, $launched, $blocks, %other) = @_;
    my %is = (ranks => 4, mode => 'graph', wrong => 0, host => 3.5, %other);
    my $width = 1.5 * $bytes / $us / 1e3;
    return "$library,$algo,$type,sum,$bytes,1,$place,window,$is{mode},$is{ranks},20,9,$us,1,"
      . "$width,$is{wrong},$us,$us,$us,$is{host},,"
      . ($launched ? "$launched,$blocks,96,0" : ',,,') . "\n";
}

sub page {
    return "# A page\n\n"
      . join('', map { "Before $_.\n\n<!-- begin $_ -->\nold\n<!-- end $_ -->\n\n" } @blocks)
      . "The end.\n";
}

# A pattern for one row of a table.
sub cells {
    my $row = join ' | ', @_;
    return qr/^\| \Q$row\E \|$/m;
}

# Returns the exit status and the output.
sub report {
    my ($arguments) = @_;
    my $said = `python3 bench/report.py --results $results --document $document $arguments 2>&1`;
    return ($? >> 8, $said);
}

sub block {
    my ($name) = @_;
    my ($text) = slurp($document) =~ /<!-- begin \Q$name\E -->\n\n(.*?)\n\n<!-- end \Q$name\E -->/s;
    return $text // '';
}

sub refused {
    my ($want, $name) = @_;
    my $before = slurp($document) // '';
    for my $arguments ('', '--check') {
        my ($status, $said) = report($arguments);
        is($status, 1, "$name: exit status $arguments");
        like($said, qr/\Areport\.py: $want[^\n]*\n\z/, "$name: a sentence");
    }
    is(slurp($document) // '', $before, "$name: nothing is written");
}

# ---- nothing yet -------------------------------------------------------------------------------

refused(qr/\S*page\.md: No such file/, 'no document');
spew($document, page());
my ($status, $said) = report('--check');
is($status, 1, 'a document that is not up to date');
like($said, qr/page\.md is not what the files of .* give: run bench\/report\.py/, 'is said');
is(slurp($document), page(), 'and left as it is');
spew("$results/2026-01-02-emulated-perf-graph.csv", "no table, and not looked at\n");
spew("$results/2026-01-02-4-x-x1-memory.csv",       "neither\n");
($status, $said) = report('');
is("$status $said", "0 $document\n", 'without files it is written');
is(block($_), 'Not measured.', "$_: not measured") for @blocks;
my $text = slurp($document);
like($text, qr/^# A page\n\nBefore number\.\n\n<!-- begin/, 'what is around the blocks stays');
like($text, qr/<!-- end links -->\n\nThe end\.\n\z/, 'to the end');
is((report('--check'))[0], 0, 'then it is up to date');
is((report(''))[1], '', 'and nothing is written anew');

# ---- tables ------------------------------------------------------------------------------------

my $machine = "$results/2026-01-02-4-x-x1";
my $graph = head('abc1234', '-t 4 --csv bench/x.csv -b 1K') . join '',
  row('symwin', 'auto', 'bf16', 1024, 'out', 2, 'oneshot_sentinel', 1),
  row('symwin', 'auto', 'bf16', 1024, 'in', 2.5, 'oneshot_sentinel', 1),
  row('symwin', 'oneshot', 'bf16', 1024, 'out', 1.6, 'oneshot', 1),
  row('symwin', 'twoshot', 'bf16', 1024, 'out', 40, 'twoshot', 1),
  row('nccl', 'nccl', 'bf16', 1024, 'out', 7),
  row('nccl', 'nccl', 'bf16', 1024, 'in', 7.5),
  row('nccl', 'nccl-window', 'bf16', 1024, 'out', 3),
  row('symwin', 'auto', 'bf16', 16777216, 'out', 80, 'twoshot_put', 132),
  row('symwin', 'auto', 'bf16', 16777216, 'in', 88, 'twoshot', 132),
  row('symwin', 'twoshot', 'bf16', 16777216, 'out', 100, 'twoshot', 132),
  row('nccl', 'nccl', 'bf16', 16777216, 'out', 76),
  row('nccl', 'nccl', 'bf16', 16777216, 'in', 76),
  row('nccl', 'nccl-window', 'bf16', 16777216, 'out', 160),
  row('torch', 'torch-one-shot', 'bf16', 1024, 'out', 6, undef, undef, host => ''),
  row('torch', 'torch-two-shot', 'bf16', 1024, 'in', 5, undef, undef, host => ''),
  row('link', 'link-engine', 'u64', 16777216, 'out', 43);
spew("$machine-perf-graph.csv", $graph);
spew("$results/2026-01-01-4-x-x1-perf-graph.csv", "an older one is not looked at\n");
spew("$machine-perf-stream.csv", head('abc1235', '-G 0')
      . row('symwin', 'auto', 'bf16', 1024, 'out', 4.25, 'oneshot_sentinel', 1, mode => 'stream')
      . row('nccl', 'nccl', 'bf16', 1024, 'out', 8.5, undef, undef, mode => 'stream', host => 12.25)
      . row('launch', 'launch', 'u64', 0, 'out', 1.75, undef, undef, mode => 'stream',
          host => 2.25));
spew("$machine-2-ranks-perf-graph.csv", head('abc1236', '-t 2')
      . row('symwin', 'auto', 'f32', 512, 'out', 1.5, 'oneshot_sentinel', 1, ranks => 2,
          wrong => ''));
spew("$machine-perf-types.csv", head('abc1237', '-d f32,e4m3')
      . row('symwin', 'auto', 'f32', 65536, 'out', 5, 'oneshot_sentinel', 9)
      . row('symwin', 'auto', 'e4m3', 65536, 'out', 6.125, 'twoshot_push', 9));
spew("$machine-perf-sms.csv", join '', map {
        head('abc1238', "--sm-limit $_->[0]")
          . row('symwin', 'auto', 'bf16', 16777216, 'out', $_->[1], 'twoshot_put', $_->[0])
          . row('symwin', 'twoshot', 'bf16', 16777216, 'out', 2 * $_->[1], 'twoshot', $_->[0])
    } [16, 125], [4, 500]);
($status, $said) = report('');
is($status, 0, 'tables: exit status') or diag($said);
is($said, join('', map { "$_\n" } $document,
    map { "$machine-$_.svg" } qw(perf-graph 2-ranks-perf-graph perf-stream)),
    'what was written is said');

my $rivals = 'NCCL, symmetric windows, us | ratio | PyTorch, one-shot, us | ratio';
is(block('graph'), <<"END" =~ s/\n\z//r, 'graph replays');
### 4 x NVIDIA X1, 4 ranks

![time and bus bandwidth against size](../results/2026-01-02-4-x-x1-perf-graph.svg)

bf16 sum, out of place:

| size | algorithm | us | GB/s | NCCL, us | ratio | $rivals |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
| 1 KiB | oneshot_sentinel | 2.00 | 0.77 | 7.00 | 3.50 | 3.00 | 1.50 | 6.00 | 3.00 |
| 16 MiB | twoshot_put | 80.0 | 315 | 76.0 | 0.95 | 160 | 2.00 | - | - |

- At least as fast as NCCL at 1 of 2 sizes; lowest ratio 0.95, at 16 MiB.
- At least as fast as NCCL, symmetric windows at 2 of 2 sizes; lowest ratio 1.50, at 1 KiB.
- At least as fast as PyTorch, one-shot at 1 of 1 sizes; lowest ratio 3.00, at 1 KiB.

### 4 x NVIDIA X1, 2 ranks

![time and bus bandwidth against size](../results/2026-01-02-4-x-x1-2-ranks-perf-graph.svg)

f32 sum, out of place:

| size | algorithm | us | GB/s |
|---|---|---:|---:|
| 512 B | oneshot_sentinel | 1.50 | 0.51 |

NCCL: not measured.
END
like(block('stream'),
    qr/^\| size \| algorithm \| us \| host, us \| GB\/s \| NCCL, us \| host, us \| ratio \|$/m,
    'stream launches: the host as well');
like(block('stream'),
    qr/^\| 1 KiB \| oneshot_sentinel \| 4\.25 \| 3\.50 \| 0\.36 \| 8\.50 \| 12\.2 \| 2\.00 \|$/m,
    'its row');
like(block('stream'),
    qr/^A kernel that does nothing \(launch\): 1\.75 us, 2\.25 us of the host\.$/m,
    'and what a launch takes');
like(block('in-place'),
    cells('1 KiB', '2.00', 'oneshot_sentinel', '2.50', 'oneshot_sentinel', '1.25', '7.50', '3.00',
        '5.00', '2.00'),
    'in place beside out of place');
like(block('in-place'),
    cells('16 MiB', '80.0', 'twoshot_put', '88.0', 'twoshot', '1.10', '76.0', '0.86', '-', '-'),
    'with an algorithm for each');
unlike(block('in-place'), qr/2 ranks/, 'where there are both');
like(block('algorithms'), qr/^\| size \| oneshot \| twoshot \| auto \| auto \/ fastest \|$/m,
    'algorithms');
like(block('algorithms'), qr/^\| 1 KiB \| \*\*1\.60\*\* \| 40\.0 \| 2\.00 \| 1\.25 \|$/m,
    'the fastest is in bold');
like(block('algorithms'), qr/^\| 16 MiB \| - \| \*\*100\*\* \| 80\.0 \| 0\.80 \|$/m,
    'one that was not measured is none');
like(block('types'), qr/^\| 64 KiB \| 5\.00 \| 6\.1\d \| oneshot_sentinel, twoshot_push \|$/m,
    'types');
like(block('sms'), qr/^\| size \| algorithm \| 4 blocks \| 16 blocks \| no limit \|$/m,
    'grids, by their size');
like(block('sms'),
    qr/^\| 16 MiB \| auto: twoshot_put \| 500 \(50\.3\) \| 125 \(201\) \| 80\.0 \(315\) \|$/m,
    'what is chosen');
like(block('sms'), qr/^\| 16 MiB \| twoshot \| 1000 \(25\.2\) \| 250 \(101\) \| 100 \(252\) \|$/m,
    'and what is asked for');
is(block('links'), "| machine | way | size | us | GB/s |\n|---|---|---:|---:|---:|\n"
      . '| 4 x NVIDIA X1, 4 ranks | link-engine | 16 MiB | 43.0 | 585 |', 'links');
is(block('number'), <<"END" =~ s/\n\z//r, 'one number and one picture');
On 4 x NVIDIA X1, 4 ranks, an all-reduce of 1 KiB (bf16, graph replays) takes 2.00 us. In the same
run: NCCL 7.00 us; NCCL, symmetric windows 3.00 us; PyTorch, one-shot 6.00 us (2026-01-02, commit
abc1234).

![time and bus bandwidth against size](../results/2026-01-02-4-x-x1-perf-graph.svg)
END
my $x1 = '4 x NVIDIA X1, 4 ranks';
my $out_of_place = "$x1 | graph, bf16 sum, out of place";
is(block('scores'), <<"END" =~ s/\n\z//r, 'how each rival did, call by call');
| machine | calls | NCCL | NCCL, symmetric windows | PyTorch, one-shot | PyTorch, two-shot |
|---|---|---|---|---|---|
| $out_of_place | 1 of 2; 0.95, at 16 MiB | 2 of 2; 1.50, at 1 KiB | 1 of 1; 3.00, at 1 KiB | - |
| $x1 | graph, bf16 sum, in place | 1 of 2; 0.86, at 16 MiB | - | - | 1 of 1; 2.00, at 1 KiB |
| 4 x NVIDIA X1, 4 ranks | stream, bf16 sum, out of place | 1 of 1; 2.00, at 1 KiB | - | - | - |
END
is(block('head'), <<"END" =~ s/\n\z//r, 'some sizes of the graph replays');
### 4 x NVIDIA X1, 4 ranks

![time and bus bandwidth against size](../results/2026-01-02-4-x-x1-perf-graph.svg)

bf16 sum, out of place, [2026-01-02](../results/2026-01-02-4-x-x1-perf-graph.csv), commit abc1234:

| size | algorithm | us | GB/s | NCCL, us | ratio | $rivals |
|---|---|---:|---:|---:|---:|---:|---:|---:|---:|
| 1 KiB | oneshot_sentinel | 2.00 | 0.77 | 7.00 | 3.50 | 3.00 | 1.50 | 6.00 | 3.00 |
| 16 MiB | twoshot_put | 80.0 | 315 | 76.0 | 0.95 | 160 | 2.00 | - | - |
END
is(block('head-stream'), <<"END" =~ s/\n\z//r, 'and of the stream launches');
### 4 x NVIDIA X1, 4 ranks

bf16 sum, out of place, [2026-01-02](../results/2026-01-02-4-x-x1-perf-stream.csv), commit abc1235:

| size | algorithm | us | host, us | GB/s | NCCL, us | host, us | ratio |
|---|---|---:|---:|---:|---:|---:|---:|
| 1 KiB | oneshot_sentinel | 4.25 | 3.50 | 0.36 | 8.50 | 12.2 | 2.00 |
END
my $measured = block('measured');
my $link = '[graph](../results/2026-01-02-4-x-x1-perf-graph.csv)';
my $driver = 'cuda 13.0, module 580.1';
like($measured,
    qr/\| \Q$link\E \| 2026-01-02 \| abc1234 \| \Q$driver\E \| 2\.28\.9 \| `-t 4 -b 1K` \|$/m,
    'what was measured, when, with what');
like($measured, qr/2-ranks-perf-graph\.csv\); 1 rows not checked \|/, 'and what was not checked');
like($measured, qr/\| `--sm-limit 16`, `--sm-limit 4` \|$/m, 'runs put together');
like(slurp("$machine-perf-graph.svg"),
    qr/^<svg .*all-reduce, 4 ranks, bf16 sum, graph, out of place/s, 'a picture');

# ---- several pages ------------------------------------------------------------------------------

{
    my $one   = slurp($document);
    my @parts = $one =~ /\A(.*?)(Before measured\..*)\z/s;
    my $other = "$folder/docs/notes/more.md";
    mkdir "$folder/docs/notes";
    spew($document, $parts[0]);
    spew($other,
        $parts[1] =~ s/<!-- begin measured -->.*?<!-- end/<!-- begin measured -->\n<!-- end/sr);
    ($status, $said) = report("--check --document $other");
    is($status, 1, 'the second page is not up to date');
    like($said, qr/\A[^\n]*more\.md is not what[^\n]*\n\z/, 'it alone is said') or diag($said);
    is((report("--document $other"))[1], "$other\n", 'and written');
    like(slurp($other), qr{\[graph\]\(\.\./\.\./results/2026}, 'links are from the page');
    is((report("--check --document $other"))[0], 0, 'both are up to date');
    refused(qr/\S+page\.md: no <!-- begin measured -->/, 'one page that has not all');
    spew($other, $one);
    ($status, $said) = report("--document $other");
    like("$status $said",
        qr/\A1 report\.py: \S+more\.md: <!-- begin number --> for the second time/,
        'a block on two pages');
    spew($document, $one);
    unlink $other;
}

# ---- a picture of one file ----------------------------------------------------------------------

$said = `python3 bench/plot.py --all --output $folder/sms.svg $machine-perf-sms.csv 2>&1`;
is("$?$said", '0', 'runs put together are drawn');
spew("$folder/wrong.csv",
    head('abc1234', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1, wrong => 3));
$said = `python3 bench/plot.py --output $folder/sms.svg $folder/wrong.csv 2>&1`;
like($said, qr/\Aplot\.py: \S+:6: 3 elements are wrong/, 'wrong results are not');

# ---- up to date or not -------------------------------------------------------------------------

is((report('--check'))[0], 0, 'it is up to date');
is((report(''))[1], '', 'and nothing is written anew');
my $good = slurp($document);
spew("$machine-perf-graph.csv", $graph =~ s/,40,/,41,/r);
($status, $said) = report('--check');
is($status, 1, 'a time in a file has changed');
like($said, qr/page\.md is not what/, 'so the document is not up to date');
spew("$machine-perf-graph.csv", $graph);
spew($document, $good =~ s/7\.00/6\.00/r);
is((report('--check'))[0], 1, 'a figure in the document has changed');
report('');
is(slurp($document), $good, 'it is put right');
unlink "$machine-perf-graph.svg";
($status, $said) = report('--check');
is($status, 1, 'a picture is missing');
like($said, qr/perf-graph\.svg is not what/, 'so it is not up to date');
ok(!-e "$machine-perf-graph.svg", '--check writes none');
spew("$results/2026-01-03-4-x-x1-perf-graph.csv",
    head('def', '') . row('symwin', 'auto', 'bf16', 1024, 'out', 1.25, 'oneshot', 1));
report('');
my $replays = qr/an all-reduce of 1 KiB \(bf16, graph replays\)/;
like(block('number'),
    qr/\AOn 4 x NVIDIA X1, 4 ranks, $replays takes 1\.25 us \(2026-01-03,\ncommit def\)\.$/m,
    'also for the number');
like(block('graph'), qr/4 ranks.*\| 1 KiB \| oneshot \| 1\.25 \|.*2 ranks/s, 'a newer file counts');
is(block('links'), 'Not measured.', 'and what it does not have is gone');
unlink glob "$results/2026-01-03-*";
report('');

# ---- one rank, which sends nothing --------------------------------------------------------------

spew("$results/2026-01-02-1-x-x1-perf-graph.csv",
    head('abc1234', '')
      . row('symwin', 'auto', 'bf16', 1024, 'out', 1.25, 'oneshot', 1, ranks => 1)
      =~ s/,\d[\d.]*,0,1\.25,/,0,0,1.25,/r);
($status, $said) = report('');
is($status, 0, 'one rank: exit status') or diag($said);
my $title = qr/### 1 x NVIDIA X1, 1 rank\n\n!\[time against size\]/;
like(block('graph'), qr/^$title.*\n\n.*\n\n.*\n.*\n\| 1 KiB \| oneshot \| 1\.25 \| 0 \|$/m,
    'its table');
my $picture = slurp("$results/2026-01-02-1-x-x1-perf-graph.svg");
like($picture, qr/all-reduce, 1 rank, .*time \(us\)|time \(us\).*all-reduce, 1 rank,/s,
    'a picture of the time');
unlike($picture, qr/bus bandwidth/, 'and of nothing else');
unlink glob "$results/2026-01-02-1-x-x1-*";
report('');

# ---- what it refuses ---------------------------------------------------------------------------

my $file = "$results/2026-02-02-4-x-x1-perf-graph.csv";
my @bad  = (
    [qr/\S+: no rows/, head('a', ''), 'no rows'],
    [qr/\S+:1: not a row/, "1,2,3\n", 'no table'],
    [qr/\S+:6: not a row/, head('a', '') . "symwin,auto\n", 'a row that ends early'],
    [qr/\S+:6: not a row.*bytes|\S+:6: not a row.*x/,
        head('a', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1)
          =~ s/,8,1,/,x,1,/r,
        'a size that is none'],
    [qr/\S+:6: 3 elements are wrong/,
        head('a', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1, wrong => 3),
        'wrong results'],
    [qr/\S+:6: mode stream in a table of graph/,
        head('a', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1, mode => 'stream'),
        'calls of the other kind'],
    [qr/\S+:7: the second row of symwin, auto, f32, sum, out, 8/,
        head('a', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1) x 2,
        'a row twice'],
    [qr/\S+:7: 2 ranks after rows of 4/,
        head('a', '') . row('symwin', 'auto', 'f32', 8, 'out', 1, 'oneshot', 1)
          . row('symwin', 'auto', 'f32', 9, 'out', 1, 'oneshot', 1, ranks => 2),
        'ranks that change']);
for (@bad) {
    spew($file, $_->[1]);
    refused(@$_[0, 2]);
}
unlink $file;
spew("$results/2026-02-02-4-x-x1-3-ranks-perf-graph.csv", $graph);
refused(qr/\S+: rows of 4 ranks under this name/, 'a name of other ranks');
unlink glob "$results/2026-02-02-*";

$good = slurp($document);
for (['links -->', 'lynx -->', qr/\S+: there is no block "lynx"/, 'an unknown block'],
    ['<!-- end links -->', '', qr/\S+: <!-- begin links --> has no end/, 'a block without an end'],
    ['<!-- end sms -->', '', qr/\S+: <!-- begin links --> where sms is open/, 'a block in a block'],
    ['<!-- begin links -->', '', qr/\S+: <!-- end links --> where no block is open/,
        'an end without a block'],
    ["\nThe end.", "<!-- begin sms -->\n", qr/\S+: <!-- begin sms --> for the second time/,
        'a block twice'],
    ['<!-- begin links -->.*<!-- end links -->', '', qr/\S+: no <!-- begin links -->/,
        'a block that is missing']) {
    my ($what, $by, $want, $name) = @$_;
    spew($document, $good =~ s/$what/$by/sr);
    refused($want, $name);
}
spew($document, $good);
$results = "$folder/nowhere";
refused(qr/\S+nowhere: No such file/, 'no folder of results');

# ---- other collectives ---------------------------------------------------------------------------

$results = "$folder/collectives";
mkdir $results;
my $of = "$results/2026-01-02-4-x-x1-collectives-graph.csv";
sub collective {
    my ($name, @row) = @_;
    return row(@row) =~ s/\n/,$name\n/r;
}
my $ours = head('c1', '--collective all') =~ s/,measured\n/,measured,collective\n/r
  . collective('allreduce', 'symwin', 'auto', 'bf16', 64, 'out', 2, 'oneshot', 1)
  . collective('allgather', 'symwin', 'auto', 'bf16', 64, 'out', 3, 'oneshot', 1)
  . collective('barrier', 'symwin', 'auto', 'none', 0, 'out', 4, 'oneshot', 1, wrong => '');
spew($of, $ours);
is((report(''))[0], 0, 'collectives without rivals');
is(block($_), 'Not measured.', "$_: without rivals") for qw(collectives head-collectives);
spew($of, $ours . collective('allgather', 'nccl', 'nccl', 'bf16', 64, 'out', 7, '', '')
      . collective('allgather', 'nccl', 'nccl-window', 'bf16', 64, 'out', 6, '', ''));
($status, $said) = report('');
is($status, 0, 'with rivals');
like($said, qr/collectives-graph-allgather\.svg$/m, 'a picture of its own');
like(slurp("$results/2026-01-02-4-x-x1-collectives-graph-allgather.svg"), qr/all-gather, 4 ranks/,
    'with its title');
like(block('head-collectives'), cells('all-gather', '3.00 (6.00)', ('- (-)') x 5),
    'the quickest rival');
like(block('head-collectives'), cells('all-reduce', '2.00 (-)', ('- (-)') x 5), 'no rival');
unlike(block('head-collectives'), qr/barrier/, 'a barrier has no size');
like(block('collectives'),
    cells('64 B', 'oneshot', '3.00', '0.032', '7.00', '2.33', '6.00', '2.00'), 'its table');
like(block('collectives'), qr/^#### barrier\n\n\| size/m, 'a barrier has no picture');

# ---- the pages of this repository --------------------------------------------------------------

$said = `python3 bench/report.py --check 2>&1`;
is("$?$said", '0', 'the pages are what bench/results give');
my %where = map { $_ => join ' ', (slurp($_) // '') =~ /^<!-- begin (\S+) -->$/mg }
  qw(README.md docs/performance.md docs/notes/performance-tables.md
  docs/notes/collectives-tables.md);
is($where{'README.md'}, 'number', 'the README has one number');
is($where{'docs/performance.md'}, 'scores head head-stream head-collectives',
    'docs/performance.md has the short tables');
is($where{'docs/notes/performance-tables.md'},
    'measured graph stream in-place algorithms types sms links', 'its note has all');

is($where{'docs/notes/collectives-tables.md'}, 'collectives', 'and so has that of the others');

done_testing();
