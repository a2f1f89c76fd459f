#!/usr/bin/env perl
# The fault sweep of libsymwin-nccl.so: tests/nccl/faults.c, which calls NCCL's allocator, while
# each resulting driver call fails. Preloaded or linked before NCCL, on a fake libcuda.so.1 or on
# the emulated driver.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

my $build = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $place = "$build/tests/nccl";
plan skip_all => "no $place/faults: make tests has not run here" unless -x "$place/faults";

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{qw(SYMWIN_DRIVER SYMWIN_NCCL SYMWIN_NCCL_PEERS NCCL_CUMEM_ENABLE LD_PRELOAD
    LD_LIBRARY_PATH FAKE_CUDA), grep { /^SYMWIN_MEM_/ } keys %ENV};
# A preloaded library is loaded before the program's AddressSanitizer runtime. That does no harm.
$ENV{ASAN_OPTIONS} = join ':', 'verify_asan_link_order=0', $ENV{ASAN_OPTIONS} // ();
$ENV{SYMWIN_EMU_DEVICES} = 4;
my $sanitized = system("grep -qs -e -fsanitize= $build/flags") == 0;

my %way = (
    'preloaded, a GPU' => ["LD_PRELOAD=$build/libsymwin-nccl.so LD_LIBRARY_PATH=$place/cuda",
        'faults'],
    'linked, a GPU'    => ["LD_LIBRARY_PATH=$place/cuda", 'faults-both'],
    'preloaded, emulated' =>
      ["SYMWIN_DRIVER=emu LD_PRELOAD=$build/libsymwin-nccl.so LD_LIBRARY_PATH=$place/emulated",
          'faults'],
    'linked, emulated' => ["SYMWIN_DRIVER=emu LD_LIBRARY_PATH=$place/emulated", 'faults-both'],
);

# All cases run. The program prints only how many faults each case had.
sub sweep {
    my ($way, $setting, $first) = @_;
    my ($environment, $program) = @{$way{$way}};
    my $errors = "$scratch/stderr";
    my @lines  = `timeout 100 env $environment $setting $place/$program $first 2>$errors`;
    my $status = $?;
    my ($faults, $passed, $cases) = (0, 0, 0);
    for (@lines) {
        next unless /^[^:]+(?:: [^:]+)?: (\d+) faults, \d+ failed, (\d+) passed on$/;
        $cases++;
        $faults += $1;
        $passed += $2;
    }
    open my $file, '<', $errors or BAIL_OUT("$errors: $!");
    # A driver that has started for one library can fail for the other: see nccl/README.md.
    my $none       = qr/^symwin: no GPU here, .* \(cuInit gave \d+, 0 devices\); see/;
    my @complaints = grep { !$first || !/$none/ } <$file>;
    close $file;
    ok($status == 0 && !@complaints && $cases == @lines && $cases >= ($first ? 4 : 19)
      && $passed > 0,
        "$way, $setting" . ($first && ', first calls') . ": $faults faults")
      or diag("status $status\n", @lines, @complaints);
}

# The program has one thread at a time. So ThreadSanitizer sees each way once. AddressSanitizer
# takes as long.
if ($sanitized) {
    sweep('preloaded, a GPU', 'SYMWIN_MEM_POOL=1', '');
    sweep('linked, emulated', 'SYMWIN_MEM_POOL=0', 'first');
    done_testing();
    exit 0;
}

# Each setting but the default one goes one of the two ways.
my @ways = ('preloaded, a GPU', 'linked, emulated');
my $turn = 0;
sweep($_, 'SYMWIN_MEM_POOL=1', '') for @ways;
sweep($ways[$turn++ % 2], $_, '') for 'SYMWIN_MEM_POOL=0', 'SYMWIN_MEM_KEEP=0',
'SYMWIN_NCCL_PEERS=0', 'SYMWIN_EMU_FABRIC=2';
sweep($_, 'SYMWIN_MEM_POOL=1', '') for 'linked, a GPU', 'preloaded, emulated';
sweep('preloaded, a GPU', 'SYMWIN_DRIVER=cuda', '');
# The first calls of a process find out what there is, and remember it.
sweep('preloaded, a GPU', $_, 'first') for 'SYMWIN_MEM_POOL=1', 'SYMWIN_MEM_POOL=0',
'SYMWIN_DRIVER=cuda';
sweep('linked, emulated', 'SYMWIN_MEM_POOL=1', 'first');
sweep('preloaded, a GPU', 'SYMWIN_MEM_DEBUG=1', '');
sweep('linked, emulated', 'SYMWIN_MEM_DEBUG=1', 'first');

done_testing();
