#!/usr/bin/env perl
# libsymwin-nccl.so in programs that do not know it (tests/nccl). A call is served from the pool or
# passed to the next NCCL, with the result that NCCL would give. Nothing is ever printed. No GPU and
# no real NCCL is used. A fake NCCL tells which calls reach it. The GPUs are the emulated driver:
# chosen by SYMWIN_DRIVER=emu, or as a libcuda.so.1 that looks like NVIDIA's.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

my $build   = abs_path($ENV{SYMWIN_BUILD} || 'build');
my $library = "$build/libsymwin-nccl.so";
my $full    = "$build/libsymwin-nccl-full.so";
my $place   = "$build/tests/nccl";
plan skip_all => "no $place/program: make tests has not run here" unless -x "$place/program";

# Hides the machine's libcuda.so.1 or libnccl.so.2: files of that name that are no libraries.
my $scratch = tempdir(CLEANUP => 1);
my %hidden  = (cuda => 'libcuda.so.1', nccl => 'libnccl.so.2');
for my $folder (keys %hidden) {
    mkdir "$scratch/$folder";
    open my $file, '>', "$scratch/$folder/$hidden{$folder}" or BAIL_OUT("$scratch/$folder: $!");
    print $file "no library\n" x 100;
    close $file;
}

delete @ENV{qw(SYMWIN_DRIVER SYMWIN_NCCL SYMWIN_NCCL_PEERS NCCL_CUMEM_ENABLE LD_PRELOAD
    LD_LIBRARY_PATH), grep { /^SYMWIN_MEM_/ } keys %ENV};
# A preloaded library is loaded before the program's AddressSanitizer runtime. That does no harm.
$ENV{ASAN_OPTIONS} = join ':', 'verify_asan_link_order=0', $ENV{ASAN_OPTIONS} // ();
$ENV{SYMWIN_EMU_DEVICES} = 4;

my $preload = "LD_PRELOAD=$library";
my $emu     = 'SYMWIN_DRIVER=emu';
my $gpus    = "LD_LIBRARY_PATH=$place/cuda";
my $no_gpu  = "LD_LIBRARY_PATH=$scratch/cuda";
my $nothing = "LD_LIBRARY_PATH=$scratch/cuda:$scratch/nccl";

# Compares a program's output line by line, and checks that stderr is empty. In the expected output,
# ADDRESS stands for any address from malloc and PLACE for any address of a mapping.
sub says {
    my ($name, $environment, $program, @want) = @_;
    my $errors = "$scratch/stderr";
    my $output = `timeout 60 env $environment $place/$program 2>$errors`;
    my $status = $?;
    my $want   = join '', map { "$_\n" } @want;
    my $form   = join 'PLACE', map { quotemeta } split /PLACE/, $want, -1;
    $form =~ s/ADDRESS/at -?\\d+ aligned \\d+/g;
    $form =~ s/PLACE/at -?\\d+/g;
    my $complaint = slurp($errors);
    ok($status == 0 && $output =~ /\A$form\z/ && $complaint eq '', $name)
      or diag("status $status\n$output---- wanted\n$want---- on stderr\n$complaint");
}

# ---- the library -------------------------------------------------------------------------------

