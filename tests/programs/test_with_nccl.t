#!/usr/bin/env perl
# examples/03_with_nccl without a GPU: its errors if there is no NCCL or no CUDA, and all its steps
# on a fake NCCL, whose collectives run on the host (tests/nccl/fake_collectives.c), and a fake
# libcuda.so.1 on the emulated driver.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build   = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $program = "$build/with_nccl";
my $cuda    = "$build/tests/nccl/cuda";
my $nccl    = "$build/tests/nccl/collectives";
plan skip_all => "no $nccl/libnccl.so.2: make tests has not run here"
  unless -e "$nccl/libnccl.so.2";

# Files of these names that are no libraries hide those of the machine.
my $scratch = tempdir(CLEANUP => 1);
for my $name (qw(libcuda.so.1 libnccl.so.2)) {
    open my $file, '>', "$scratch/$name" or BAIL_OUT("$scratch/$name: $!");
    print $file "no library\n" x 100;
    close $file;
}

delete @ENV{qw(SYMWIN_DRIVER SYMWIN_NCCL SYMWIN_NCCL_PEERS NCCL_CUMEM_ENABLE NCCL_NVLS_ENABLE
    NTHREADS LD_PRELOAD LD_LIBRARY_PATH), grep { /^SYMWIN_MEM_/ } keys %ENV};
# A preloaded library is loaded before the program's AddressSanitizer runtime. That does no harm.
$ENV{ASAN_OPTIONS} = join ':', 'verify_asan_link_order=0', $ENV{ASAN_OPTIONS} // ();
$ENV{SYMWIN_EMU_DEVICES} = 3;

my $gpus    = "LD_LIBRARY_PATH=$cuda:$nccl";
my $preload = "$gpus LD_PRELOAD=$build/libsymwin-nccl.so";

# Takes an environment, then arguments. Returns the exit status, stdout and stderr.
sub with_nccl {
    my ($environment, $arguments) = @_;
    my $output = `timeout 60 env $environment $program $arguments 2>$scratch/stderr`;
    return ($? >> 8, $output, slurp("$scratch/stderr"));
}

sub refused {
    my ($environment, $arguments, $want_status, $want, $name) = @_;
    my ($status, $output, $errors) = with_nccl($environment, $arguments);
    is($status, $want_status, "$name: exit status");
    like($errors, $want, "$name: says why");
    unlike($output, qr/cleaned up/, "$name: claims no success");
}

# ---- where it cannot run ------------------------------------------------------------------------

sub one_line {
    my ($part) = @_;
    return qr{\Awith_nccl: [^\n]*$part[^\n]*\n\z};
}

refused("LD_LIBRARY_PATH=$scratch", 'window', 77, one_line('no driver of CUDA'), 'no CUDA');
refused("$gpus FAKE_CUDA=none", 'window', 77, one_line('cuInit'),
    'a driver that gives no function');
refused("$gpus SYMWIN_EMU_DEVICES=0", 'window', 77, qr{^with_nccl: .*finds no GPU}m,
    'a driver without devices');
refused("LD_LIBRARY_PATH=$cuda:$scratch", 'window', 77, one_line('set SYMWIN_NCCL'), 'no NCCL');
refused("LD_LIBRARY_PATH=$cuda SYMWIN_NCCL=$build/tests/nccl/libnccl.so.2", 'window', 77,
    one_line('has no ncclGetVersion: 2.27'), 'an NCCL of other times');
refused("$gpus FAKE_NCCL=old", 'window', 77, one_line('version'),
    'an NCCL that does not tell its version');
refused($gpus, '', 2, one_line('give register or window'), 'no mode');
refused($gpus, 'windows', 2, one_line('"windows": give register or window'), 'an unknown mode');
refused($gpus, '--windows -1 window', 2, one_line('--windows is "-1"'), 'less than no windows');
refused($gpus, '--order random window', 2, one_line('give forward, backward or mixed'),
    'an unknown order');
