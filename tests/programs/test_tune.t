#!/usr/bin/env perl
# Tuning tables on the emulated driver: symwin-perf --tune writes one, calls follow it, and the
# library embeds those that it was built with. Times are not checked: they are meaningless here.
use strict;
use warnings;
use Cwd qw(getcwd);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build  = $ENV{SYMWIN_BUILD} || 'build';
my $cc     = $ENV{CC}           || 'gcc';
my $perf   = "$build/bench/symwin-perf";
my $folder = tempdir(CLEANUP => 1);
my $names  = 'collective,gpu,nranks,width,kind,registered,bytes,algo,blocks,threads';
my $gpu    = 'symwin emulated GPU';

my $flags     = slurp("$build/flags");
my $sanitized = $flags =~ /-fsanitize/;
my $threads   = $flags =~ /-fsanitize=thread/;
plan(skip_all => 'under ThreadSanitizer it takes a minute, and the library has tests of its own')
  if $threads;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub perf {
    my ($environment, $arguments) = @_;
    my $output = `env SYMWIN_DRIVER=emu $environment timeout 60 $perf $arguments 2>$folder/stderr`;
    my $status = $? >> 8;
    return ($status, $output, slurp("$folder/stderr"));
}

# What the calls of a run launched, by size.
sub launched {
    my ($environment, $arguments) = @_;
    my ($status, undef, $error) = perf($environment, "$arguments --csv $folder/calls.csv");
    is($status, 0, "$arguments: exit status") or diag($error);
    my @lines = grep { !/^#/ } split /\n/, slurp("$folder/calls.csv");
    my @columns = split /,/, shift @lines;
    my %by_size;
    for (@lines) {
        my %row;
        @row{@columns} = split /,/, $_, -1;
        $by_size{$row{bytes}} = \%row;
    }
    return \%by_size;
}

# The table's row for a call, by the rule of docs/tuning.md.
sub row_for {
    my ($table, $key, $bytes) = @_;
    my @rows = @{$table->{$key} || []};
    my ($first) = grep { $_->{bytes} >= $bytes } @rows;
    return $first || $rows[-1];
}

sub read_table {
    my ($path) = @_;
    my %table;
    for (grep { !/^#/ } split /\n/, slurp($path)) {
        next if $_ eq $names;
        my @f = split /,/, $_, -1;
        push @{$table{join ',', @f[0 .. 5]}},
          {bytes => $f[6], algo => $f[7], blocks => $f[8], threads => $f[9]};
    }
    return \%table;
}

# ---- a table is made ---------------------------------------------------------------------------

my $file  = "$folder/table.csv";
my $sizes = $sanitized ? '-b 64 -e 128' : '-b 8 -e 1K';
spew($file, "the one before\n");
my ($status, $output, $error) = perf('', "-t 2 $sizes -d f16,bf16,i32 --tune $file");
is($status, 0, '--tune: exit status') or diag($error);
like($output, qr/^ +64 +f16 +plain +(oneshot_sentinel|twoshot_push) +\d+ +\d+ +\d/m,
    'says what is the best');
like($output, qr/^ +64 +i32 +window +(oneshot|twoshot\w*|copies) +\d+ +\d+ +\d/m, 'of each type');
unlike($output, qr/bf16 +plain/, 'and of one type of each width and kind');
like($output, qr/^# Wrong elements: 0 OK\n# \Q$file\E: \d+ rows$/m,
    'results are right, and the file is there');
is_deeply([glob "$folder/table.csv*"], [$file], 'alone');
like(slurp($file),
    qr/^\#\ symwin-perf\ .*,\ commit\ .*\n\#\ arguments:\ .*\n\#\ driver:\ emu.*\n(\#.*\n)*
        $names\nallreduce,\Q$gpu\E,2,2,float,0,/x,
    'it says where it comes from');
my $table = read_table($file);
is_deeply([sort keys %$table],
    [map { ("allreduce,$gpu,2,$_,0", "allreduce,$gpu,2,$_,1") } '2,float', '4,integer'],
        'with rows for all keys');
my $wrong = 0;
for my $rows (values %$table) {
    for my $i (1 .. $#$rows) {
        my ($a, $b) = @$rows[$i - 1, $i];
        $wrong++ if $a->{bytes} >= $b->{bytes};
        $wrong++ if "@$a{qw(algo blocks threads)}" eq "@$b{qw(algo blocks threads)}";
    }
}
is($wrong, 0, 'sorted, and none that goes on with the same choice');

# ---- and used ----------------------------------------------------------------------------------

for (['f16', '2,float', 1], ['i32', '4,integer', 1], ['f16', '2,float', 0]) {
    my ($type, $key, $window) = @$_;
    my $calls =
        launched("SYMWIN_TUNING=$file", "-t 2 $sizes -f 2 -d $type -n 1 -G 1 --window $window");
    cmp_ok(scalar keys %$calls, '>', 1, "$type: calls");
    for my $bytes (sort { $a <=> $b } keys %$calls) {
        my $row = row_for($table, "allreduce,$gpu,2,$key,$window", $bytes);
        is("$calls->{$bytes}{launched} $calls->{$bytes}{measured}", "$row->{algo} 1",
            "$type, $bytes bytes, window $window: the table's algorithm");
    }
}

spew("$folder/own.csv", <<"END");
# by hand
$names
allreduce,$gpu,2,4,float,1,64,twoshot,1,32
allreduce,$gpu,2,4,float,1,256,oneshot,2,64
allreduce,$gpu,2,4,float,1,4096,twoshot_push,3,64
END
my $calls = launched("SYMWIN_TUNING=$folder/own.csv", '-t 2 -b 64 -e 64K -f 4 -n 1 -G 1');
my %got = map { $_ => "@{$calls->{$_}}{qw(launched blocks threads measured wrong)}" } keys %$calls;
is_deeply(\%got,
    {
        64    => 'twoshot 1 32 1 0',
        256   => 'oneshot 1 64 1 0',
        1024  => 'twoshot_push 2 64 1 0',
        4096  => 'twoshot_push 3 64 1 0',
        16384 => 'twoshot_push 3 64 1 0',
        65536 => 'twoshot_push 3 64 1 0'
    },
    'a table by hand: algorithms and grids');
$calls = launched('SYMWIN_TUNING=0', '-t 2 -b 64 -e 64 -n 1 -G 1');
is("@{$calls->{64}}{qw(launched measured)}", 'oneshot_sentinel 0', "SYMWIN_TUNING=0: the model");
$calls = launched("SYMWIN_TUNING=$folder/own.csv", '-t 3 -b 64 -e 64 -n 1 -G 1');
is($calls->{64}{measured}, 0, 'as for ranks that the table does not have');
$calls = launched("SYMWIN_TUNING=$folder/own.csv", '--nproc 2 -b 64 -e 64 -n 1 -G 1');
is("@{$calls->{64}}{qw(launched measured)}", 'twoshot 1', 'processes go by it too');

# Each collective's rows are read back by its calls.
my @equal       = qw(allreduce allgather alltoall broadcast gather scatter reduce_scatter reduce);
my @by_parts    = qw(alltoallv allgatherv reduce_scatterv);
my @collectives = (@equal, @by_parts);
my $all = "$folder/all.table.csv";
($status, $output, $error) = perf('', "-t 2 $sizes -f 4 -d f32 --collective all --tune $all");
is($status, 0, '--tune of all collectives: exit status') or diag($error);
is(join(' ', $output =~ /^# collective: (\w+)$/mg), "@collectives",
    'all have choices but the barrier');
$table = read_table($all);
is_deeply([sort keys %$table],
    [sort map { ("$_,$gpu,2,4,float,0", "$_,$gpu,2,4,float,1") } @collectives], 'and rows');
for my $name (@equal) {
    for my $window (0, 1) {
        $calls = launched("SYMWIN_TUNING=$all",
            "-t 2 $sizes -f 4 -d f32 -n 1 -G 1 --window $window --collective $name");
        is(join(' ', map { "$_ $calls->{$_}{launched} $calls->{$_}{measured}" } sort keys %$calls),
            join(' ', map { "$_ " . row_for($table, "$name,$gpu,2,4,float,$window", $_)->{algo}
                  . ' 1' } sort keys %$calls),
            "$name, window $window: the table's algorithms");
    }
}
# Those of unequal parts by the longest one: with two ranks 2 of 3 shares.
for my $name (@by_parts) {
    my %algos = map { $_->{algo} => 1 } map { @{$table->{$_}} } grep { /^$name,/ } keys %$table;
    delete @algos{qw(oneshot put)};
    is_deeply([keys %algos], [], "$name: the table has what there is for parts");
    for my $window (0, 1) {
        my $key = "$name,$gpu,2,4,float,$window";
        my $at  = "-t 2 $sizes -f 4 -d f32 -n 1 -G 1 --window $window";
        is($table->{$key}[-1]{bytes}, $sanitized ? 32 : 320, "$name, window $window: its bytes");
        is_deeply(
            [grep { $_->{algo} eq 'put' && !$window } @{$table->{$key}}],
            [], "$name, window $window: nothing goes straight without one");
        for my $call ($name, "${name}_device") {
            $calls = launched("SYMWIN_TUNING=$all", "$at --collective $call");
            my @wrong = grep {
                my $parts = $_ * ($call eq $name ? 2 / 3 : 1 / 2);
                my $row   = row_for($table, $key, $parts);
                my $is    = $calls->{$_};
                $is->{launched} ne 'oneshot' || !$is->{measured} || $is->{wrong} ne '0'
                  || $is->{threads} != $row->{threads} || $is->{blocks} > $row->{blocks}
            } keys %$calls;
            is("@wrong", '', "$call, window $window: the table's grids");
        }
    }
}
($status) = perf('', "-t 2 -b 64 -e 64 -d f32 --collective reduce --tune $folder/b.csv");
is_deeply([sort keys %{read_table("$folder/b.csv")}],
    ["reduce,$gpu,2,4,float,0", "reduce,$gpu,2,4,float,1"], 'one alone');

# ---- what does not end well --------------------------------------------------------------------

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output, $error) = perf($environment, $arguments);
    is($status, $want_status, "$name: exit status") or diag("$output$error");
    like($error, $want, "$name: says why");
    unlike($output, qr/OK$/m, "$name: claims no success");
}

# What a run says that is ended in the last of these collectives.
sub ended {
    my ($environment, @collectives) = @_;
    my $log = "$folder/log";
    unlink $log;
    my $pid = fork // die;
    if ($pid == 0) {
        open STDOUT, '>', $log or die;
        open STDERR, '>&', \*STDOUT or die;
        exec split ' ', "env SYMWIN_DRIVER=emu $environment $perf -t 2 -b 64 -e 4K -d f32 -r 1 "
          . "--collective @{[join ',', @collectives]} --tune $folder/c.csv";
        die;
    }
    my $until = time + 50;
    select undef, undef, undef, 0.02
      until slurp($log) =~ /^# collective: $collectives[-1]/m || time > $until;
    kill TERM => $pid;
    waitpid $pid, 0;
    return slurp($log);
}

# The file that a run names so has the rows of this collective, and no others.
sub has_only {
    my ($said, $so, $name) = @_;
    my ($part) = $said =~ $so;
    return 0 if !defined $part || $part eq "$folder/c.csv";
    my @keys = sort keys %{read_table($part)};
    unlink $part;
    return "@keys" eq "$name,$gpu,2,4,float,0 $name,$gpu,2,4,float,1";
}

my $said = ended('', qw(reduce allreduce));
ok(has_only($said, qr/^symwin-perf: --tune: partial results are in (\S+)$/m, 'reduce'),
    'a run that is ended leaves what it has tuned')
  or diag($said);
# Rank 0's results are wrong, and it has none of a reduce or gather to rank 1.
my $before_it = qr/^symwin-perf: --tune: a result was wrong: only rows .* before it are in (\S+)$/m;
$said = ended('SYMWIN_PERF_BREAK=1', qw(reduce allreduce allgather));
ok(has_only($said, $before_it, 'reduce'), 'after a wrong result, what was tuned before it')
  or diag($said);
unlike($said, qr/partial results/, 'and says so');
($status, $output, $error) = perf('SYMWIN_PERF_BREAK=1',
    "-t 2 -b 64 -e 64 -d f32 -r 1 --collective reduce,allreduce,gather --tune $folder/c.csv");
is($status, 1, 'the same to its end: exit status');
ok(has_only($error, $before_it, 'reduce'), 'and rows') or diag("$output$error");

my $kept = slurp($file);
($status, $output) = perf('SYMWIN_PERF_BREAK=1', "-t 2 -b 64 -e 64 -d f32 --tune $file");
is($status, 1, 'a wrong result: exit status');
like($output, qr/^# Wrong elements: [1-9]\d* FAILED\n# \Q$file\E was not written$/m, 'is said');
is(slurp($file), $kept, 'and the file of before is still there');
($status) = perf('', "--nproc 3 -b 96 -e 96 -d i32 -r 2 --collective all --tune $folder/b.csv");
is($status, 0, 'processes make one too');
is_deeply([sort keys %{read_table("$folder/b.csv")}],
    [sort map { ("$_,$gpu,3,4,integer,0", "$_,$gpu,3,4,integer,1") } @collectives],
    'which has all collectives');
$calls = launched("SYMWIN_TUNING=$folder/b.csv",
    "--nproc 3 -b 96 -e 96 -d i32 -n 1 -G 1 --collective $_")
  and is($calls->{96}{measured}, 1, "$_ goes by it") for qw(alltoall scatter reduce);
refused('', "-t 2 -b 64 -e 64 --tune /nowhere/a.csv", 1, qr{--tune /nowhere/a.csv: No such},
    'no folder');
refused('', "-t 2 --tune $file $_", 2, qr/--tune chooses algorithms and grids itself/, $_)
  for '--link', '--algo oneshot', '-G 2', '-n 5', '-w 1', '--rounds 3', '-c 0', '--blocks 3',
      '--in-place both';
refused('', "-t 2 -b 1 -e 1 -d f32 --tune $file", 1,
    qr/--tune: every size is smaller than an element/, 'no size is an element');
is(slurp($file), $kept, 'and the file of before is still there');
refused("SYMWIN_TUNING=$0", '-t 2 -b 64 -e 64', 1,
    qr/SYMWIN_TUNING, line \d+ does not name the columns/,
    'no table');
is_deeply([grep { !/(table|own|b|calls)\.csv$/ } glob "$folder/*.csv*"], [],
    'nothing else is left');

# ---- the library's own tables ------------------------------------------------------------------

SKIP: {
    skip 'a sanitizer build is not for linking', 4 if $sanitized;
    spew("$folder/program.c", <<'END');
#include <stdio.h>
#include "symwin.h"

int main(void)
{
    symwin_unique_id id;
    symwin_comm *comm = NULL;
    symwin_allreduce_info info = {0};
    void *memory = NULL;

    if (symwin_unique_id_create(&id) != SYMWIN_OK ||
        symwin_mem_alloc(0, 4096, 0, &memory) != SYMWIN_OK ||
        symwin_comm_create(&id, 1, 0, 0, NULL, &comm) != SYMWIN_OK ||
        symwin_allreduce_query(comm, memory, memory, 8, SYMWIN_F64, SYMWIN_MAX, NULL, &info) !=
            SYMWIN_OK)
        printf("%s\n", symwin_last_error());
    printf("%s %d %d\n", symwin_algo_name(info.algo), info.threads, info.measured);
    symwin_comm_destroy(comm);
    return symwin_mem_free(memory);
}
END
    spew("$folder/other-gpu.csv",
        "$names\nallreduce,Another GPU,1,8,float,0,64,twoshot_push,1,32\n");
    spew("$folder/a-gpu x1.csv",  "$names\nallreduce,$gpu,1,8,float,0,64,twoshot_push,1,32\n");
    my $made =
        `KIND=table tools/embed.sh $folder/other-gpu.csv '$folder/a-gpu x1.csv' 2>&1 \\
            >$folder/tables.c`
      . `cd $folder && $cc -I@{[getcwd()]} -o program program.c tables.c @{[library()]} \\
            -pthread -ldl -lm 2>&1`;
    is($made, '', 'a library with tables of its own');
    my $run = "env -u SYMWIN_TUNING SYMWIN_DRIVER=emu";
    is(`$run $folder/program`, "twoshot_push 32 1\n", 'goes by them');
    is(`$run SYMWIN_TUNING=0 $folder/program`, "oneshot_sentinel 64 0\n", 'or not');
    is(`$run SYMWIN_TUNING=$folder/own.csv $folder/program`, "oneshot_sentinel 64 0\n",
        'or by another');
}

sub library { return ($build =~ m{^/} ? "" : getcwd() . "/") . "$build/libsymwin.a" }

done_testing();
