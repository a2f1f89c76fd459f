#!/usr/bin/perl
# nvls-rehearsal on the emulated driver: what it says, what it refuses, and how it ends.
use strict;
use warnings;
use Test::More;

my $build = $ENV{SYMWIN_BUILD} || 'build';
my $tool = "$build/nvls-rehearsal";
$ENV{SYMWIN_DRIVER} = 'emu';
delete @ENV{qw(SYMWIN_NVLS NCCL_NVLS_ENABLE TORCH_SYMM_MEM_DISABLE_MULTICAST NVSHMEM_DISABLE_NVLS)};

# Runs it with these variables and arguments. Returns the status and all that it printed.
sub rehearse {
    my ($variables, $arguments) = @_;
    my $output = `env $variables timeout 100 $tool $arguments 2>&1`;

    return ($? >> 8, $output);
}

my ($status, $output) = rehearse('', '');
is($status, 2, 'without --run it does nothing');
like($output, qr/would\n1\. ask for granularities\n2\. /, 'and says what it would do');
unlike($output, qr/cuM/, 'no call of the driver');
for my $variable ('NCCL_NVLS_ENABLE=0', 'TORCH_SYMM_MEM_DISABLE_MULTICAST=1',
    'NVSHMEM_DISABLE_NVLS=1', 'SYMWIN_NVLS=0',
    # as the libraries read it
    'NCCL_NVLS_ENABLE=00', 'NCCL_NVLS_ENABLE=off', 'TORCH_SYMM_MEM_DISABLE_MULTICAST=true',
    'NVSHMEM_DISABLE_NVLS=yes') {
    ($status, $output) = rehearse($variable, '--run');
    is($status, 2, "$variable: it does not begin");
    like($output, qr/\Q$variable\E forbids multicast/, 'and says why');
    unlike($output, qr/cuM/, 'no call of the driver');
}
for ('NCCL_NVLS_ENABLE=1', 'NCCL_NVLS_ENABLE=', 'TORCH_SYMM_MEM_DISABLE_MULTICAST=0',
    'NVSHMEM_DISABLE_NVLS=false', 'SYMWIN_NVLS=1') {
    ($status, $output) = rehearse($_, '--run 2');
    is($status, 0, "$_: it runs") or diag($output);
}

# What would fail in the last step is known before the first.
for (['SYMWIN_NVLS=maybe', qr/SYMWIN_NVLS is "maybe": set it to 0 or 1/],
    ['SYMWIN_TIMEOUT_MS=x', qr/SYMWIN_TIMEOUT_MS is "x"/],
    ['SYMWIN_EMU_OLD=6', qr/^device 2 does not support multicast objects/m],
    ['SYMWIN_EMU_MULTICAST=0', qr/^device 0 does not support multicast objects/m]) {
    my ($variable, $want) = @$_;
    ($status, $output) = rehearse($variable, '--run 4');
    is($status, 2, "$variable: it does not begin");
    like($output, $want, 'and says why');
    unlike($output, qr/cuM/, 'no call of the driver');
}
for my $wrong ('--run 1', '--run 17', '--run 4 0', '--run four') {
    ($status, $output) = rehearse('', $wrong);
    is($status, 2, "$wrong: refused");
    like($output, qr/is no number of/, 'with the reason');
}
for my $devices (2, 4, 8) {
    ($status, $output) = rehearse('', "--run $devices");
    is($status, 0, "$devices devices: no surprise") or diag($output);
    like($output, qr/no surprise\n\z/, 'as it says');
    my $unbound = () = $output =~ /cuMulticastUnbind, device \d: CUDA_SUCCESS/g;
    is($unbound, $devices, 'all is unbound');
    like($output, qr/ 0 of \d+ sums of whole numbers are wrong/, 'sums are right');
    is(scalar(() = $output =~ /  answer: /g), 6, 'every question has an answer');
}

# A bind that fails is a surprise: it stops, and undoes what it did.
($status, $output) = rehearse('SYMWIN_EMU_MULTICAST_FAULT=bind:802:1:-1:0', '--run 4');
is($status, 1, 'a bind that fails');
like($output, qr/device 1: CUDA_ERROR_SYSTEM_NOT_READY/, 'is shown');
unlike($output, qr/6\. map/, 'no step after it');
like($output, qr/cuMulticastUnbind, device 0: CUDA_SUCCESS.*cuMemRelease of the object/s, 'undone');
unlike($output, qr/cuMulticastUnbind, device 1/, 'nothing else is unbound');

# One that does not come back.
($status, $output) = rehearse('SYMWIN_EMU_MULTICAST_FAULT=bind:0:1:1:4000', '--run 4 1');
is($status, 1, 'a bind that does not come back');
like($output, qr/step 5, "bind each granule, at one offset .*", has not come back in 1 s/,
    'is named');
done_testing();
