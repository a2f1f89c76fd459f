#!/usr/bin/env perl
# The fuzzers of fuzz/ as plain programs: every input of their corpora, and two seconds of random
# changes of them, the same ones each time. `make fuzz-check` does more, with AddressSanitizer.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Path qw(make_path);
use Test::More;

require './tests/helpers/files.pl';

my $build = $ENV{SYMWIN_BUILD} || 'build';
plan skip_all => 'make fuzz-check runs them under a sanitizer'
  if slurp("$build/flags") =~ /-fsanitize/;

my @fuzzers = grep { $_ ne 'main' } map { s{^fuzz/(\w+)\.c$}{$1}r } glob 'fuzz/*.c';
cmp_ok(scalar @fuzzers, '>=', 5, 'there are fuzzers');

# All run at once. The input of a failure goes to the fuzzer's own folder.
my %runs;
for my $name (@fuzzers) {
    my $folder = "$build/fuzz/$name.found";
    make_path($folder);
    unlink "$folder/crash-plain";
    my ($program, $corpus) = (abs_path("$build/fuzz/$name"), abs_path("fuzz/corpus/$name"));
    open my $pipe, '-|', "cd '$folder' && exec timeout 60 '$program' -seconds 2 '$corpus' 2>&1"
      or die;
    $runs{$name} = $pipe;
}
for my $name (sort keys %runs) {
    my $output = do { local $/; readline $runs{$name} } // '';
    ok(close $runs{$name}, "$name: no finding")
      or diag("$output; the input is in $build/fuzz/$name.found");
    my ($inputs) = $output =~ /: (\d+) inputs and \d+ changed ones in /;
    my @kept = grep { -f } glob "fuzz/corpus/$name/*";
    ok(defined $inputs && $inputs > 0 && $inputs == @kept, "$name: each of its inputs")
      or diag($output);
}

done_testing();
