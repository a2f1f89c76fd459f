"""Programs of torch.distributed for tests/gpu/gpu_nccl_torch.t, which runs them on NCCL alone and
with libsymwin-nccl.so preloaded.

    python3 -m torch.distributed.run --nproc-per-node N tests/gpu/nccl_torch.py [gloo] MODE...

| mode          | what runs                                       | each rank prints           |
|---------------|-------------------------------------------------|----------------------------|
| `collectives` | every collective, checked                       | MODE: N checks, F failed   |
| `ddp`         | 50 steps of DistributedDataParallel             | MODE: loss STEP HEX        |
| `fsdp`        | 50 steps of fully_shard                         | MODE: loss STEP HEX        |
| `graphs`      | CUDA graphs with collectives, replayed, checked | MODE: N checks, F failed   |

Each line begins with "rank R: ". N should be a power of two, so that averages are exact. Losses
are hexadecimal floats (float.hex()), so two runs can be compared to the bit. `gloo` runs what it
can without a GPU and NCCL, to try the script.
"""
import sys

from nccl_world import begin, dist, say
import nccl_torch_collectives
import nccl_torch_train

MODES = {"collectives": nccl_torch_collectives.run, "ddp": nccl_torch_train.ddp,
         "fsdp": nccl_torch_train.fsdp, "graphs": nccl_torch_train.graphs}

wanted = [word for word in sys.argv[1:] if word != "gloo"]
if not wanted or any(mode not in MODES for mode in wanted):
    sys.exit(__doc__)
begin()
right = True
for mode in wanted:
    good = MODES[mode]()
    say(f"{mode}: {'right' if good else 'wrong'}")
    right = right and good
dist.destroy_process_group()
sys.exit(0 if right else 1)