sub exports { join ' ', sort map { / [A-Za-z] (\S+)$/ ? $1 : () } `nm -D --defined-only $_[0]` }
my @served = (slurp('nccl/api.h') =~ /^    X\((nccl\w+)/mg, 'ncclGetLastError');
is(exports($library),
    join(' ', sort qw(dlsym symwin_nccl symwin_nccl_dlsym), map { ($_, "p$_") } @served),
    'exports dlsym, what it serves of NCCL, a mark, and the plain dlsym, and nothing else');
cmp_ok(scalar(@served), '>', 30, 'which are many');
is(exports($full),
    join(' ', sort map { ($_, "p$_") } slurp('nccl/full/names.h') =~ /X\((nccl\w+),/g),
    'the library in place of NCCL exports names of NCCL, and nothing else');
my $dynamic = `readelf -dW $library`;
like($dynamic, qr/NEEDED.*\[libsymwin\.so\.0\]/, 'has its memory from libsymwin.so');
like($dynamic, qr/RUNPATH.*\[\$ORIGIN\]/, 'which it finds beside itself');

# ---- served from the pool ----------------------------------------------------------------------

for (['preloaded', "$preload $emu", 'program'], ['linked before NCCL', $emu, 'program-both']) {
    my ($how, $environment, $program) = @$_;
    says("$how: small ones share a chunk at steps of 4 KiB, a large one is aligned to 2 MiB; "
          . 'freed in any order',
        $environment,
        "$program alloc 100000 alloc 102400 alloc 3145728 alloc 1 free 1 free 3 free 0 free 2",
        'alloc 100000: 0 at 0 aligned 2097152', 'alloc 102400: 0 at 102400 aligned 4096',
        'alloc 3145728: 0 PLACE aligned 2097152', 'alloc 1: 0 at 204800 aligned 8192',
        map { "free $_: 0" } 1, 3, 0, 2);
    says("$how: another thread frees, and the memory is there again",
        $environment, "$program alloc 102400 alloc 4096 thread 0 alloc 102400 thread 1 free 2",
        'alloc 102400: 0 at 0 aligned 2097152', 'alloc 4096: 0 at 102400 aligned 4096', 'thread: 0',
        'alloc 102400: 0 at 0 aligned 2097152', 'thread: 0', 'free 2: 0');
    says("$how: a second free reaches NCCL, which says that it is not its own", $environment,
        "$program alloc 4096 alloc 4194304 free 0 free 0 free 1",
        'alloc 4096: 0 at 0 aligned 2097152', 'alloc 4194304: 0 PLACE aligned 2097152',
        'free 0: 0', 'fake ncclMemFree of a stranger', 'free 0: 6', 'free 1: 0');
    says("$how: no pointer and no size are NCCL's, freeing nothing is fine", $environment,
        "$program null alloc 0 free 0", 'fake ncclMemAlloc NULL 1', 'null alloc: 1', 'null free: 0',
        'fake ncclMemAlloc 0', 'alloc 0: 0', 'free 0: 0');
    says("$how: the profiler's names do the same", $environment,
        "$program palloc 4096 alloc 4096 pfree 1 pfree 0 pfree 0",
        'palloc 4096: 0 at 0 aligned 2097152', 'alloc 4096: 0 at 4096 aligned 4096', 'pfree 1: 0',
        'pfree 0: 0', 'fake pncclMemFree of a stranger', 'pfree 0: 6');
}

says('too much is a CUDA error, as with NCCL, and not passed on',
    "$preload $emu SYMWIN_EMU_MEM=256M",
    'program alloc 1073741824 alloc 4096', 'alloc 1073741824: 1',
    'alloc 4096: 0 at 0 aligned 2097152');
for (['SYMWIN_MEM_KEEP', 'much', $emu], ['SYMWIN_NCCL_PEERS', 'no', $emu],
    ['SYMWIN_NCCL', '', $emu], ['SYMWIN_DRIVER', 'opencl', ''],
    ['SYMWIN_MEM_POOL', 'no', $gpus], ['SYMWIN_DRIVER', '', $no_gpu])
{
    my ($name, $value, $environment) = @$_;
    my $command = "env $preload $environment $name='$value' $place/program alloc 4096 alloc 4096";
    my $output = `timeout 60 $command 2>$scratch/stderr`;
    is($output, "alloc 4096: 4\nalloc 4096: 4\n",
        "$name=$value is an invalid argument, and nobody allocates");
    like(slurp("$scratch/stderr"),
        qr/\Alibsymwin-nccl\.so: .*\b$name is "$value": set it to [^\n]*, or unset it\n\z/,
        'which is said in one line');
}
says('one pool: a window of symwin holds the memory', $emu, 'window', 'alloc: 0', 'owned 1',
    'free under a window: 5', 'free: 0');

# ---- on GPUs, or what looks like them ----------------------------------------------------------

says('a GPU: memory of the current device, for all peers, in chunks of 16 MiB; '
      . 'the device stays current',
    "$preload $gpus",
    'program device 2 alloc 100000 alloc 5000 alloc 3145728 where 0 where 1 where 2 current',
    'alloc 100000: 0 at 0 aligned 2097152', 'alloc 5000: 0 at 102400 aligned 4096',
    'alloc 3145728: 0 PLACE aligned 2097152', 'where 0: device 2, byte 0 of 16777216, access for 4',
    'where 1: device 2, byte 102400 of 16777216, access for 4',
    'where 2: device 2, byte 0 of 4194304, access for 4', 'current 2');
says("a GPU: SYMWIN_NCCL_PEERS=0 leaves the peers' access out",
    "$preload $gpus SYMWIN_NCCL_PEERS=0",
    'program device 1 alloc 4096 where 0', 'alloc 4096: 0 at 0 aligned 2097152',
    'where 0: device 1, byte 0 of 16777216, access for 1');
says('a GPU: no current context, NCCL knows the device', "$preload $gpus",
    'program alloc 4096 current free 0',
    'fake ncclMemAlloc 4096', 'alloc 4096: 0 ADDRESS', 'cuCtxGetDevice failed', 'current -1',
    'fake ncclMemFree', 'free 0: 0');
says("a GPU: what lies in the pool never reaches NCCL, which would unmap other buffers with it",
    "$preload $gpus",
    'program device 0 alloc 8192 alloc 8192 alloc 3145728 inside 1 inside 2 '
      . 'free 0 free 0 free 2 free 2 where 1 free 1',
    'alloc 8192: 0 at 0 aligned 2097152', 'alloc 8192: 0 at 8192 aligned 8192',
    'alloc 3145728: 0 PLACE aligned 2097152', 'inside 1: 4', 'inside 2: 4', 'free 0: 0',
    'free 0: 4', 'free 2: 0', 'free 2: 4',
    'where 1: device 0, byte 8192 of 16777216, access for 4', 'free 1: 0');
says('a GPU: what the pool gave back to the driver is passed on',
    "$preload $gpus SYMWIN_MEM_KEEP=0",
    'program device 0 alloc 3145728 free 0 wait 0 free 0',
    'alloc 3145728: 0 at 0 aligned 2097152', 'free 0: 0',
    'fake ncclMemFree of a stranger', 'free 0: 6');
says('a GPU: SYMWIN_MEM_POOL=0 begins each allocation at offset 0',
    "$preload $gpus SYMWIN_MEM_POOL=0",
    'program device 0 alloc 4096 alloc 4096 where 0 where 1', 'alloc 4096: 0 at 0 aligned 2097152',
    'alloc 4096: 0 PLACE aligned 2097152', 'where 0: device 0, byte 0 of 2097152, access for 4',
    'where 1: device 0, byte 0 of 2097152, access for 4');
says("a GPU: NCCL's own memory goes back to NCCL", "$preload $gpus",
    'program alloc 4096 device 3 alloc 4096 free 0 free 1', 'fake ncclMemAlloc 4096',
    'alloc 4096: 0 ADDRESS',
    'alloc 4096: 0 ADDRESS', 'fake ncclMemFree', 'free 0: 0', 'free 1: 0');

# ---- passed on ---------------------------------------------------------------------------------

my @passed = ('fake ncclMemAlloc 4096', 'alloc 4096: 0 ADDRESS', 'fake ncclMemFree', 'free 0: 0',
    'fake ncclMemFree of a stranger', 'free 0: 6');
my $call = 'alloc 4096 free 0 free 0';
for (['no driver',                           $no_gpu],
    ['no driver, SYMWIN_DRIVER=auto',        "$no_gpu SYMWIN_DRIVER=auto"],
    ['no driver, SYMWIN_DRIVER=cuda',        "$no_gpu SYMWIN_DRIVER=cuda"],
    ['a driver without a device',            "$gpus FAKE_CUDA=none"],
    ['a driver that does not start',         "$gpus FAKE_CUDA=broken"],
    ['a driver before CUDA 12.0',            "$gpus FAKE_CUDA=old"],
    ['NCCL_CUMEM_ENABLE=0',                  "$emu NCCL_CUMEM_ENABLE=0"],
    ['NCCL_CUMEM_ENABLE=-1',                 "$emu NCCL_CUMEM_ENABLE=-1"])
{
    my ($name, $environment) = @$_;
    says("passed on: $name", "$preload $environment", "program $call", @passed);
    says("passed on: $name, linked", $environment, "program-both $call", @passed);
}
says("not passed on: NCCL_CUMEM_ENABLE=$_", "$preload $emu NCCL_CUMEM_ENABLE=$_",
    'program alloc 4096 free 0',
    'alloc 4096: 0 at 0 aligned 2097152', 'free 0: 0')
  for 1, -2;
says('by name to each name', "$preload $no_gpu", 'program palloc 7 pfree 0', 'fake pncclMemAlloc 7',
    'palloc 7: 0 ADDRESS', 'fake pncclMemFree', 'pfree 0: 0');
says('a profiler between us and NCCL is called once',
    "LD_PRELOAD=$library:$place/libtool.so $no_gpu",
    'program alloc 7 free 0', 'tool', 'fake pncclMemAlloc 7', 'alloc 7: 0 ADDRESS', 'tool',
    'fake pncclMemFree',
    'free 0: 0');

# ---- an NCCL that is not linked, and none --------------------------------------------------------

says('an NCCL that the loader finds', "LD_LIBRARY_PATH=$place $emu NCCL_CUMEM_ENABLE=0",
    "program-alone $call",
    @passed);
says('the NCCL of SYMWIN_NCCL', "SYMWIN_NCCL=$place/libnccl.so.2 $nothing", "program-alone $call",
    @passed);
says('an NCCL that was loaded for somebody else', $nothing,
    "program-alone load $place/libnccl.so.2 $call", @passed);
says('which comes before one that would have to be loaded',
    "$nothing SYMWIN_NCCL=/nowhere/libnccl.so.2",
    "program-alone load $place/libnccl.so.2 $call", @passed);
my @none = ('null alloc: 4', 'null free: 0', 'alloc 0: 2');
for (['no NCCL', $nothing, 'libnccl.so.2 by the loader'],
    ['SYMWIN_NCCL names nothing', "$nothing SYMWIN_NCCL=/nowhere/libnccl.so.2",
        '/nowhere/libnccl.so.2'],
    ['SYMWIN_NCCL names this library', "$nothing SYMWIN_NCCL=$library", $library])
{
    my ($name, $environment, $where) = @$_;
    says("$name: without a GPU", $environment, 'program-alone null alloc 0 alloc 4096 said', @none,
        'alloc 4096: 2',
        'said: symwin: no NCCL with ncclGetLastError is among the libraries of the program or of '
          . "the one that calls, nor found as $where; set SYMWIN_NCCL to the path of one");
    says("$name: from the pool all the same", "$environment $emu",
        'program-alone null alloc 0 alloc 4096 free 0 free 0', @none,
        'alloc 4096: 0 at 0 aligned 2097152', 'free 0: 0', 'free 0: 4');
}

# ---- every way to NCCL's functions ---------------------------------------------------------------

my $real  = "$place/libnccl.so.2";
my $plain = 'gnu_get_libc_version'; # of libc, and no sanitizer has it too
my @calls = ('fake ncclReduce 1 2 3 4 5 6 7 8', 'ncclReduce: 6',
    'fake ncclCommInitRank 9 699008 10', 'ncclCommInitRank: 3', 'ncclGetErrorString: remote');
my @theirs = (@calls, 'fake ncclMemAlloc 4096', 'ncclMemAlloc: 0');
my @ours   = (@calls, 'ncclMemAlloc: 0');
my $where  = 'handle ncclGetErrorString handle ncclMemAlloc handle pncclMemFree next ncclMemAlloc '
  . "default ncclMemAlloc version dlsym handle ncclNothing handle $plain";
sub places { map { "$_->[0] $_->[1]: $_->[2]" } @_ }
my @missing = (['handle', 'ncclNothing', 'none, and why'], ['handle', $plain, 'in libc.so.6']);

says('linked, and in a handle, without this library', $emu,
    "lookup linked open $real called $where",
    @theirs, @theirs,
    places(
        map({ ['handle', $_, 'in libnccl.so.2'] } qw(ncclGetErrorString ncclMemAlloc pncclMemFree)),
        ['next', 'ncclMemAlloc', 'in libnccl.so.2'], ['default', 'ncclMemAlloc', 'in libnccl.so.2'],
        ['version', 'dlsym', 'in libc.so.6'], @missing));
says('preloaded: linked, and in a handle; by RTLD_NEXT the caller counts', "$preload $emu",
    "lookup linked open $real called $where",
    @ours, @ours,
    places(['handle', 'ncclGetErrorString', 'in libnccl.so.2'],
        map({ ['handle', $_, 'in libsymwin-nccl.so'] } qw(ncclMemAlloc pncclMemFree)),
        ['next', 'ncclMemAlloc', 'in libsymwin-nccl.so'],
        ['default', 'ncclMemAlloc', 'in libsymwin-nccl.so'],
        ['version', 'dlsym', 'in libc.so.6'], @missing));
says('preloaded: an NCCL of the handle alone is the one that serves, and none is loaded beside it',
    "$preload $nothing SYMWIN_NCCL=/nowhere/libnccl.so.2",
    "lookup-bare open $real called handle ncclMemAlloc", @theirs,
    'handle ncclMemAlloc: in libsymwin-nccl.so');
says('preloaded, a profiler behind it that calls pncclMemAlloc, an NCCL that nobody is linked to',
    "LD_PRELOAD=$library:$place/libtool.so $nothing NCCL_CUMEM_ENABLE=0",
    "program-alone load $real alloc 7", 'tool', 'fake pncclMemAlloc 7', 'alloc 7: 0 ADDRESS');
says('preloaded: the functions of another copy are left alone', "$preload $emu",
    "lookup open $place/older/libnccl.so.2 handle ncclMemAlloc open $real handle ncclMemAlloc",
    'handle ncclMemAlloc: in libnccl.so.2', 'handle ncclMemAlloc: in libsymwin-nccl.so');
says('preloaded: it may have another name', "$preload $nothing",
    "lookup-bare open $real.28 handle ncclMemAlloc called",
    'handle ncclMemAlloc: in libsymwin-nccl.so', @theirs);
sub reached { map { "$_->[0]: $_->[1] allocations, $_->[1] frees, 0 live" } @_ }
says('preloaded: a library with an NCCL of its own goes on to that one', "$preload $_->[0]",
    "copies $real $place/libown.so", reached(['NCCL', $_->[1]], ['its own', 0]),
    reached(['NCCL', $_->[1]], ['its own', $_->[1]]))
  for ["$emu NCCL_CUMEM_ENABLE=0", 2], [$no_gpu, 2], [$emu, 0];
says('preloaded: what a library that is no NCCL has is left alone', $_->[0],
    "$_->[1] open $place/libtool.so handle ncclMemAlloc", 'handle ncclMemAlloc: in libtool.so')
  for ["$preload $emu", 'lookup'], ["$preload $nothing", 'lookup-bare'];
says('preloaded: a library behind this one looks up by RTLD_NEXT',
    "LD_PRELOAD=$library:$place/libtool.so $emu", 'lookup behind pncclMemFree',
    'behind pncclMemFree: in libnccl.so.2');
says('named in place of NCCL: all names are there, and NCCL is loaded',
    "LD_LIBRARY_PATH=$place $emu", "lookup open $full called", @ours);
mkdir "$scratch/link";
symlink $full, "$scratch/link/libnccl.so.2";
says("a link with NCCL's name that leads to it is not taken for NCCL",
    "LD_LIBRARY_PATH=$scratch/link:$build SYMWIN_NCCL=$real $_->[0]",
    'lookup-bare open libnccl.so.2 called', @{ $_->[1] })
  for [$emu, \@ours], ["$emu NCCL_CUMEM_ENABLE=0", \@theirs];
says('linked in place of NCCL, without one: an error and a text, no crash', "$nothing $emu",
    'lookup-alone linked', 'ncclReduce: 2', 'ncclCommInitRank: 2',
    'ncclGetErrorString: no NCCL is loaded, or an older one without this function',
    'ncclMemAlloc: 0');
# One in front finds libc's by itself, so it does not come here. (AddressSanitizer does not start
# with such a profiler, with or without this library.)
SKIP: {
    skip 'under AddressSanitizer', 2 if `ldd $place/lookup` =~ /libasan/;
    says("preloaded with a dlsym() of somebody else $_->[0]", "LD_PRELOAD=$_->[1] $emu",
        "lookup open $real called handle $plain", 'tool dlsym', @{ $_->[2] },
        "handle $plain: in libc.so.6")
      for ['behind this one: both are called', "$library:$place/libdlsym.so", \@ours],
      ['in front of this one: only that is called', "$place/libdlsym.so:$library", \@theirs];
}

done_testing();
