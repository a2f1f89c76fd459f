#!/usr/bin/env perl
# bench/scale/scale.py: docs/scaling.md has the tables that it gives; the simulation against closed
# forms, worked out here from the measured file; properties that each model of these has; and what
# it refuses.
use strict;
use warnings;
use File::Temp qw(tempdir);
use IPC::Open2;
use List::Util qw(max min);
use Test::More;

require './tests/helpers/files.pl';

open my $flags, '<', ($ENV{SYMWIN_BUILD} || 'build') . '/flags' or die;
plan(skip_all => 'hardly anything of it is built, so a sanitizer has nothing to see')
  if grep { /-fsanitize/ } <$flags>;
plan(skip_all => 'no python3') unless `python3 -c 'print(1)' 2>/dev/null`;

my $folder   = tempdir(CLEANUP => 1);
my $measured = 'bench/results/2026-11-27-4-x-nvidia-h200-collectives-graph.csv';
my @all      = qw(allreduce reduce_scatter allgather broadcast alltoall);
my ($KI, $MI, $GI) = (1 << 10, 1 << 20, 1 << 30);

# One interpreter for all commands: to start it takes longer than a table.
my $python = <<'END';
import contextlib, io, shlex, sys
sys.path.insert(0, "bench/scale")
import scale
for line in sys.stdin:
    sys.argv, text = ["scale.py"] + shlex.split(line), io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            status = scale.main()
        except SystemExit as end:
            status = end.code
    print(len(text.getvalue()), status)
    print(text.getvalue(), end="", flush=True)
END
my ($answers, $commands);
open2($answers, $commands, 'timeout', 100, 'python3', '-B', '-c', $python);

