"""What the tests of symwin.torch on the emulated driver and on GPUs have in common: calls of every
operator with their results, computed from all ranks' inputs; a compiled function; a small
transformer."""

import torch
import torch.nn.functional as F

import symwin.torch as st

ops = torch.ops.symwin
DEVICE = torch.device("cpu")  # of all tensors


def values(rank, *shape, dtype=torch.float32, salt=0):
    """Small integers that any rank computes of any rank."""
    made = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.randint(0, 4, shape, generator=made).to(dtype).to(DEVICE)


def split(whole, counts, rank):
    """The rows of `rank` in a tensor of parts of unequal lengths."""
    begin = sum(counts[:rank])
    return whole[begin : begin + counts[rank]]


def cases(rank, n, dtype):
    """Name, arguments before the id, those after it, and what the rank gets (None: nothing)."""

    def of(r, *shape):
        return values(r, *shape, dtype=dtype)

    def total(*shape):
        return sum(of(r, *shape).double() for r in range(n)).to(dtype)

    ranks, root, even = range(n), n - 1, (2 * n, 3)
    mine = of(rank, *even)
    yield "allreduce", (mine,), (), total(*even)
    yield "allreduce", (mine,), ("max",), torch.stack([of(r, *even) for r in ranks]).amax(0)
    yield "allgather", (mine,), (), torch.cat([of(r, *even) for r in ranks])
    yield "reduce_scatter", (mine,), (), total(*even).chunk(n)[rank]
    yield "alltoall", (mine,), (), torch.cat([of(r, *even).chunk(n)[rank] for r in ranks])
    yield "broadcast", (mine,), (root,), of(root, *even)
    yield "reduce", (mine,), ("sum", root), total(*even) if rank == root else None
    gathered = torch.cat([of(r, *even) for r in ranks])
    yield "gather", (mine,), (root,), gathered if rank == root else None
    counts = [r + 1 for r in ranks]
    part = of(rank, counts[rank], 3)
    yield "allgatherv", (part, counts), (), torch.cat([of(r, counts[r], 3) for r in ranks])
    rows = (sum(counts), 3)
    yield "reduce_scatterv", (of(rank, *rows), counts), (), split(total(*rows), counts, rank)
    # Rank r sends r + p rows to rank p.
    sent, got = [rank + p for p in ranks], [r + rank for r in ranks]
    parts = [split(of(r, sum(r + p for p in ranks), 3), [r + p for p in ranks], rank)
             for r in ranks]  # fmt: skip
    yield "alltoallv", (of(rank, sum(sent), 3), sent, got), (), torch.cat(parts)
    whole = mine if rank == root else None
    part = of(root, *even).chunk(n)[rank]
    yield "scatter", (whole, torch.empty_like(part)), (root,), part


IN_PLACE = {"allreduce": "allreduce_", "broadcast": "broadcast_", "reduce": "reduce_"}


def gradient_cases(n):
    """Name, shape of a rank's input, arguments, and what a rank gets of all ranks' inputs."""
    counts, even = [r + 1 for r in range(n)], (2 * n, 3)
    rows = sum(counts)
    yield "allreduce", lambda r: even, lambda r: ((), ()), lambda x, r: sum(x)
    yield "allreduce", lambda r: even, lambda r: ((), ("avg",)), lambda x, r: sum(x) / n
    yield "allgather", lambda r: even, lambda r: ((), ()), lambda x, r: torch.cat(x)
    yield "reduce_scatter", lambda r: even, lambda r: ((), ()), lambda x, r: sum(x).chunk(n)[r]
    yield (
        "reduce_scatter", lambda r: even, lambda r: ((), ("avg",)),
        lambda x, r: sum(x).chunk(n)[r] / n,
    )  # fmt: skip
    yield (
        "alltoall", lambda r: even, lambda r: ((), ()),
        lambda x, r: torch.cat([p.chunk(n)[r] for p in x]),
    )  # fmt: skip
    yield (
        "allgatherv", lambda r: (counts[r], 3), lambda r: ((counts,), ()),
        lambda x, r: torch.cat(x),
    )  # fmt: skip
    for op in ("sum", "avg"):
        yield (
            "reduce_scatterv", lambda r: (rows, 3), lambda r, op=op: ((counts,), (op,)),
            lambda x, r, by=n if op == "avg" else 1: split(sum(x), counts, r) / by,
        )  # fmt: skip
    yield (
        "alltoallv", lambda r: (sum(r + p for p in range(n)), 3),
        lambda r: (([r + p for p in range(n)], [p + r for p in range(n)]), ()),
        lambda x, r: torch.cat([split(x[p], [p + q for q in range(n)], r) for p in range(n)]),
    )  # fmt: skip


