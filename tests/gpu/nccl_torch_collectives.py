"""Mode `collectives` of tests/gpu/nccl_torch.py: every collective of torch.distributed, compared
with values that each rank computes itself.

Elements are small integers, so sums are exact in every type and in every order. Outputs are filled
with wrong values before each call.
"""
from nccl_world import CUDA, DEVICE, RANK, WORLD, Checks, cast, dist, synchronize, torch, value

SIZES = [1, 7, 1000, 65537, 1 << 20]
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
TYPES = [F32, F64, F16, BF16, torch.int8, torch.uint8, torch.int32, torch.int64]
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]
OP = dist.ReduceOp
RANKS = range(WORLD)
NEXT, BEFORE = (RANK + 1) % WORLD, (RANK - 1) % WORLD
checks = Checks("collectives")


def name(dtype):
    return str(dtype).removeprefix("torch.")


def data(rank, count, dtype=F32, salt=0, most=None):
    """A rank's elements, as int64: below zero too if the type allows it."""
    if most is None:
        most = 2 if dtype in FP8 else 13
    below = 6 if most == 13 and dtype != torch.uint8 else 0
    return value(rank, count, salt, most) - below


def mine(count, dtype=F32, salt=0, most=None):
    return cast(data(RANK, count, dtype, salt, most), dtype)


def blank(count, dtype=F32):
    return cast(torch.full((count,), 99, device=DEVICE), dtype)


def reduced(count, dtype=F32, salt=0, op=OP.SUM, ranks=RANKS):
    """What a reduction over ranks gives, as int64. See operand() for what avg and prod get."""
    most = 2 if op == OP.PRODUCT else None
    parts = torch.stack([data(r, count, dtype, salt, most) for r in ranks])
    if op == OP.PRODUCT:
        return (parts + 1).prod(0)
    if op in (OP.MIN, OP.MAX):
        return parts.amin(0) if op == OP.MIN else parts.amax(0)
    return parts.sum(0)


def operand(count, dtype=F32, salt=0, op=OP.SUM):
    """What a rank gives to a reduction: for a product 1 and 2, for an average multiples of WORLD,
    so that both are exact."""
    if op == OP.PRODUCT:
        return cast(data(RANK, count, dtype, salt, 2) + 1, dtype)
    return cast(data(RANK, count, dtype, salt) * (WORLD if op == OP.AVG else 1), dtype)


OPS = [("sum", OP.SUM), ("prod", OP.PRODUCT), ("min", OP.MIN), ("max", OP.MAX), ("avg", OP.AVG)]
REDUCTIONS = [(F32, "sum", OP.SUM, size) for size in SIZES]
REDUCTIONS += [(t, n, op, 1000) for t in TYPES for n, op in OPS
               if op != OP.AVG or t not in (torch.int8, torch.uint8)]
REDUCTIONS += [(t, "sum", OP.SUM, size) for t in (F16, BF16, F64) for size in SIZES[3:]]
REDUCTIONS += [(t, "sum", OP.SUM, 1000) for t in FP8]
FEW = [(F32, "max", OP.MAX, 7), (BF16, "avg", OP.AVG, 1000), (torch.int64, "min", OP.MIN, 65537)]
SUMS = [(F32, "sum", OP.SUM, size) for size in SIZES]
SUMS += [(t, "sum", OP.SUM, 1000) for t in TYPES] + FEW


def all_reduce():
    for salt, (dtype, word, op, size) in enumerate(REDUCTIONS):
        def call():
            tensor = operand(size, dtype, salt, op)
            dist.all_reduce(tensor, op)
            checks.equal(what, tensor, reduced(size, dtype, salt, op))
        what = f"all_reduce {name(dtype)} {word} of {size}"
        checks.attempt(what, call, optional=dtype in FP8)
    tensor = mine(1 << 20, salt=6)
    part = tensor[3:65540]  # begins at an odd place
    dist.all_reduce(part)
    expected = mine(1 << 20, salt=6)
    expected[3:65540] = reduced(1 << 20, salt=6)[3:65540]
    checks.equal("all_reduce of a part", tensor, expected)


