# symwin-perf --kernel on the emulated driver, for tests in Perl.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build = $ENV{SYMWIN_BUILD} || 'build';
plan skip_all => 'its kernels run in processes of a plain symwin-perf and under ThreadSanitizer '
  . '(test_race); test_perf has the tool'
  if slurp("$build/flags") =~ /-fsanitize/;

our $perf   = abs_path("$build/bench/symwin-perf");
our $folder = tempdir(CLEANUP => 1);

# Takes an environment, then arguments. Returns the exit status and the output of both stdout and
# stderr.
sub perf {
    my ($environment, $arguments) = @_;
    my $settings = "TMPDIR=$folder SYMWIN_DRIVER=emu $environment";
    my $output = `cd $folder && env $settings timeout 100 $perf $arguments 2>&1`;
    return ($? >> 8, $output);
}

1;
