#!/usr/bin/env perl
# Scenes of unchanged programs on NCCL with libsymwin-nccl.so: tests/nccl/scenes.c and way.c, on the
# stand-in for NCCL and the emulated driver.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $place = "$build/tests/nccl";
plan skip_all => "no $place/scenes: make tests has not run here" unless -x "$place/scenes";

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{grep { /^(SYMWIN_NCCL|STAND_IN|SCENES)_/ } keys %ENV};
delete @ENV{qw(FAKE_CUDA LD_PRELOAD NCCL_DEBUG)};
$ENV{LD_LIBRARY_PATH}    = "$place/shared";
$ENV{SYMWIN_EMU_DEVICES} = 4;
$ENV{SYMWIN_DRIVER}      = 'emu';

my $sanitized = system("grep -qs -e -fsanitize= $build/flags") == 0;
my $thread    = system("grep -qs -e -fsanitize=thread $build/flags") == 0;

# Sanitizers have to be the first library of a process.
my $sanitizer = join ' ', map { /=> (\S*lib[at]san\S*) / ? $1 : () } `ldd $place/scenes`;
my $preload   = "LD_PRELOAD='$sanitizer $build/libsymwin-nccl.so'";
my $all       = 'SYMWIN_NCCL_SERVE=all';
my $mixed     = 'SYMWIN_NCCL_SERVE=all,broadcast=none';
my @ranks     = ($sanitized ? () : ([4, 1], [1, 4]), [2, 2]);

# Begins a command, whose output goes to files.
my $number = 0;
sub begin {
    my ($command) = @_;
    my $files = "$scratch/" . $number++;
    my $pid = fork // BAIL_OUT("fork: $!");
    exec "exec timeout 100 env $command >$files.out 2>$files.err" if $pid == 0;
    return {pid => $pid, files => $files, command => $command};
}

# Waits for it, and returns its status and what it has printed on stdout and stderr.
sub end {
    my ($run) = @_;
    waitpid $run->{pid}, 0;
    return ($?, slurp("$run->{files}.out"), slurp("$run->{files}.err"));
}

# A scene, processes and threads, a setting, what stderr has, and the program and how it is run.
sub command {
    my ($scene, $ranks, $setting, undef, $program) = @_;
    $program //= 'scenes';
    my $how = $program eq 'scenes' ? $preload : '';
    return "$setting $how $place/$program $scene @$ranks";
}