refused($gpus, '--free never window', 2, one_line('give before or after'), 'an unknown time');
refused($gpus, 'window register', 2, one_line('unknown argument "register"'), 'two modes');
refused("$gpus NTHREADS=0", 'window', 2, one_line('NTHREADS is "0"'), 'no ranks');
refused("$gpus NTHREADS=4", 'window', 2, one_line('give 3 at most'), 'more ranks than GPUs');
my ($status, $output, $errors) = with_nccl('', '--help');
ok($status == 0 && $output =~ /^usage: .*MODE.*--free/s && $errors eq '', '--help');

# ---- what it prints -----------------------------------------------------------------------------

my $ranks = sub { my $what = shift; join '', map { "  Rank $_ $what\n" } 0 .. 2 };
my %modes = (
    register => ['ncclCommRegister',       'User buffers'],
    window   => ['ncclCommWindowRegister', 'Symmetric memory'],
);
for my $mode (sort keys %modes) {
    my ($call, $title) = @{ $modes{$mode} };
    for my $owner ('NCCL', 'symwin') {
        my $apart = $owner eq 'symwin' ? '102400' : '-?\d+';
        my $want = join '', "Starting AllReduce example with 3 ranks on NCCL 2.28.7, $call\n",
            (map { "  Rank $_ communicator initialized using device $_\n" } 0 .. 2), "$title:\n",
            $ranks->("allocated 4.00 MB per buffer, memory of $owner"),
            $ranks->('buffers registered'),
            $ranks->('data initialized'), "Starting AllReduce with 1048576 elements \\(4 MB\\)\n",
            "AllReduce completed successfully\n",
            "Verification - 1048576 elements on each of 3 ranks equal the host's own sum\n",
            "Results verified correctly\n", "Two small buffers:\n",
            $ranks->("allocated 100000 bytes per buffer, $apart apart, memory of $owner"),
            $ranks->('AllReduce from each to the other and in place verified'),
            "16 buffers of 1 MB:\n",
            $ranks->("allocated 16 in [\\d.]+ ms, memory of $owner"),
            $ranks->('registered 16 in [\d.]+ ms'),
            $ranks->('AllReduce on the first, the middle and the last verified'),
            $ranks->('buffers deregistered, forward'),
            $ranks->('buffers freed before ncclCommDestroy'),
            "All resources cleaned up successfully\n";
        my ($status, $output, $errors) = with_nccl($owner eq 'symwin' ? $preload : $gpus, $mode);
        is($status, 0, "$mode, memory of $owner: exit status");
        like($output, qr/\A$want\z/, "$mode, memory of $owner: every line, in order");
        is($errors, '', "$mode, memory of $owner: nothing on stderr");
    }
}

# ---- every order --------------------------------------------------------------------------------

for my $order (qw(forward backward mixed)) {
    for my $free (qw(before after)) {
        my ($status, $output, $errors) =
            with_nccl("$preload NTHREADS=2", "--windows 7 --order $order --free $free window");
        ok($status == 0 && $errors eq ''
          && $output =~ /deregistered, $order\n.*freed $free ncclCommDestroy\n.*cleaned up/s,
            "symwin's memory: $order, freed $free the communicator")
          or diag("$status\n$output$errors");
    }
}
($status, $output, $errors) = with_nccl("$preload NTHREADS=1", '--windows 500 window');
ok($status == 0 && $output =~ /registered 500 in/, '500 windows')
  or diag("$status\n$output$errors");
($status, $output) = with_nccl("$preload NTHREADS=1", '--windows 0 register');
ok($status == 0 && $output !~ /1 MB/, 'no windows');
($status, $output) = with_nccl("$preload NTHREADS=1 SYMWIN_MEM_POOL=0", '--windows 3 register');
ok($status == 0 && $output =~ /memory of symwin/ && $output !~ /, 102400 apart/,
    'without a pool no chunk is shared');

# ---- what goes wrong ----------------------------------------------------------------------------

refused("$gpus FAKE_NCCL=wrong", 'window', 1, one_line('rank \d: wrong result: element 1048575'),
    'a wrong sum');
refused("$gpus FAKE_NCCL=null", 'register', 1, one_line('registered nothing'), 'no handle');
refused("$preload SYMWIN_EMU_MEM=16M", 'window', 1, one_line('ncclMemAlloc'),
    'memory that is not there');

done_testing();