def premul_sum():
    """Each rank's elements times its scalar, which is in host memory or in device memory.

    Not bf16: PyTorch 2.11 reads its scalar as another type.
    """
    if not CUDA:
        return

    def expected(count, dtype):
        return sum(data(r, count, dtype, 5) * (r + 1) for r in RANKS)
    for dtype in (F32, F64, F16):
        for scalar in (RANK + 1.0, torch.tensor([RANK + 1.0], device=DEVICE, dtype=dtype)):
            tensor = mine(1000, dtype, 5)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(scalar))
            place = "device" if torch.is_tensor(scalar) else "host"
            checks.equal(f"all_reduce {name(dtype)} premul_sum, scalar of the {place}", tensor,
                         expected(1000, dtype))
    out, op = blank(1000), dist._make_nccl_premul_sum(RANK + 1.0)
    dist.reduce_scatter_tensor(out, mine(1000 * WORLD, salt=5), op)
    checks.equal("reduce_scatter_tensor premul_sum", out,
                 expected(1000 * WORLD, F32).chunk(WORLD)[RANK])


def all_gather():
    cases = [(F32, size) for size in SIZES] + [(t, 1000) for t in TYPES + FP8]
    for salt, (dtype, size) in enumerate(cases):
        expected = torch.cat([data(r, size, dtype, salt) for r in RANKS])
        for place in ("out of place", "in place"):
            def call():
                out, part = blank(size * WORLD, dtype), mine(size, dtype, salt)
                if place == "in place":
                    out[RANK * size:(RANK + 1) * size] = part
                    part = out[RANK * size:(RANK + 1) * size]
                dist.all_gather_into_tensor(out, part)
                checks.equal(what, out, expected)
            what = f"all_gather_into_tensor {name(dtype)} of {size}, {place}"
            checks.attempt(what, call)
    for sizes in ([1000] * WORLD, [65537] * WORLD, [100 * (r + 1) for r in RANKS]):
        def call():
            outputs = [blank(size) for size in sizes]
            dist.all_gather(outputs, mine(sizes[RANK], salt=30))
            for r, out in enumerate(outputs):
                checks.equal(f"{what}, of rank {r}", out, data(r, sizes[r], salt=30))
        what = f"all_gather of {sizes}"
        checks.attempt(what, call)


def reduce_scatter():
    for salt, (dtype, word, op, size) in enumerate(SUMS):
        expected = reduced(size * WORLD, dtype, salt, op)[RANK * size:(RANK + 1) * size]
        for place in ("out of place", "in place"):
            def call():
                given, out = operand(size * WORLD, dtype, salt, op), blank(size, dtype)
                if place == "in place":
                    out = given[RANK * size:(RANK + 1) * size]
                dist.reduce_scatter_tensor(out, given, op)
                checks.equal(what, out, expected)
            what = f"reduce_scatter_tensor {name(dtype)} {word} of {size}, {place}"
            checks.attempt(what, call)
    for sizes in ([1000] * WORLD, [100 * (r + 1) for r in RANKS]):
        def call():
            out = blank(sizes[RANK])
            dist.reduce_scatter(out, [mine(n, salt=40 + r) for r, n in enumerate(sizes)])
            checks.equal(what, out, reduced(sizes[RANK], salt=40 + RANK))
        what = f"reduce_scatter of {sizes}"
        checks.attempt(what, call)


def rooted():
    """broadcast, reduce, gather and scatter, from every root."""
    cases = [(F32, size, i % WORLD) for i, size in enumerate(SIZES)]
    cases += [(F32, 1000, root) for root in RANKS] + [(t, 7777, WORLD - 1) for t in TYPES + FP8]
    for salt, (dtype, size, root) in enumerate(cases):
        def broadcast():
            tensor = mine(size, dtype, salt) if RANK == root else blank(size, dtype)
            dist.broadcast(tensor, root)
            checks.equal(f"broadcast {what}", tensor, data(root, size, dtype, salt))

        def reduce():
            tensor = mine(size, dtype, salt)
            dist.reduce(tensor, root)
            if RANK == root:
                checks.equal(f"reduce {what}", tensor, reduced(size, dtype, salt))
        what = f"{name(dtype)} of {size}, root {root}"
        checks.attempt(f"broadcast {what}", broadcast)
        checks.attempt(f"reduce {what}", reduce, optional=dtype in FP8)
    for salt, (size, root) in enumerate([(1, 0), (65537, WORLD - 1)] + [(1000, r) for r in RANKS]):
        def gather():
            parts = [blank(size) for _ in RANKS] if RANK == root else None
            dist.gather(mine(size, salt=salt), parts, root)
            for r, part in enumerate(parts or []):
                checks.equal(f"gather {what}, of rank {r}", part, data(r, size, salt=salt))

        def scatter():
            out = blank(size)
            given = [mine(size, salt=100 + r) for r in RANKS] if RANK == root else None
            dist.scatter(out, given, root)
            checks.equal(f"scatter {what}", out, data(root, size, salt=100 + RANK))
        what = f"of {size}, root {root}"
        checks.attempt(f"gather {what}", gather)
        checks.attempt(f"scatter {what}", scatter)


