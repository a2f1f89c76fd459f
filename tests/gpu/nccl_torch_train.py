"""Modes `ddp`, `fsdp` and `graphs` of tests/gpu/nccl_torch.py."""
from nccl_world import CUDA, DEVICE, RANK, WORLD, Checks, dist, say, synchronize, torch, value

STEPS, WIDTH, BATCH = 50, 256, 32
REPLAYS = 20


def model():
    """Three blocks, the same on all ranks and in all runs."""
    torch.manual_seed(1234)
    blocks = [torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.GELU(),
                                  torch.nn.Linear(2 * WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH))
              for _ in range(3)]
    return torch.nn.Sequential(*blocks).to(DEVICE)


def batches():
    """Other data for each rank and step, the same in all runs; made on the host."""
    target = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(76)) / 16
    generator = torch.Generator().manual_seed(77 + RANK)
    for _ in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        yield x.to(DEVICE), (x @ target).to(DEVICE)


def train(name, network):
    """Prints this rank's loss of each step. Returns whether it became smaller."""
    torch.use_deterministic_algorithms(True)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02, momentum=0.9)
    losses = []
    for x, y in batches():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    synchronize()
    torch.use_deterministic_algorithms(False)
    for step, loss in enumerate(losses):
        say(f"{name}: loss {step} {loss.item().hex()}")
    return losses[-1].item() < losses[0].item()


def ddp():
    network = torch.nn.parallel.DistributedDataParallel(
        model(), device_ids=[DEVICE.index] if CUDA else None, bucket_cap_mb=1)
    return train("ddp", network)


def fsdp():
    network = model()
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before PyTorch 2.6
        from torch.distributed.fsdp import FullyShardedDataParallel
        return train("fsdp", FullyShardedDataParallel(network))
    for block in network:
        fully_shard(block)
    fully_shard(network)
    return train("fsdp", network)


class Step:
    """Collectives of several sizes on fixed tensors, with kernels before, between and behind."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.inputs = [torch.zeros(size * WORLD, device=DEVICE) for size in sizes]
        self.sums = [torch.zeros_like(tensor) for tensor in self.inputs]
        self.parts = [tensor.new_zeros(size) for tensor, size in zip(self.inputs, sizes)]
        self.whole = [torch.zeros_like(tensor) for tensor in self.inputs]

    def run(self):
        for given, total, part, whole in zip(self.inputs, self.sums, self.parts, self.whole):
            torch.mul(given, 2, out=total)
            dist.all_reduce(total)
            dist.reduce_scatter_tensor(part, given + 1)
            dist.all_gather_into_tensor(whole, part * 3)
            total.add_(1)

    def give(self, salt):
        """New inputs, and wrong outputs."""
        for size, given in zip(self.sizes, self.inputs):
            given.copy_(value(RANK, size * WORLD, salt))
        for tensor in self.sums + self.parts + self.whole:
            tensor.fill_(-99)

    def compare(self, checks, what, salt):
        for i, size in enumerate(self.sizes):
            total = sum(value(r, size * WORLD, salt) for r in range(WORLD))
            checks.equal(f"{what}, all_reduce of {size * WORLD}", self.sums[i], 2 * total + 1)
            checks.equal(f"{what}, reduce_scatter of {size}", self.parts[i],
                         (total + WORLD).chunk(WORLD)[RANK])
            checks.equal(f"{what}, all_gather of {size}", self.whole[i], 3 * (total + WORLD))


def graphs():
    """Two graphs that are replayed in turn, with calls outside graphs between them."""
    checks = Checks("graphs")
    steps = [Step([5, 4096, 65537]), Step([1 << 18])]
    captured = []
    side = torch.cuda.Stream(DEVICE) if CUDA else None
    for step in steps:
        if not CUDA:
            captured.append(step.run)
            continue
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step.run()
        torch.cuda.current_stream().wait_stream(side)
        synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step.run()
        captured.append(graph.replay)
    for replay in range(REPLAYS):
        step = steps[replay % 2]
        step.give(replay)
        captured[replay % 2]()
        if replay % 5 == 0:
            tensor = value(RANK, 1000, replay).float()
            dist.all_reduce(tensor)
            checks.equal(f"all_reduce after replay {replay}", tensor,
                         sum(value(r, 1000, replay) for r in range(WORLD)))
        step.compare(checks, f"replay {replay}", replay)
    for step in steps:  # without a host that waits between replays
        step.give(90)
    for replay in range(REPLAYS):
        captured[replay % 2]()
    for step in steps:
        step.compare(checks, "replays in a row", 90)
    synchronize()
    return checks.end()