# Returns stdout and stderr, and the exit status.
sub scale {
    my ($arguments) = @_;
    print $commands "$arguments\n";
    $commands->flush;
    my ($length, $status) = (<$answers> // BAIL_OUT("$arguments: no answer")) =~ /(\d+) (\d+)/;
    read $answers, my ($said), $length;
    return ($said, $status);
}

# The rows of a table, each as {column => cell}.
sub rows {
    my ($arguments) = @_;
    my ($said, $status) = scale($arguments);
    my ($head, undef, @lines) = map { [/[^| ][^|]*?(?= \|)/g] } split /\n/, $said;
    diag($said) if $status;
    return map { my %row; @row{@$head} = @$_; \%row } @lines;
}

sub column {
    my ($name, @rows) = @_;
    return map { $_->{$name} } @rows;
}

# Whether each number is at least the one before; above it if $strictly.
sub rising {
    my ($strictly, @numbers) = @_;
    for my $i (1 .. $#numbers) {
        return 0 if $numbers[$i] < $numbers[$i - 1] * ($strictly ? 1.0001 : 1);
    }
    return @numbers > 1;
}

sub near {
    my ($is, $want, $name) = @_;
    ok(abs($is - $want) <= 1e-4 * $want, $name) or diag("$is, and not $want");
}

# What four GPUs took.
my %took;
for (split /\n/, slurp($measured)) {
    my @cells = split /,/;
    $took{$cells[-1]}{$cells[4]} = $cells[12] if /^symwin,auto/;
}

# ---- the page ----------------------------------------------------------------------------------

my $command = 'timeout 60 python3 bench/scale/scale.py';
my ($said, $status) = (scalar `$command --check 2>&1`, $? >> 8);
is("$status $said", '0 ', 'the page has the tables that the simulation gives');
my $page = slurp('docs/scaling.md');
(my $other = $page) =~ s/^(\| 128 \| 1024 \| )(\S)/$1$2$2/m or BAIL_OUT('no row of 128 hosts');
spew("$folder/page.md", $other);
($said, $status) = scale("--check --document $folder/page.md");
is($status, 1, 'one other cell');
like($said, qr/\Ascale\.py: \S+page\.md has other tables [^\n]+\n\z/, 'is said in a sentence');
($said, $status) = scale("--write --document $folder/page.md");
ok($status == 0 && slurp("$folder/page.md") eq $page, 'and --write corrects it');
(my $less = $page) =~ s/<!-- end rule -->\n//;
spew("$folder/page.md", $less);
($said, $status) = scale("--check --document $folder/page.md");
is("$status $said", "1 scale.py: $folder/page.md: not one block rule\n", 'a block without an end');
($said, $status) = scale("--check --document $folder/none.md");
ok($status == 1 && $said =~ /\Ascale\.py: [^\n]*none\.md[^\n]*\n\z/, 'no page');
my ($tables) = scale('--doc');
my ($missing) = grep { index($page, $_) < 0 } grep { /^\|/ } split /\n/, $tables;
is($missing, undef, '--doc prints the lines of the page');

# The page's prose quotes its tables.
my ($reached) = $page =~ /^\| 1 GiB \|.*\| (\d+ %) \|/m;
my %at_last = $page =~ /^\| (\w[^|]*?) \|.*, (\d+ %) \([^)]*\) \| \d+ \|$/mg;
my ($tree) = $page =~ /^\| 1 GiB \|.* \| (\d+) \|$/m;
like($page, qr/two exchanges reach \Q$reached\E of the bound/, 'the share at 1 GiB');
cmp_ok($reached =~ s/ %//r, '>=', 90, 'is what was aimed at');
like($page, qr/\s+rails reach \Q$at_last{'without two exchanges'}\E, and its tree\D+$tree us/,
    "without symwin's sums");
like($page, qr/of 3 us give \Q$at_last{'without them, trees at 1, 3 us'}\E\./, 'and at best');
my ($one_lane, $two_lanes) = @at_last{'1 communicator a rail', '2 communicators a rail'};
like($page, qr/\[one has \Q$one_lane\E\]\(\S+, two\s+\Q$two_lanes\E/, 'with communicators');
like($page, qr/^\*\*Nothing on this page was measured on several hosts\.\*\*/m, 'what it is');
like($page, qr/^\*\*It does not yet reach the 15 % that were aimed at\.\*\*/m, 'what was compared');

# ---- a test bed --------------------------------------------------------------------------------

# Inside 3 us and 1 us for each KiB; a rail takes 20 us and 4 for each KiB, two calls at once as
# long as one, and four twice as long.
my %together = (rail => 1, pairs => 1, lanes => 2);
my $scale = 1; # inside
sub inside { return $scale * (3 + $_[0] / $KI) }
sub rail   { return 20 + 4 * $_[0] / $KI }

sub bed {
    my ($off) = @_;
    my $names = 'library,algo,bytes,ranks,time_us,blocks,collective';
    my $rows  = sub {
        my ($part, @rows) = @_;
        return join '', map { "$_\n" } "# bed: $part", $names, @rows;
    };
    my @sizes = map { 2 * $KI << $_ } 0 .. 9;
    my $rails = join '', map {
        my $name = $_;
        $rows->($name,
            map { "symwin,nccl,$_,2," . rail($_) * $together{$name} . ",0,allreduce" } @sizes)
    } qw(rail pairs lanes);
    my $size = 1 * $MI;
    spew("$folder/bed.csv", $rows->('inside', map {
        my $of = $_;
        map { "symwin,auto,$_,2," . inside($_) . ",0,$of" } @sizes
    } qw(allreduce reduce_scatter allgather))
          . $rails
          . $rows->('whole',
        "symwin,oneshot,$size,4," . (inside($size) + 1 + rail($size)) . ",0,allreduce",
        "symwin,rails,$size,4,"
          . $off * (2 * inside($size) + 2 + rail($size / 2)) . ",1,allreduce",
        # The first piece is on its rail while the second is reduced.
        "symwin,rails,$size,4,"
          . (inside($size / 2) + 2 + rail($size / 4) + 2 * inside($size / 2)) . ",2,allreduce",
        # Without times inside, four pieces are on their rails at the same time.
        $scale < 1 ? "symwin,rails,$size,4," . (2 + 2 * rail($size / 8)) . ",4,allreduce" : ()));
    return scale("--bed $folder/bed.csv");
}

($said, $status) = bed(1);
is($status, 0, 'whole calls of the parts that were measured');
is(scalar(() = $said =~ / 1\.00 \|$/mg), 3, '  by one exchange, and in one and two pieces')
  or diag($said);
$scale = 1e-6;
($said, $status) = bed(1);
like($said, qr/^\| 1 MiB \| rails, 4 \| .* \| 1\.00 \|$/m, 'four calls that share a rail');
$scale = 1;
($said, $status) = bed(1.2);
ok($status == 1 && $said =~ /^\| 1 MiB \| rails, 1 \| .* \| 0\.83 \|$/m
      && $said =~ /^67% of the times are within 15%$/m, 'one that took a fifth longer')
  or diag($said);
my $bed = slurp("$folder/bed.csv");
for my $part (qw(inside rail pairs lanes whole)) {
    (my $without = $bed) =~ s/^# bed: $part$/# bed: another/m;
    spew("$folder/bed.csv", $without);
    ($said, $status) = scale("--bed $folder/bed.csv");
    ok($status == 1 && $said =~ /\Ascale\.py: \S+bed\.csv: no times of $part[^\n]* by bed\.sh\n\z/,
        "a bed without $part")
      or diag($said);
}

# ---- closed forms ------------------------------------------------------------------------------

for my $collective (@all) {
    my ($row) = rows("--collective $collective --gpus 4 --hosts 1 --bytes 16M");
    near($row->{us}, $took{$collective}{16 * $MI}, "$collective of one host: the time inside");
}
my @one = column('us', rows('--gpus 4 --hosts 1 --bytes 1,3M,2G'));
my %all_reduce = %{$took{allreduce}};
near($one[0], min(values %all_reduce), 'below the measured sizes: the first');
near($one[1], $all_reduce{2 * $MI} * ($all_reduce{4 * $MI} / $all_reduce{2 * $MI})
      ** (log(1.5) / log(2)), 'between two sizes: a line of the logarithms');
near($one[2], 4 * $all_reduce{512 * $MI}, 'above them: the rate of the last');
# Eight GPUs carry 7/8 of the bytes over each link, and four 3/4.
my ($eight) = rows('--gpus 8 --hosts 1 --collective allgather --bytes ' . 6 * $MI);
my ($four_gpus) = rows('--gpus 4 --hosts 1 --collective allgather --bytes ' . 7 * $MI);
near($eight->{us}, $four_gpus->{us}, 'eight GPUs: four with as many bytes over a link');
my ($pushed) = rows('--gpus 8 --hosts 1 --bytes 48K');
near($pushed->{us}, $all_reduce{64 * $KI} * ($all_reduce{128 * $KI} / $all_reduce{64 * $KI})
      ** (log(48 * 7 / 3 / 64) / log(2)), 'and a push to seven peers: seven thirds of the bytes');
# A rail by PAT, and messages to each GPU of other hosts.
my ($pat) = rows('--gpus 1 --hosts 64 --collective allgather --bytes 1K');
near($pat->{us}, 8 + 6 * 14 / 3.5 + 64 * 2.8 + 63 / 64 * $KI / (50e3 * 0.75), 'PAT');
my ($messages) = rows('--gpus 4 --hosts 64 --collective alltoall --bytes 1K');
near($messages->{'NCCL ring, us'}, 6.6 + 2.7 + 4 * 63, 'all-to-all: a message to each GPU');
near($messages->{us}, $took{alltoall}{$KI} + 1 + 6.6 + 5 + 63, 'and on a rail, to each host');

# One chunk: the stages, two handovers and a call of NCCL's tree by LL.
my $size = 64 * $KI;
my ($small) = rows('--gpus 4 --hosts 128 --bytes 64K --chunks 1');
my $rail = 6.8 + 2 * 7 * 5 + 2 * $size / 4 / (50e3 * 0.92 / 3.8);
near($small->{us}, $took{reduce_scatter}{$size} + $took{allgather}{$size} + 2 + $rail,
    'one chunk: the sum of its stages');
is("$small->{way}, $small->{engine}", 'stages, tree, LL', 'by the tree');
near($small->{'NCCL tree, us'}, 6.8 + 2 * (3 * 0.6 + 7 * 5) + 2 * $size / 4 / (50e3 * 0.92 / 3.8),
    'NCCL over all ranks by the tree');
near($small->{'NCCL ring, us'},
    6.6 + 2 * (512 - 128) * 1.0 + 2 * 127 * 2.7 + 2 * 511 / 512 * $size / 4 / 25e3,
    'and by the ring');
near($small->{'bound, us'}, 2 * 127 / 128 * $size / 4 / 50e3, 'the bound');
my ($slow) = rows('--gpus 4 --hosts 4 --bytes 1G --rate 0.1 --chunks 1 --ways stages');
near($slow->{us}, 2 * ($took{reduce_scatter}{512 * $MI} + $took{allgather}{512 * $MI}) + 2
      + 8.4 + 6 * 14 + 2 * 3 / 4 * $GI / 4 / 100, 'a slow network: the ring by Simple');
# Two chunks by hand. The network is slow, so it hides all stages inside but the first and the last.
my ($double) = rows('--gpus 4 --hosts 4 --bytes 1G --rate 0.1 --chunks 2 --communicators 1'
    . ' --ways stages');
near($double->{us}, $took{reduce_scatter}{512 * $MI} + $took{allgather}{512 * $MI} + 2
      + 2 * (8.4 + 6 * 14) + 2 * 3 / 4 * $GI / 4 / 100, 'and in two chunks');
# Two exchanges of messages to each host, a sum, and six handovers.
my ($swaps) = rows('--gpus 4 --hosts 16 --bytes 16M --chunks 1 --ways swaps');
near($swaps->{us}, $took{reduce_scatter}{16 * $MI} + $took{allgather}{16 * $MI} + 4
      + 2 * (8.4 + 14 + 15 / 16 * 4 * $MI / 50e3) + 4 * $MI / 1e6, 'two exchanges');
is("$swaps->{way}, $swaps->{engine}", 'swaps, sends, Simple', 'by messages');
my ($posts) = rows('--gpus 4 --hosts 1024 --bytes 1K --chunks 1 --ways swaps');
near($posts->{us}, $took{reduce_scatter}{$KI} + $took{allgather}{$KI} + 4
      + 2 * (6.6 + 5 + 1023) + 256 / 1e6, 'which take 1 us each');
# A quick network: what is left is the stages inside, one after the other.
my $stages = 4 * ($took{reduce_scatter}{256 * $MI} + $took{allgather}{256 * $MI});
my ($quick) = rows('--gpus 4 --hosts 2 --bytes 1G --chunks 4 --rate 200 --communicators 4');
cmp_ok($quick->{us}, '>=', $stages, 'stages inside do not overlap each other');
cmp_ok($quick->{us}, '<', 1.02 * $stages, 'nor does anything else count then');
my ($linked) = rows('--hosts 128 --bytes 1G --chunks 32 --communicators 32 --rate 1');
cmp_ok($linked->{us}, '>=', $linked->{'bound, us'}, 'nor do calls on a link');
for my $collective ('allreduce', 'broadcast') {
    my ($alone) = rows("--collective $collective --gpus 1 --hosts 16 --bytes 1M --ways whole");
    near($alone->{us}, min(grep { $_ ne '-' } @$alone{'NCCL ring, us', 'NCCL tree, us'}),
        "$collective of one GPU a host: NCCL's own time");
}

# ---- properties --------------------------------------------------------------------------------

my $sizes = '1,8,1000,64K,100K,1M,3M,16M,100M,256M,1G,8G';
for my $collective (@all) {
    my (%us, $faster);
    for my $rate (5, 50, 100) {
        my @rows = rows("--collective $collective --rate $rate --hosts 1,2,5,128 --bytes $sizes");
        push @{$us{$rate}{$_->{hosts}}}, $_->{us} for @rows;
        $faster = $_ for grep { $_->{us} < $_->{'bound, us'} } @rows;
    }
    is($faster, undef, "$collective is never faster than the bound");
    ok((!grep { !rising(0, @{$us{50}{$_}}) } 1, 2, 5, 128), 'more bytes are never faster');
    ok(rising(1, map { $us{50}{$_}[3] } 1, 2, 5, 128), 'nor are more hosts, with 64 KiB');
    my @slower = grep {
        my $i = $_;
        !rising(0, map { $us{$_}{128}[$i] } 100, 50, 5)
    } 0 .. 11;
    is("@slower", '', 'more rate is never slower');
    ok(rising(1, map { $us{$_}{128}[-1] } 50, 5), 'and is faster at 8 GiB');
}
my ($free)  = rows('--hosts 128 --bytes 1G');
my ($whole) = rows('--hosts 128 --bytes 1G --chunks 1');
cmp_ok($free->{chunks}, '>', 1, 'several chunks at 1 GiB');
cmp_ok($free->{us}, '<', 0.9 * $whole->{us}, 'are faster than one');
ok(rising(1, map { (rows("--hosts 128 --bytes 1G --latency $_"))[0]{us} } 3, 5, 10),
    'longer hops take longer');
ok(rising(1, map { (rows("--hosts 128 --bytes 1G --communicators $_"))[0]{us} } 4, 2, 1),
    'several communicators of a rail take less');
my @before = times;
my $largest = `$command --hosts 12500 --gpus 8 --bytes 1G --communicators 4`;
my @after = times;
like($largest, qr/^\| 12500 \| 100000 \| $GI \| \d+\.?\d* \|/m, '100,000 GPUs');
cmp_ok($after[2] + $after[3] - $before[2] - $before[3], '<', 3, 'take less than 3 s');

# ---- refused -----------------------------------------------------------------------------------

is(system("$command word 2>$folder/stderr") >> 8, 2, 'a word');
is(slurp("$folder/stderr"), "scale.py: unrecognized arguments: word\n", 'is refused in a sentence');
for ('--hosts 0', '--hosts 1,x', '--hosts ""', '--gpus 0', '--gpus 73', '--bytes 0', '--bytes 1X',
    '--bytes 1.5', '--rate 0', '--rate nan', '--rate inf', '--latency -1', '--collective foo',
    '--tree-share 1.1', '--communicators 0', '--ways all', '--chunks 0', '--check --doc',
    '--nothing') {
    ($said, $status) = scale($_);
    ok($status == 2 && $said =~ /\Ascale\.py: [^\n]+\n\z/, "$_: refused") or diag("$status $said");
}
done_testing;
