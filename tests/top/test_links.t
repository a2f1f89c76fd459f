#!/usr/bin/env perl
# bench/links.py with a fake nvidia-smi: sums over links, bytes moved by a command, and its messages
# if it cannot measure.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;

require './tests/helpers/files.pl';

plan(skip_all => 'no python3') unless `python3 -c 'print(1)' 2>/dev/null`;

my $folder = tempdir(CLEANUP => 1);
my $smi    = "$folder/nvidia-smi";
my $moves  = "sh -c 'echo 1 >$folder/moved; exit 3'"; # the command to measure
local $ENV{PATH} = "$folder:$ENV{PATH}";

# Two GPUs with two links each. They have sent and received more once the file `moved` exists.
sub counters {
    my ($kind) = @_;
    my $text = '';
    for my $gpu (0, 1) {
        $text .= "GPU $gpu: NVIDIA X1 (UUID: GPU-$gpu)\n";
        for my $link (0, 1) {
            my $idle = 1000 * ($gpu + 1) + $link;
            my %more = (Data => 100, Raw => 125);
            $text .= "\t Link $link: $kind Tx: \$(($idle + m * $more{$kind} * (1 - $gpu))) KiB\n";
            $text .=
              "\t Link $link: $kind Rx: \$(($idle + m * 2 * $more{$kind} * (1 - $gpu))) KiB\n";
        }
    }
    return $text;
}

sub links {
    my ($command) = @_;
    unlink "$folder/moved";
    my $said = `python3 bench/links.py $command 2>&1`;
    return ($said, $? >> 8);
}

spew($smi, "#!/bin/sh\nm=0; [ ! -e $folder/moved ] || m=1\n"
      . "case \$* in\n'nvlink -gt d') cat <<X\n" . counters('Data') . "X\n;;\n"
      . "'nvlink -gt r') cat <<X\n" . counters('Raw') . "X\n;;\n*) exit 9 ;;\nesac\n");
chmod 0755, $smi or die;

my ($said, $status) = links($moves);
is($status, 3, 'the command\'s exit status');
is($said, "gpu,data_tx,data_rx,raw_tx,raw_rx,tx_raw_by_data,rx_raw_by_data\n"
      . "0,204800,409600,256000,512000,1.2500,1.2500\n1,0,0,0,0,,\n",
    'what went over all links meanwhile');
($said, $status) = links('sh -c "kill -9 \$\$"');
is($status, 137, 'a command that was killed');
($said, $status) = links("$folder/nothing");
ok($status == 1 && $said =~ /^links.py: .*nothing does not run/, 'no command');
($said, $status) = links('');
ok($status == 1 && $said =~ /^links.py: which command/, 'no word of one');
spew($smi, "#!/bin/sh\necho 'GPU 0: NVIDIA X1 (UUID: GPU-0)'\n");
($said, $status) = links($moves);
ok($status == 1 && $said =~ /no GPU has links/ && !-e "$folder/moved", 'no links: nothing has run');
spew($smi, "#!/bin/sh\nexit 4\n");
($said, $status) = links($moves);
ok($status == 1 && $said =~ /gives no counters/, 'an nvidia-smi that fails');
done_testing();