sub judge {
    my ($run, $scene, $ranks, $setting, $errors, $program) = @_;
    my ($status, $output, $printed) = end($run);
    my ($checks) = $output =~ /\A(\d+) checks, 0 failed\n\z/;
    ok($status == 0 && ($checks // 0) > 10 && $printed =~ ($errors // qr/\A\z/),
        "$scene: $ranks->[0] processes of $ranks->[1] threads, $setting"
          . ($program ? ", $program" : ''))
      or diag("status $status\n$output$printed");
    return $printed;
}

# One after the other, with the machine for itself.
sub passes { judge(begin(command(@_)), @_) }

# Most of these wait, so several run at once. ThreadSanitizer sees every second one of those whose
# processes have one thread each, beside those of the libraries.
my $turn = 0;
sub pass_together {
    my @scenes = grep { !$thread || $_->[1][0] < 4 || $turn++ % 2 } @_;
    my @runs;
    while (@scenes || @runs) {
        push @runs, [begin(command(@{$scenes[0]})), @{shift @scenes}] while @scenes && @runs < 4;
        judge(@{shift @runs});
    }
}

# ---- where time counts -------------------------------------------------------------------------

my $hosts = 'SYMWIN_ADDR=127.0.0.1 STAND_IN_HOSTS';
for my $ranks (@ranks) {
    passes($_, $ranks, $all) for qw(abort opening blocking);
}
passes($_, [4, 1], "$all $hosts=aabb") for qw(abort opening);

# ---- lives, order, groups and windows ----------------------------------------------------------

my @together;
for my $ranks (@ranks) {
    push @together, map { [$_, $ranks, $all] }
      qw(memory idle freed births groups windows coming_window final captured_end suspended_group
      ended_group unopened askers);
    push @together, map { [$_, $ranks, $mixed] } qw(order captured_order groups configured_first);
    push @together,
      ['many', $ranks, "$all SYMWIN_NCCL_MEMORY=1M LD_LIBRARY_PATH=$place/emulated:$place/shared"],
      ['memory', $ranks, "$all SYMWIN_NCCL_MEMORY=8M"];
}
push @together, map { [$_, [4, 1], "$all $hosts=aabb"] }
  qw(idle freed births groups blocking final captured_end suspended_group);
push @together, map { [$_, [2, 2], "$all $hosts=ab"] } qw(births groups send_ahead own_streams);
push @together, ['own_streams', [2, 1], $all], ['own_streams', [4, 1], "$all $hosts=aabb"];
push @together, map { ['send_ahead', @$_] } [[2, 1], "$all,sendrecv=none"],
  [[2, 1], "$all,sendrecv=none $hosts=ab"], [[4, 1], "$all,sendrecv=none $hosts=abab"];
push @together, map { [$_, [4, 1], "$mixed $hosts=abab"] } qw(order captured_order groups);
# Two calls in different orders have to fit on a device beside each other: ThreadSanitizer's has two
# multiprocessors, and each call may take two.
push @together, map { ['warm', @$_] } (map { [$_, "$mixed,sendrecv=none"] } @ranks),
  [[4, 1], "$mixed,sendrecv=none $hosts=abab"]
  unless $thread;
push @together, map { [$_, [1, 1], $all] } qw(all_at_once one_by_one);
push @together, map { ['cost', [1, 2], $_] } $all, "$all,allreduce=none";
push @together, map { ['together', $_, 'SYMWIN_NCCL_SERVE=auto'] } @ranks;
pass_together(@together);

for my $ranks (@ranks) {
    my $printed = passes('limits', $ranks, "$all NCCL_DEBUG=INFO", qr/\A(?:symwin: .*\n)+\z/);
    my @limited = $printed =~ /(, with \d+ blocks at most)$/mg;
    my $count   = $ranks->[0] * $ranks->[1];
    is(scalar @limited, 3 * $count, "limits: of three communicators");
    is(scalar(grep { $_ ne ', with 4 blocks at most' } @limited), 0, 'limits: the least one');
    is(scalar(() = $printed =~ /may serve/g), 8 * $count, 'limits: and none of the others');
}
like(passes('limits', [2, 1], "$all NCCL_DEBUG=INFO NCCL_MAX_CTAS=3", qr/\Asymwin: /),
    qr/\A(?:symwin: .*, with 3 blocks at most\n){16}\z/, 'NCCL_MAX_CTAS counts more');

# ---- failures ----------------------------------------------------------------------------------

passes('without', [2, 1], $all);
pass_together((map { ['alone', $_, $all] } @ranks), ['alone', [4, 1], "$all $hosts=aabb"]);
pass_together((map { my $ranks = $_; map { [$_, $ranks, $all] } qw(lost_window lost_call) } @ranks),
    ['lost_call', [4, 1], "$all $hosts=aabb"])
  unless $sanitized;
{
    my $long  = 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=' . ($sanitized ? 2000 : 700);
    my $short = 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=' . ($sanitized ? 300  : 100);
    local $ENV{LD_LIBRARY_PATH} = "$place/emulated:$place/shared";
    pass_together(map { my $ranks = $_; map { [$_, $ranks, "$all $long"] } qw(late deaf) } @ranks);
    passes('just_in_time', [2, 2], "$all $short");
}

pass_together(['aborted_later', [4, 1], "$all STAND_IN_WAITS=1 STAND_IN_FAIL=ncclAllGather:2:-2"],
    ['aborted_later', [4, 1],
        "$all,allreduce=none STAND_IN_WAITS=1 STAND_IN_FAIL=ncclAllReduce:1:-2"]);

# How many calls a life has of each function of NCCL.
my %lives = (
    CommInitRank => 2, CommInitRankConfig => 1, CommSplit => 1, CommWindowRegister => 1,
    CommWindowDeregister => 1, CommSuspend => 1, CommResume => 1, CommDestroy => 4, CommAbort => 4,
    CommGetAsyncError => 10, AllGather => 10, AllReduce => 1, Broadcast => 1, GroupStart => 3,
    GroupEnd => 3, RedOpCreatePreMulSum => 1, RedOpDestroy => 1, CommUserRank => 6, CommCount => 6,
    CommCuDevice => 6, CommInitRankScalable => 1, CommInitAll => 1, CommShrink => 1, CommGrow => 1,
    CommFinalize => 1, CommRevoke => 1, ReduceScatter => 1, AlltoAll => 1, Reduce => 1, Gather => 1,
    Scatter => 1, Send => 1, Recv => 1
);
# Whose it must not be, so that NCCL has the call.
my %serves = (
    ReduceScatter => 'reduce_scatter', AlltoAll => 'alltoall', Reduce => 'reduce',
    Gather => 'gather', Scatter => 'scatter', Send => 'sendrecv', Recv => 'sendrecv'
);
my $patience = $sanitized ? 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=6000 STAND_IN_TIMEOUT_MS=3000'
  : 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=2000 STAND_IN_TIMEOUT_MS=1000';
my $code     = 0;
my @failing;
for my $name (sort { $lives{$b} <=> $lives{$a} || $a cmp $b } keys %lives) {
    my $lives = $lives{$name};
    my $abort = $name eq 'CommAbort' ? 'SCENES_ABORT=1 ' : '';
    my $nccls = $serves{$name} ? ",$serves{$name}=none" : '';
    my $fail = "SCENES_FAIL=nccl$name:" . ($code++ % 6 + 1) . ":$lives";
    push @failing, "$nccls $patience $abort$fail";
}
# These processes have one thread each, beside those of the libraries. So ThreadSanitizer sees every
# fourth function, and those first that a life calls most often.
@failing = @failing[grep { $_ < 4 || $_ % 4 == 0 } 0 .. $#failing] if $thread;
pass_together(map { ['errors', [2, 1], "$mixed$_"] } @failing);

# Calls of the driver: which one is first, which is next, and whether all that follow fail.
$patience = $sanitized ? 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=3000 STAND_IN_TIMEOUT_MS=2000'
  : 'SYMWIN_BOOTSTRAP_TIMEOUT_MS=500 STAND_IN_TIMEOUT_MS=300';
my @steps = $sanitized ? ('1:97:0', '20:171:1') : ('1:5:0', '2:5:0', '3:79:1', '30:171:1');
my @late  = $sanitized ? ('1:17:0', '3:29:1') : ('1:1:0', '2:3:1');
push @steps, map { "$_ SCENES_LATE=1" } @late, reverse @late;
{
    local $ENV{LD_LIBRARY_PATH} = "$place/emulated:$place/shared";
    my $nth = 0;
    pass_together(map { ['driver', $nth++ % 2 ? [1, 2] : [2, 1], "$all $patience SCENES_STEP=$_"] }
          @steps);
    pass_together(map { ['two_streams', [2, 1], $_] } "$all $hosts=ab", $thread ? () : $all);
}

# ---- ways into a program -------------------------------------------------------------------------

pass_together(map { [$_, [2, 2], $all, undef, 'scenes-both'] } qw(births groups windows idle));
for my $prefix (qw(nccl pnccl)) {
    my $paths = "$all LD_LIBRARY_PATH=$place/stand_in:$place/shared";
    for (
        ['loaded in place of NCCL', "$paths $place/way $build/libsymwin-nccl-full.so $prefix",
            "42, NCCL had 0\n"],
        ['preloaded, and NCCL is loaded', "$paths $preload $place/way libnccl.so.2 $prefix",
            "42, NCCL had 0\n"],
        ['preloaded, and a library has an NCCL of its own, with which symwin has nothing to do',
            "$paths $preload $place/way libnccl.so.2 $prefix $place/libownway.so",
            "42, NCCL had 0\n42, its own had 2\nNCCL had 0\n"],
        ['linked before NCCL', "$all $place/way-both - $prefix", "42, NCCL had 0\n"],
        ['without symwin', "$paths $place/way libnccl.so.2 $prefix $place/libownway.so",
            "42, NCCL had 2\n42, its own had 2\nNCCL had 2\n"],
      )
    {
        my ($name, $command, $want) = @$_;
        my ($status, $output, $errors) = end(begin($command));
        is("$status $output$errors", "0 $want", "$prefix: $name");
    }
}

# ---- what is said --------------------------------------------------------------------------------

# Communicator, collective, bytes, calls, server and why not symwin: of each rank.
my @counts = split /\n */, <<'END' =~ s/\n\z//r;
0 allreduce 0 B 1 NCCL: without elements, or wrong
0 allreduce 4 B 3 symwin
0 allreduce 16 B 1 NCCL: by its group
0 allreduce 512 B 2 symwin
0 broadcast 2 B 1 NCCL: by SYMWIN_NCCL_SERVE
0 broadcast 64 B 1 NCCL: by SYMWIN_NCCL_SERVE
0 reduce 256 KiB 1 symwin
1 allreduce 1 KiB 1 symwin
1 allgather 2 MiB 1 symwin
1 alltoall 256 B 1 symwin
1 broadcast 64 B 1 NCCL: by SYMWIN_NCCL_SERVE
1 send 16 B 1 NCCL: before a collective of all ranks
1 send 32 B 1 symwin
1 receive 16 B 1 NCCL: before a collective of all ranks
1 receive 32 B 1 symwin
END

sub counted {
    my ($printed, $rank) = @_;
    my $row = qr/^symwin: +(\d+) +$rank +2 (\w+) +(\d+ \w+) +(\d+) (symwin|NCCL) +(.*)$/m;
    my @rows;
    while ($printed =~ /$row/g) {
        my ($server, $remark) = ($5, $6);
        push @rows, "$1 $2 $3 $4 $server" . ($server eq 'NCCL' ? ": $remark" : '');
        like($remark, qr/^saved (?:-?[\d.]+ ms|not measured)$/, "  remark of $rows[-1]")
          if $server eq 'symwin';
    }
    return join "\n", sort @rows;
}

my $table = passes('report', [2, 1], "$mixed SYMWIN_NCCL_REPORT=1", qr/^symwin:   comm  rank/m);
is(counted($table, $_), join("\n", sort @counts), "the report counts the calls of rank $_")
  for 0, 1;
is(scalar(() = $table =~ /^symwin: what was served in process \d+/mg), 2, 'once a process');
$table = passes('report', [2, 1], 'SYMWIN_NCCL_REPORT=1', qr/^symwin:   comm  rank/m);
like($table, qr/^symwin: +1 +0 +2 send +32 B +1 NCCL +by the table$/m, '  by default');
passes('report', [2, 1], "$mixed SYMWIN_NCCL_REPORT=0");
passes('report', [2, 1], "$mixed NCCL_DEBUG=WARN");

# One line for each communicator of each rank.
sub lines_of {
    my ($serve, $printed, $what) = @_;
    my $form = qr/^symwin: process \d+, communicator (\d) 0x[\da-f]+, (rank \d of 2): (.*)$/;
    my @lines = map { /$form/ ? "$1, $2: $3" : $_ } split /\n/, $printed;
    is(join("\n", sort @lines),
        join("\n", map { my $c = $_; map { "$c, rank $_ of 2: $what" } 0, 1 } 0, 1),
        "NCCL_DEBUG=INFO, $serve");
}
my $any = qr/\Asymwin: process /;
lines_of('all', passes('report', [2, 1], "$mixed NCCL_DEBUG=INFO", $any),
    'may serve allreduce reduce_scatter allgather alltoall reduce gather scatter sendrecv');

done_testing();