def weighted(y, rank):
    """A loss with other weights on each rank."""
    return (y * y * values(rank, *y.shape, dtype=y.dtype, salt=9)).sum()


def check_gradients(comm):
    """Of every operator that has one: the gradient of the sum of all ranks' losses. Returns how
    many were compared."""
    id, n, r, made = st.comm_id(comm), comm.nranks, comm.rank, 0
    for name, shape, arguments, single in gradient_cases(n):
        x = [values(p, *shape(p), dtype=torch.float64).requires_grad_() for p in range(n)]
        expected = torch.autograd.grad(sum(weighted(single(x, p), p) for p in range(n)), x)[r]
        before, after = arguments(r)
        weighted(getattr(ops, name)(x[r], *before, id, *after), r).backward()
        assert torch.allclose(x[r].grad, expected), name
        made += 1
    return made


def compiled_body(comm, backend):
    """A function of collectives gives compiled what it gives uncompiled, values and gradients."""
    id, n = st.comm_id(comm), comm.nranks
    torch._dynamo.reset()

    def step(x, w, state):
        y = ops.allreduce(torch.relu(x @ w), id)
        z = ops.reduce_scatter(ops.allgather(y * 2, id), id, "avg")
        z = ops.alltoallv(z, [2] * n, [2] * n, id) + ops.alltoall(z, id)
        ops.allreduce_(state, id)
        state.mul_(2)
        out = state.new_zeros(2 * n * n, 3)
        ops.allgather_out(state, out, id)
        ops.barrier(id)
        return z.sum(), out + 1

    results = []
    for call in (step, torch.compile(step, fullgraph=True, backend=backend)):
        x, w = values(comm.rank, 2 * n, 5), values(7, 5, 3).requires_grad_()
        state = values(comm.rank, 2 * n, 3, salt=1)
        loss, out = call(x, w, state)
        loss.backward()
        results.append((loss.detach(), out, state, w.grad))
    for one, other in zip(*results):
        assert torch.allclose(one, other), (one, other)


def unused_body(comm, backend):
    """One rank uses a result and the others do not: all make the call."""
    id = st.comm_id(comm)
    torch._dynamo.reset()

    def step(x):
        total = ops.allreduce(x, id)
        ops.gather(x + 1, id)
        temporary = x + 2
        ops.allreduce_(temporary, id)
        ops.barrier(id)
        return x * 2 + total if comm.rank == 0 else x * 2

    x = torch.ones(4, device=DEVICE)
    call = torch.compile(step, fullgraph=True, backend=backend)
    assert torch.equal(call(x), x * (2 + comm.nranks if comm.rank == 0 else 2))
    assert torch.equal(ops.allreduce(x, id), x * comm.nranks)


def messages_body(comm, backend):
    """Messages keep their order; of the first two ranks."""
    if comm.rank > 1:
        return
    id, other = st.comm_id(comm), 1 - comm.rank
    torch._dynamo.reset()

    def step(x):
        if comm.rank == 0:
            ops.send(x + 1, id, other)
            ops.send(x + 2, id, other)
            return ops.recv(x, id, other)
        a = ops.recv(x, id, other)
        b = ops.recv(x, id, other)
        ops.send(a * 10 + b, id, other)
        return b

    found = torch.compile(step, fullgraph=True, backend=backend)(torch.zeros(3, device=DEVICE))
    assert found.tolist() == [[12.0] * 3, [2.0] * 3][comm.rank]