def all_to_all():
    for salt, (dtype, size) in enumerate([(F32, s) for s in SIZES] + [(t, 1000) for t in TYPES]):
        def call():
            out = blank(size * WORLD, dtype)
            dist.all_to_all_single(out, mine(size * WORLD, dtype, salt))
            expected = [data(r, size * WORLD, dtype, salt).chunk(WORLD)[RANK] for r in RANKS]
            checks.equal(what, out, torch.cat(expected))
        what = f"all_to_all_single {name(dtype)} of {size}"
        checks.attempt(what, call)
    for unit in (1, 500, 20000):
        def call():  # the rank itself and the next but one may get nothing
            table = [[unit * ((3 * r + 2 * to) % 4) for to in RANKS] for r in RANKS]
            sends, receives = table[RANK], [table[r][RANK] for r in RANKS]
            out = blank(sum(receives))
            dist.all_to_all_single(out, mine(sum(sends), salt=unit), receives, sends)
            expected = [data(r, sum(table[r]), salt=unit).split(table[r])[RANK] for r in RANKS]
            checks.equal(what, out, torch.cat(expected))
        what = f"all_to_all_single, splits of {unit}"
        checks.attempt(what, call)

    def lists():
        outputs = [blank(10 * (r + RANK + 1)) for r in RANKS]
        dist.all_to_all(outputs, [mine(10 * (r + RANK + 1), salt=r) for r in RANKS])
        for r, out in enumerate(outputs):
            checks.equal(f"all_to_all, of rank {r}", out, data(r, out.numel(), salt=RANK))
    checks.attempt("all_to_all", lists)


