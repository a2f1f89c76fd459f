#!/usr/bin/env perl
# examples/06_fast_allreduce on the emulated driver: a right barrier and right results, with threads
# and with processes. Its tests must notice a missing signal, and nobody may wait for ever for a
# rank that is late or gone.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;
use Time::HiRes qw(time sleep);

require './tests/helpers/files.pl';

my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $example = "$build/fast_allreduce-emu";
my $scratch = tempdir(CLEANUP => 1);
my $flags = slurp("$build/flags");
my $sanitized = $flags =~ /-fsanitize/;
my $limit = $sanitized ? 300 : 100;
my $type = qr/\d lengths, 45 calls of each/;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub example {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$example $arguments", $limit);
}

sub verified {
    my ($environment, $arguments, $ranks, $name, $multicast) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    my ($in, $us) = $multicast ? (', multicast in 0', ' multicast us       GB.s') : ('', '');
    my $times = $multicast ? qr/(?: +\d+\.\d\d){6}/ : qr/(?: +\d+\.\d\d){4}/;
    ok($status == 0 && $errors eq '', "$name: exit status")
      or diag("exit status $status\n$output$errors");
    my $early = qr/too early 0 times after the start signal, 0 after the end signal/;
    like($output, qr/^fast_allreduce: $ranks ranks, driver emu, .*
barrier: 450 turns, 400 of them from graphs: $early
f32: $type: one-shot wrong in 0 places, two-shot in 0$in
f16: $type: one-shot wrong in 0 places, two-shot in 0$in
bf16: $type: one-shot wrong in 0 places, two-shot in 0$in
 type      bytes  one-shot us       GB.s  two-shot us       GB.s$us
(?: +(?:f32|f16|bf16) +\d+$times\n)+All results verified\n\z/, "$name: every line");
}

# ---- what it proves ----------------------------------------------------------------------------

if ($sanitized) {
    verified('NTHREADS=3 SYMWIN_EMU_DEVICES=2', '1K', 3, 'three threads on two devices');
    # ThreadSanitizer sees no race between processes.
    verified('', '--nproc 2 1K', 2, 'two processes', 1) if $flags !~ /-fsanitize=thread/;
} else {
    verified('NTHREADS=4 SYMWIN_EMU_ALIAS=1', '8K', 4, 'four threads, alias fences', 1);
    verified('NTHREADS=3 SYMWIN_EMU_DEVICES=2', '5000', 3, 'three threads on two devices');
    verified('NTHREADS=1', '1K', 1, 'one rank');
    verified('', '--nproc 4 4K', 4, 'four processes', 1);
    verified('NTHREADS=2', '--nproc 2 1K', 4, 'two processes of two threads', 1);
}

# ---- bugs that it notices ------------------------------------------------------------------------

# A missing signal is a race, at which ThreadSanitizer would end the program. On a busy machine the
# ranks may happen to come in the right order once.
sub noticed {
    my ($signal, $counts) = @_;
    my $barrier = qr/^barrier: .*$counts signal$/m;
    my $some = qr/[1-9]\d*/;
    my @wrong = map {
        qr/^$_: .*: one-shot wrong in $some places, two-shot in $some, multicast in $some$/m
    } qw(f32 f16 bf16);
    my ($status, $output, $errors);
    for (1 .. 4) {
        ($status, $output, $errors) = example('NTHREADS=2', "--without $signal 1K");
        last if !grep { $output !~ $_ } $barrier, @wrong;
    }
    is($status, 1, "without the $signal signal: exit status") or diag($errors);
    like($output, $barrier, 'the test of the barrier says which one is missing');
    like($output, $_, 'wrong results') for @wrong;
    unlike($output, qr/verified/, 'claims no success');
}

if ($flags !~ /-fsanitize=thread/) {
    noticed('start', qr/too early [1-9]\d* times after the start signal, 0 after the end/);
    noticed('end', qr/too early 0 times after the start signal, [1-9]\d* after the end/);
}

# No result is wrong on the emulated driver, which can look for the fences all the same.
{
    my $watched = 'NTHREADS=2 SYMWIN_EMU_ALIAS=1';
    my ($status, $output, $errors) = example($watched, '--without fences --timeout 5000 1K');
    ok($status == 1 && $errors =~ /rank [01]: .*CUDA_ERROR_LAUNCH_FAILED/
        && $output =~ /^barrier: /m && $output !~ /verified/, 'without the alias fences')
      or diag("exit status $status\n$output$errors");
}

# ---- no endless waits ----------------------------------------------------------------------------

# Longer than a rank that does come needs. Kernels spin for so long: under sanitizers once.
my $late = $sanitized ? 5000 : 400;
for ($sanitized ? () : 'NTHREADS=3', '--nproc 3') {
    my ($environment, $arguments) = /NTHREADS/ ? ($_, '') : ('', $_);
    my $since = time;
    my ($status, $output, $errors) =
      example($environment, "$arguments --absent 1 --timeout $late 1K");
    is($status, 1, "$_, a rank is late: exit status");
    like($errors, qr/rank [02]: gave up: a rank has not signalled for $late ms/,
        'says for how long it has waited');
    like($errors, qr/rank 1: gave up: .*rank [02] aborted the communicator/,
        'the late one leaves too');
    unlike($output, qr/places|verified/, 'claims no success');
    cmp_ok(time - $since, '<', $sanitized ? 60 : 10, 'soon');
}

# A process is killed while kernels wait for it.
{
    my $pid = fork // die "fork: $!";
    if ($pid == 0) {
        open STDOUT, '>', "$scratch/killed.out" or die;
        open STDERR, '>', "$scratch/killed.err" or die;
        $ENV{SYMWIN_DRIVER} = 'emu';
        exec $example, '--nproc', '3', '1M';
        die "exec: $!";
    }
    my $until = time + $limit;
    sleep 0.05 while slurp("$scratch/killed.out") !~ /^barrier/m && time < $until;
    my @children = split ' ', slurp("/proc/$pid/task/$pid/children");
    is(scalar @children, 3, 'three processes');
    my $since = time;
    kill KILL => $children[1] if @children == 3;
    waitpid $pid, 0;
    is($? >> 8, 1, 'a process is killed: exit status');
    cmp_ok(time - $since, '<', $sanitized ? 60 : 15, 'soon');
    my $errors = slurp("$scratch/killed.err");
    like($errors, qr/rank $_: .*rank 1\b/, "rank $_ says who is gone") for 0, 2;
}

# ---- what it refuses ---------------------------------------------------------------------------

for (['', '1X'], ['', '1023'], ['', '--nproc 0'], ['', '--nproc 65'], ['', '--timeout'],
    ['', '--without both'],
    ['', '--absent x'], ['', '--frob 1'], ['NTHREADS=0', '']) {
    my ($status, $output, $errors) = example(@$_);
    ok($status == 2 && $output eq '' && $errors =~ /\Afast_allreduce: .*makes no sense\nusage: /,
        "refuses @$_")
      or diag("exit status $status\n$output$errors");
}
for (['', '--nproc 2 --absent 9 1K'], ['NTHREADS=2', '--absent 2 1K']) {
    my ($status, $output, $errors) = example(@$_);
    ok($status == 1 && $output eq ''
      && $errors =~ /\Afast_allreduce: --absent is \d: of 2 ranks the last one is 1\n\z/,
        "refuses @$_") or diag("exit status $status\n$output$errors");
}
my ($status, $output) = example('', '--help');
ok($status == 0 && $output =~ /\Ausage: /, '--help');

done_testing();