class Block:
    """A transformer's block: attention over heads, and two layers. With `comm`, this rank has some
    of the heads and of the inner layer, and the outputs are summed over the ranks."""

    WIDTH, HEADS, INNER = 16, 4, 32

    def __init__(self, seed, comm=None):
        w, heads, inner = self.WIDTH, self.HEADS, self.INNER
        made = torch.Generator().manual_seed(seed)
        qkv = torch.randn(3, heads, w, w // heads, generator=made, dtype=torch.float64) / 4
        out = torch.randn(heads, w // heads, w, generator=made, dtype=torch.float64) / 4
        up = torch.randn(inner, w, generator=made, dtype=torch.float64) / 4
        down = torch.randn(inner, w, generator=made, dtype=torch.float64) / 6
        self.id = None
        if comm is not None:
            self.id, n, r = st.comm_id(comm), comm.nranks, comm.rank
            qkv, out = qkv.chunk(n, 1)[r], out.chunk(n)[r]
            up, down = up.chunk(n)[r], down.chunk(n)[r]
        self.weights = [x.to(DEVICE).clone().requires_grad_() for x in (qkv, out, up, down)]

    def total(self, x):
        return x if self.id is None else ops.allreduce(x, self.id)

    def __call__(self, x):
        qkv, out, up, down = self.weights
        q, k, v = torch.einsum("btw,chwd->cbhtd", F.layer_norm(x, x.shape[-1:]), qkv)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.total(torch.einsum("bhtd,hdw->btw", mixed, out).contiguous())
        hidden = F.gelu(F.layer_norm(x, x.shape[-1:]) @ up.T)
        return x + self.total(hidden @ down)


def model_step(comm=None):
    """Greedy tokens and the gradients of one training step."""
    n = 1 if comm is None else comm.nranks
    table = torch.randn(11, Block.WIDTH, generator=torch.Generator().manual_seed(3))
    table = table.double().to(DEVICE)
    blocks = [Block(seed, comm) for seed in (1, 2)]

    def logits(tokens):
        x = table[tokens]
        for block in blocks:
            x = block(x)
        return x @ table.T

    tokens = torch.tensor([[1, 5, 2], [7, 0, 9]], device=DEVICE)
    loss = F.cross_entropy(logits(tokens)[:, :-1].reshape(-1, 11), tokens[:, 1:].reshape(-1))
    (loss / n).backward()  # every rank has the whole loss, and gradients are of the ranks' sum
    with torch.no_grad():
        for _ in range(6):
            tokens = torch.cat([tokens, logits(tokens)[:, -1:].argmax(-1)], 1)
    return loss.item(), tokens, [w.grad for block in blocks for w in block.weights]


def check_model(alone, found, rank, nranks):
    """Loss, tokens and gradients of a rank beside those of a model on one rank."""
    (loss, tokens, gradients), (part_loss, part_tokens, parts) = alone, found
    assert len(set(tokens.flatten().tolist())) > 3
    assert abs(part_loss - loss) < 1e-9 and torch.equal(part_tokens, tokens)
    for i, (part, whole) in enumerate(zip(parts, gradients)):
        expected = whole.chunk(nranks, 1 if i % 4 == 0 else 0)[rank]
        assert torch.allclose(part, expected, rtol=1e-9), f"gradient {i}"


def train(wrapped, batches):
    """The weights after four steps of a small model on some ranks' data."""
    torch.manual_seed(4)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 40), torch.nn.Tanh(), torch.nn.Linear(40, 3)
    )  # fmt: skip
    model = model.double().to(DEVICE)
    run = wrapped(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.cat([values(r, 5, 20, dtype=torch.float64, salt=step) for r in batches])
        run(x).square().mean().backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