def send_receive():
    for dtype, size in [(F32, 7), (BF16, 65537), (torch.uint8, 1 << 20)]:
        for source in RANKS:
            if RANK == source:
                dist.send(mine(size, dtype, source), NEXT)
            elif BEFORE == source:
                out = blank(size, dtype)
                dist.recv(out, source)
                checks.equal(f"recv {name(dtype)} of {size} from {source}", out,
                             data(source, size, dtype, source))
    for size in SIZES:
        out, back = blank(size), blank(2 * size)
        operations = [dist.P2POp(dist.isend, mine(size, salt=60), NEXT, tag=1),
                      dist.P2POp(dist.irecv, out, BEFORE, tag=1),
                      dist.P2POp(dist.isend, mine(2 * size, salt=61), BEFORE, tag=2),
                      dist.P2POp(dist.irecv, back, NEXT, tag=2)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        checks.equal(f"batch_isend_irecv of {size}", out, data(BEFORE, size, salt=60))
        checks.equal(f"batch_isend_irecv back of {size}", back, data(NEXT, 2 * size, salt=61))


def coalesced():
    if not CUDA:  # Gloo cannot, and PyTorch would not forget that it has begun
        return
    sizes = [7, 1000, 65537]
    given = [mine(size * WORLD, salt=size) for size in sizes]
    tensors = [part.clone() for part in given]
    with dist._coalescing_manager(async_ops=True) as work:
        for tensor in tensors:
            dist.all_reduce(tensor)
    work.wait()
    for size, tensor in zip(sizes, tensors):
        checks.equal(f"coalesced all_reduce of {size * WORLD}", tensor,
                     reduced(size * WORLD, salt=size))
    outputs = [blank(size * WORLD) for size in sizes]
    with dist._coalescing_manager(device=DEVICE):
        for size, out, part in zip(sizes, outputs, given):
            dist.all_gather_into_tensor(out, part[:size])
    for size, out in zip(sizes, outputs):
        checks.equal(f"coalesced all_gather_into_tensor of {size}", out,
                     torch.cat([data(r, size * WORLD, salt=size)[:size] for r in RANKS]))
    outputs = [blank(size) for size in sizes]
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as work:
        for out, part in zip(outputs, given):
            dist.reduce_scatter_tensor(out, part)
    work.wait()
    for size, out in zip(sizes, outputs):
        checks.equal(f"coalesced reduce_scatter_tensor of {size}", out,
                     reduced(size * WORLD, salt=size).chunk(WORLD)[RANK])
    with dist._coalescing_manager(device=DEVICE, async_ops=True) as work:  # from other roots
        for i, tensor in enumerate(tensors):
            dist.broadcast(tensor.copy_(given[i]), i % WORLD)
    work.wait()
    for i, size in enumerate(sizes):
        checks.equal(f"coalesced broadcast of {size * WORLD}", tensors[i],
                     data(i % WORLD, size * WORLD, salt=size))


def asynchronous():
    tensors = [mine(1000 * (i + 1), salt=i) for i in range(8)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for i, tensor in enumerate(tensors):
        checks.equal(f"async all_reduce {i}", tensor, reduced(1000 * (i + 1), salt=i))
    tensor = mine(1000, salt=9)  # each call needs the one before
    for _ in range(10):
        dist.all_reduce(tensor)
        tensor.div_(WORLD).mul_(WORLD).sub_(tensor).add_(1)
    checks.equal("ten all_reduces, one after the other", tensor, torch.ones_like(tensor))
    if not CUDA:
        return
    streams = [torch.cuda.Stream(DEVICE) for _ in range(2)]
    tensors = [mine(65537, salt=70 + i) for i in range(6)]
    synchronize()
    for i, tensor in enumerate(tensors):  # written right before, and read right after
        with torch.cuda.stream(streams[i % 2]):
            tensor.mul_(2)
            dist.all_reduce(tensor)
            tensor.add_(1)
    synchronize()
    for i, tensor in enumerate(tensors):
        checks.equal(f"side stream {i % 2}", tensor, 2 * reduced(65537, salt=70 + i) + 1)


def groups():
    """Each rank's halves, all ranks again in a second group, and groups by split_group."""
    halves = [list(RANKS)[0::2], list(RANKS)[1::2]]
    made = [dist.new_group(ranks) for ranks in halves if ranks]
    ranks, group = halves[RANK % 2], made[RANK % 2]
    again = dist.new_group(list(RANKS))
    for size in (7, 65537):
        for who, members, pg in (("half", ranks, group), ("second", RANKS, again)):
            tensor, out = mine(size, salt=80), blank(size * len(members))
            dist.all_reduce(tensor, group=pg)
            checks.equal(f"all_reduce of {size} in a {who} group", tensor,
                         reduced(size, salt=80, ranks=members))
            dist.all_gather_into_tensor(out, mine(size, salt=81), group=pg)
            checks.equal(f"all_gather of {size} in a {who} group", out,
                         torch.cat([data(r, size, salt=81) for r in members]))
            dist.broadcast(tensor.copy_(mine(size, salt=82)), members[-1], group=pg)
            checks.equal(f"broadcast of {size} in a {who} group", tensor,
                         data(members[-1], size, salt=82))

    def split():
        middle = WORLD // 2
        parts = [part for part in (list(RANKS)[:middle], list(RANKS)[middle:]) if part]
        members = next(part for part in parts if RANK in part)
        pg = dist.split_group(split_ranks=parts)
        tensor = mine(1000, salt=83)
        dist.all_reduce(tensor, group=pg)
        checks.equal("all_reduce in a split group", tensor, reduced(1000, salt=83, ranks=members))
        dist.destroy_process_group(pg)
        dist.all_reduce(tensor.copy_(mine(1000, salt=84)))
        checks.equal("all_reduce after a group's end", tensor, reduced(1000, salt=84))
    checks.attempt("split_group", split)


def run():
    for part in (all_reduce, premul_sum, all_gather, reduce_scatter, rooted, all_to_all,
                 send_receive, coalesced, asynchronous, groups):
        part()
        dist.barrier()
        synchronize()
    return checks.end()
