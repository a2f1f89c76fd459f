#!/usr/bin/env perl
# examples/07_all_to_all on the emulated driver: every token is right, with threads and processes,
# and a token that an expert forgets is found.
use strict;
use warnings;
use Test::More;

require './tests/helpers/files.pl';

my $build   = $ENV{SYMWIN_BUILD} || 'build';
my $example = "$build/all_to_all-emu";
my $sanitized = slurp("$build/flags") =~ /-fsanitize/;

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub example {
    my ($environment, $arguments) = @_;
    return emulated($environment, "$example $arguments", $sanitized ? 200 : 60);
}

sub verified {
    my ($environment, $arguments, $ranks, $tokens, $name) = @_;
    my ($status, $output, $errors) = example($environment, $arguments);
    my $all = $ranks * $tokens;
    my $least = $ranks == 1 ? $tokens : 0;
    ok($status == 0 && $errors eq '', "$name: exit status")
      or diag("exit status $status\n$output$errors");
    like($output, qr/\Aall_to_all: $ranks ranks?, driver emu, $tokens tokens of \d+ numbers each
23 steps, 20 of them replays of one graph: an expert had $least to $all tokens
wrong numbers: 0
All tokens verified\n\z/, "$name: every line");
}

my $few = $sanitized ? 20 : 200;
verified('NTHREADS=4', $few, 4, $few, 'four threads');
verified('NTHREADS=3 SYMWIN_EMU_DEVICES=2', '--width 3 33', 3, 33, 'three on two devices');
verified('NTHREADS=1', '10', 1, 10, 'one rank');
verified('', "--nproc 3 $few", 3, $few, 'three processes');
unless ($sanitized) {
    verified('NTHREADS=20', '--width 4 12', 20, 12, 'more ranks than tables of the host can have');
    verified('NTHREADS=2', '--nproc 2 50', 4, 50, 'two processes of two threads');
}

my ($status, $output, $errors) = example('NTHREADS=2', '--forget --width 8 20');
is($status, 1, 'a forgotten token: exit status') or diag($errors);
my ($wrong) = $output =~ /^wrong numbers: (\d+)$/m;
ok($wrong > 0 && $wrong % 8 == 0, 'a forgotten token: all of its numbers are wrong');
unlike($output, qr/verified/, 'a forgotten token: claims no success');
($status, $output) = example('NTHREADS=2', '--nproc 2 --forget 20');
is($status, 1, 'in processes too');
unlike($output, qr/verified/, 'which claim no success');

($status, $output, $errors) = example('NTHREADS=2 SYMWIN_EMU_MEM=16M', '--width 4K 4K');
is($status, 1, 'no room: exit status');
like($errors, qr/rank \d: SYMWIN_NO_MEMORY: /, 'and a sentence');

for (['', '--frob', 'unknown argument "--frob": --help'], ['', '--width', '--width needs a value'],
    ['', '1X', 'TOKENS is "1X": give a number'], ['', '0', 'TOKENS is "0": give a number'],
    ['', '--nproc 65', '--nproc is "65": give a number'],
    ['NTHREADS=0', '', 'NTHREADS is "0": give a number'])
{
    my ($environment, $arguments, $want) = @$_;
    ($status, $output, $errors) = example($environment, $arguments);
    ok($status == 2 && $output eq '' && $errors =~ /\Aall_to_all: \Q$want\E[^\n]*\n\z/,
        "refuses $environment $arguments")
      or diag("exit status $status\n$output$errors");
}
($status, $output, $errors) = example('NTHREADS=64', '--nproc 2');
is("$status $errors", "1 all_to_all: 128 ranks are more than 64\n", 'refuses too many ranks');

done_testing();
