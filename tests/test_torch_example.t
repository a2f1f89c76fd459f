#!/usr/bin/env perl
# examples/torch without a GPU: the sentence for each thing that is missing. PyTorch is one of a few lines.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

plan skip_all => 'no python3' if system('python3 -c pass 2>/dev/null') != 0;

my $scratch = tempdir(CLEANUP => 1);
delete @ENV{qw(LOCAL_RANK PYTHONPATH)};
$ENV{PYTHONDONTWRITEBYTECODE} = 1;

# A torch whose modules have these lines; refuses as it should.
sub refused {
    my ($name, $want, $environment, $arguments, %modules) = @_;
    my $folder = "$scratch/" . $name =~ s/\W/_/gr;
    mkdir $_ for $folder, "$folder/torch", "$folder/torch/cuda";
    my %all = ('__init__' => '', 'cuda/__init__' => '', 'cuda/memory' => '', 'distributed' => '', %modules);
    for my $module (keys %all) {
        open my $file, '>', "$folder/torch/$module.py" or BAIL_OUT("$folder/torch/$module.py: $!");
        print $file $all{$module};
        close $file;
    }
    my $output = `env PYTHONPATH=$folder $environment python3 examples/torch/train_step.py $arguments 2>&1`;
    is($? >> 8, 1, "$name: exit status");
    like($output, qr/\Atrain_step\.py: [^\n]*$want[^\n]*\n\z/, "$name: a sentence");
}

my $names = "class CUDAPluggableAllocator: pass\nclass MemPool: pass\nuse_mem_pool = None\n";
my $cuda = "def is_available(): return True\ndef set_device(device): pass\n";
my %whole = (
    '__init__'      => "from . import cuda, distributed\n__version__ = '1.0'\nclass device:\n    def __init__(self, *a): pass\n",
    'cuda/__init__' => $cuda,
    'cuda/memory'   => $names,
    'distributed'   => "class group:\n    class WORLD:\n        def _get_backend(device): return None\n"
      . "def init_process_group(*a, **b): pass\n",
);

refused('no PyTorch', '2.6 or later is needed: none here', '', '', '__init__' => "raise ImportError('none here')\n");
refused('no MemPool', '2.6 or later is needed: .*MemPool', '', '', %whole, 'cuda/memory' => "CUDAPluggableAllocator = 0\n");
refused('no GPU', 'run it under torchrun, on a machine with GPUs', 'LOCAL_RANK=0', '', %whole,
    'cuda/__init__' => "def is_available(): return False\n");
refused('no torchrun', 'run it under torchrun', '', '', %whole);
refused('no library', 'there is no /nowhere/libsymwin.so: build it by make', 'LOCAL_RANK=0', '/nowhere/libsymwin.so', %whole);
refused('no registration', 'PyTorch 1.0 cannot register a pool', 'LOCAL_RANK=0', 'Makefile', %whole);

done_testing();
