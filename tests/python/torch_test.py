"""symwin.torch: operators against single computations, gradients, compilers, symmetric tensors,
what engines and DistributedDataParallel use, and wrong input."""

import gc
import os
import sys
import threading
import warnings
import weakref

import numpy
import pytest

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # or what an earlier run has compiled runs
torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import symwin  # noqa: E402
import symwin.torch as st  # noqa: E402
from symwin import Status, SymwinError, SymwinInvalid, SymwinTimeout  # noqa: E402
from torch_cases import (  # noqa: E402
    IN_PLACE, cases, check_gradients, check_model, compiled_body, messages_body, model_step, train,
    unused_body, values,
)  # fmt: skip

if not symwin.is_emulated():
    pytest.skip("on GPUs tests/gpu/gpu_symwin_torch.t tests it", allow_module_level=True)

ops = torch.ops.symwin
torch.set_num_threads(1)
# torch 2.11 without a GPU crashes if the first thread that traces has ended: so it is this one.
with FakeTensorMode():
    pass


# ---- every operator ----


def own(comm, tensor):
    """The same tensor in symwin's memory."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return torch.from_dlpack(comm.empty(tuple(tensor.shape), tensor.dtype)).copy_(tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32])
@pytest.mark.parametrize("nranks", [1, 2, 4])
@pytest.mark.parametrize("memory", ["torch's", "symwin's"])
def test_every_operator(ranks, nranks, dtype, memory):
    def body(comm):
        id, made = st.comm_id(comm), 0
        for name, before, after, expected in cases(comm.rank, nranks, dtype):
            if memory == "symwin's":
                before = [own(comm, x) for x in before]
            found = getattr(ops, name)(*before, id, *after)
            nothing = found.new_empty(0)
            assert torch.equal(found, nothing if expected is None else expected), name
            output = None if expected is None else torch.full_like(expected, 9)
            if memory == "symwin's" and output is not None:
                output = own(comm, output)
            if name == "scatter":
                before = before[:1]
            assert getattr(ops, name + "_out")(*before, output, id, *after) is None
            assert expected is None or torch.equal(output, expected), name + "_out"
            if name in IN_PLACE:
                tensor = before[0].clone() if memory == "torch's" else own(comm, before[0])
                getattr(ops, IN_PLACE[name])(tensor, id, *after)
                assert expected is None or torch.equal(tensor, expected), IN_PLACE[name]
            made += 1
        return made

    assert ranks(nranks, body) == [12] * nranks


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint8])
def test_other_types(ranks, dtype):
    def body(comm):
        found = ops.allgather(torch.full((3,), comm.rank + 1.0).to(dtype), st.comm_id(comm))
        assert found.dtype == dtype and found.float().tolist() == [1, 1, 1, 2, 2, 2]

    ranks(2, body)


def test_messages_and_barriers(ranks):
    def body(comm):
        id, n = st.comm_id(comm), comm.nranks
        mine = own(comm, values(comm.rank, 5, 2))
        got = own(comm, torch.zeros(5, 2))
        with symwin.group():
            ops.send(mine, id, (comm.rank + 1) % n)
            ops.recv_(got, id, (comm.rank - 1) % n)
        symwin.synchronize(comm.device)
        assert torch.equal(got, values((comm.rank - 1) % n, 5, 2))
        ops.barrier(id)
        if comm.rank == 0:  # in torch's memory, one after the other
            ops.send(torch.ones(4), id, 1)
            assert torch.equal(ops.recv(torch.empty(3), id, 1), torch.full((3,), 7.0))
        elif comm.rank == 1:
            assert torch.equal(ops.recv(torch.empty(4), id, 0), torch.ones(4))
            ops.send(torch.full((3,), 7.0), id, 0)

    ranks(4, body)


def test_groups(ranks):
    """What is made in a group is kept until its end, which launches it."""

    def body(comm):
        id = st.comm_id(comm)
        with symwin.group():
            found = [ops.allreduce(own(comm, torch.full((7,), i + 1.0)), id) for i in range(5)]
            with pytest.raises(SymwinInvalid, match="calls of a group need symwin's memory"):
                ops.allreduce(torch.ones(7), id)
        symwin.synchronize(comm.device)
        assert [x[3].item() for x in found] == [2 * (i + 1) for i in range(5)]
        assert symwin.comm.opened.keep == () and symwin.comm.opened.depth == 0

    ranks(2, body)


def test_temporaries_of_groups(ranks):
    """A communicator's calls in a group keep their tensors until its end too."""

    def body(comm):
        n, r = comm.nranks, comm.rank

        def tensor(*shape):
            made = own(comm, torch.ones(*shape))
            seen.append(weakref.ref(made.untyped_storage()))
            return made

        seen = []
        with symwin.group():
            comm.allreduce(tensor(4), tensor(4))
            comm.allreduce(tensor(4))
            comm.allreduce(tensor(4), op="mulsum", scalar=tensor(1))
            comm.allgather(tensor(4), tensor(n, 4))
            comm.reduce_scatter(tensor(n, 4), tensor(4))
            comm.alltoall(tensor(n, 4), tensor(n, 4))
            comm.broadcast(tensor(4), tensor(4))
            comm.reduce(tensor(4), tensor(4))
            comm.gather(tensor(4), tensor(n, 4) if r == 0 else None)
            comm.scatter(tensor(n, 4) if r == 0 else None, tensor(4))
            comm.allgatherv(tensor(4), tensor(n, 4), [4] * n)
            comm.reduce_scatterv(tensor(n, 4), [4] * n, tensor(4))
            comm.alltoallv(tensor(n, 4), [4] * n, tensor(n, 4), [4] * n)
            comm.send(tensor(4), (r + 1) % n)
            comm.recv(tensor(4), (r - 1) % n)
            gc.collect()
            held = [one() is not None for one in seen]
        symwin.synchronize(comm.device)
        assert all(held), held
        assert len(held) == (27 if r == 0 else 25) and symwin.comm.opened.keep == ()

    ranks(2, body)


# ---- gradients ----


@pytest.mark.parametrize("nranks", [2, 4])
def test_gradients(ranks, nranks):
    assert ranks(nranks, check_gradients) == [10] * nranks


def test_no_gradient(ranks):
    def body(comm):
        id, x = st.comm_id(comm), torch.ones(4, requires_grad=True)
        for found, words in (
            (ops.allreduce(x, id, "max"), "allreduce by max has no gradient"),
            (ops.reduce_scatter(x, id, "min"), "reduce_scatter by min has no gradient"),
            (ops.broadcast(x, id), "broadcast has no gradient"),
            (ops.gather(x, id), "gather has no gradient"),
        ):
            with pytest.raises(SymwinInvalid, match=words):
                found.sum().backward()
        for call in (
            lambda: ops.allreduce_(x, id),
            lambda: ops.allreduce_out(x, torch.ones(4), id),
            lambda: ops.allgather_out(torch.ones(4), x, id),
            lambda: ops.scatter_out(x, torch.ones(4), id),
        ):
            with pytest.raises(SymwinInvalid, match="requires a gradient"):
                call()
        with torch.no_grad():
            ops.allreduce_(x, id)
        assert torch.equal(x, torch.ones(4))

    ranks(1, body)


@pytest.mark.parametrize("call", [
    lambda x, id: ops.allreduce_(x, id),
    lambda x, id: ops.broadcast_(x, id),
    lambda x, id: ops.reduce_(x, id),
    lambda x, id: ops.allreduce_out(x.clone(), x, id),
    lambda x, id: ops.alltoallv_out(x.clone(), [4], [4], x, id),
    lambda x, id: ops.scatter_out(x.clone(), x, id),
])  # fmt: skip
def test_written_in_a_graph(ranks, call):
    """What autograd has kept, and a call has written to, is refused by the backward pass."""

    def body(comm):
        w, x = torch.ones(4, requires_grad=True), own(comm, torch.ones(4))
        h = w * x
        call(x, st.comm_id(comm))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            h.sum().backward()
        (w * x).sum().backward()
        with torch.inference_mode():
            call(own(comm, torch.ones(4)), st.comm_id(comm))

    ranks(1, body)


# ---- compilers ----


def check(comm):
    """Arguments of every operator, for one rank."""
    id, x = st.comm_id(comm), torch.rand(4, 2)
    for name, before, after, expected in cases(0, 1, torch.float32):
        yield name, (*before, id, *after)
        output = torch.empty_like(expected)
        yield name + "_out", (*(before[:1] if name == "scatter" else before), output, id, *after)
    yield from ((name, (x.clone(), id)) for name in IN_PLACE.values())
    yield "barrier", (id,)


def test_opcheck(ranks):
    def body(comm):
        names = set()
        for name, arguments in check(comm):
            torch.library.opcheck(getattr(ops, name).default, arguments)
            names.add(name)
        for name in ("allreduce", "allgather", "reduce_scatter", "alltoall"):
            x = torch.rand(4, 2, requires_grad=True)
            torch.library.opcheck(getattr(ops, name).default, (x, st.comm_id(comm)))
        return names

    (names,) = ranks(1, body)
    defined = {
        name.partition("::")[2]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("symwin::")
    }
    assert defined - names == {"send", "recv", "recv_"}  # not with the rank itself
    for name in ("barrier", "send", "recv"):  # compilers keep their order
        effect = torch._higher_order_ops.effects._get_effect(getattr(ops, name).default)
        assert effect is torch._library.effects.EffectType.ORDERED


BACKENDS = ["aot_eager", "inductor"]


def compiles(backend):
    if backend == "inductor":
        from torch._inductor import cpp_builder

        try:
            cpp_builder.get_cpp_compiler()
        except Exception as reason:
            pytest.skip(f"torch finds no C++ compiler: {reason}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_compile(ranks, backend):
    compiles(backend)
    ranks(1, lambda comm: compiled_body(comm, backend))


@torch._dynamo.config.patch(capture_scalar_outputs=True)
def test_counts_that_are_data(ranks):
    """One compiled function serves all counts, and the call checks them. Gradients are right."""

    def body(comm):
        id, frames = st.comm_id(comm), []

        def backend(graph, example):
            frames.append(graph)
            return aot_eager(graph, example)

        def into(x, counts):
            y = torch.empty_like(x)
            ops.alltoallv_out(x, counts, counts, y, id)
            return y

        for call in (
            lambda x, counts: ops.alltoallv(x, counts, counts, id),
            lambda x, counts: ops.allgatherv(x, counts, id),
            lambda x, counts: ops.reduce_scatterv(x, counts, id),
            into,
        ):
            torch._dynamo.reset()
            frames.clear()
            step = torch.compile(
                lambda x, counts: call(x, counts.tolist()) * 2, fullgraph=True, backend=backend,
                dynamic=True,
            )  # fmt: skip
            for n in (4, 6):
                x = values(0, n, 2)
                assert torch.equal(step(x, torch.tensor([n])), x * 2)
            for wrong, words in (5, "5 rows"), (-1, ">= 0"):
                with pytest.raises((RuntimeError, SymwinInvalid), match=words):
                    step(x, torch.tensor([wrong]))
            assert len(frames) == 1
            for n in (4, 6) if call is not into else ():
                x = values(0, n, 2).requires_grad_()
                step(x, torch.tensor([n])).sum().backward()
                assert torch.equal(x.grad, torch.full((n, 2), 2.0))

    from torch._dynamo.backends.debugging import aot_eager

    ranks(1, body)


def test_fake_kernels(ranks):
    """What compilers trace has the shapes and the errors of what runs."""
    def body(comm):
        for name, arguments in check(comm):
            found = getattr(ops, name)(*arguments)
            with FakeTensorMode() as mode:
                fakes = [
                    mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments
                ]
                fake = getattr(ops, name)(*fakes)
            assert (found is None) == (fake is None), name
            if found is not None:
                assert (found.shape, found.dtype, found.stride()) == (
                    fake.shape, fake.dtype, fake.stride()
                ), name  # fmt: skip
        with FakeTensorMode(), pytest.raises(SymwinInvalid, match="expected shape"):
            ops.allgather_out(torch.empty(2, 2), torch.empty(3, 2), st.comm_id(comm))
        with FakeTensorMode(), pytest.raises(SymwinInvalid, match="no communicator"):
            ops.allreduce(torch.empty(5, 2), 12345)

    def two(comm):
        with FakeTensorMode():
            with pytest.raises(SymwinInvalid, match="multiple of 2 rows"):
                ops.reduce_scatter(torch.empty(5, 2), st.comm_id(comm))
            assert ops.allgather(torch.empty(5, 2), st.comm_id(comm)).shape == (10, 2)
            whole = ops.gather(torch.empty(5, 2), st.comm_id(comm), 1)
            assert whole.shape == ((10, 2) if comm.rank == 1 else (0,))

    ranks(1, body)
    ranks(2, two)


# ---- communicators and symmetric tensors ----


def test_ids(ranks):
    def body(comm):
        id = st.comm_id(comm)
        assert st.comm_id(comm) == id and id % (1 << 18) == comm.nranks
        part = comm.split(0)
        other = st.comm_id(part)
        assert other != id
        comm.barrier()
        symwin.synchronize(comm.device)
        part.destroy()
        with pytest.raises(SymwinInvalid, match=f"comm is {other}, and .* was destroyed"):
            ops.allreduce_(torch.ones(3), other)
        del part
        for wrong in (other, 0, -1, 1 << 62):
            with pytest.raises(SymwinInvalid, match=f"comm is {wrong}, and no communicator"):
                ops.allreduce_(torch.ones(3), wrong)
        with pytest.raises(SymwinInvalid, match="comm is a int; pass a symwin.Communicator"):
            st.comm_id(id)
        return id

    assert len(set(ranks(2, body))) == 2


def test_symmetric_tensors(ranks):
    def body(comm):
        id = st.comm_id(comm)
        x = st.empty((4, 3), torch.bfloat16, comm)
        assert (x.shape, x.dtype, x.is_contiguous()) == ((4, 3), torch.bfloat16, True)
        window = st.window_of(x[2:])
        assert window.query()["ptr"] == x.data_ptr() and window.query()["bytes"] == 24
        x.fill_(comm.rank + 1)
        ops.allreduce_(x, id)
        assert torch.equal(x, torch.full((4, 3), 3, dtype=torch.bfloat16))
        ops.barrier(id)
        # A peer's memory under the address that the window gives.
        near = torch.frombuffer(
            (symwin._api.c_uint8 * 24).from_address(window.peer_ptr(1 - comm.rank)),
            dtype=torch.bfloat16,
        )
        assert torch.equal(near.view(4, 3), x)
        ops.barrier(id)
        st.free(x)
        assert comm.query()["windows"] == 0 and x[0, 0] == 3  # an ordinary tensor
        for use in (st.free, st.window_of):
            with pytest.raises(SymwinInvalid, match="shape .4, 3., dtype torch.bf.*symmetric"):
                use(x)
        with pytest.raises(SymwinInvalid, match="not symmetric|it is not"):
            st.window_of(torch.ones(3))
        with pytest.raises(SymwinInvalid, match="tensor is a list"):
            st.free([x])
        for shape in ((0, 3), (-1,), "x", 2.0, None):
            with pytest.raises(SymwinInvalid, match="shape is"):
                st.empty(shape, torch.float32, comm)
        with pytest.raises(SymwinInvalid, match="dtype is torch.complex64"):
            st.empty((3,), torch.complex64, comm)
        for shape in (numpy.int64(6), (numpy.int32(2), 3), torch.Size([6])):
            numbers = st.empty(shape, torch.int8, comm)
            assert numbers.numel() == 6
            st.free(numbers)
        dropped = st.empty(5, torch.int32, comm)  # keeps its memory until the communicator ends
        before = symwin.memory.usage(comm.device)["asked_bytes"]
        del dropped
        assert symwin.memory.usage(comm.device)["asked_bytes"] == before
        kept = st.empty((6,), torch.float32, comm).fill_(2)
        comm.destroy()
        with pytest.raises(SymwinInvalid, match="not symmetric"):
            st.window_of(kept)
        return kept

    kept = ranks(2, body)
    assert [x.sum().item() for x in kept] == [12, 12]


def test_one_rank_without_memory(ranks):
    """All ranks fail at once, none waits for the other's time."""

    def body(comm):
        if comm.rank == 1:
            comm.empty = lambda *_: symwin.empty(1 << 60, "u8", comm.device)
        with pytest.raises(SymwinError) as caught:
            st.empty((1024,), torch.float32, comm)
        vars(comm).pop("empty", None)
        assert caught.value.status in (Status.NO_MEMORY, Status.INVALID)
        x = ops.allreduce(torch.ones(3), st.comm_id(comm))  # and it works on
        assert x.tolist() == [2, 2, 2]

    ranks(2, body, timeout_ms=20000)


def test_the_way_of_cuda(ranks, monkeypatch):
    """On symwin's memory: the call goes to torch's stream of the device, and nothing waits."""

    def body(comm):
        x, id = own(comm, values(comm.rank, 9)), st.comm_id(comm)
        with symwin.Stream(comm.device) as stream:
            streams[comm.device] = stream.__cuda_stream__()[1]
            meet.wait(10)
            with symwin.group():
                operators._run_on_cuda(comm, operators._allreduce_, x, ("sum",))
                assert [[a.keep is x for a in kept] for kept, _ in symwin.comm.opened.keep] == [
                    [True, True]
                ]
            stream.synchronize()
        assert torch.equal(x, values(0, 9) + values(1, 9))
        meet.wait(10)
        monkeypatch.undo()
        with pytest.raises(SymwinInvalid, match="driver is the emulated one"):
            operators._run_on_cuda(comm, operators._allreduce_, x, ("sum",))
        assert st.comm_id(comm) == id

    streams, meet, operators = {}, threading.Barrier(2), symwin._torch_operators
    monkeypatch.setattr(operators, "is_emulated", lambda: False)
    monkeypatch.setattr(operators, "_raw_stream", streams.__getitem__)
    ranks(2, body)


def test_no_pool():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, with pools")
    with pytest.raises(SymwinError, match="no CUDA device") as caught:
        st.mem_pool()
    assert caught.value.status is Status.UNSUPPORTED


# ---- wrong input ----

X = torch.ones


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


WRONG = [
    (lambda id: ops.allreduce(X(4, 4).T, id), "input is a tensor of shape (4, 4), dtype "
     "torch.float32, device cpu, not contiguous; pass input.contiguous()"),
    (lambda id: ops.allreduce_(X(4, 4)[:, :2], id), "tensor is a tensor of shape (4, 2)"),
    (lambda id: ops.allgather_out(X(4), X(2, 4).T, id), "output is a tensor of shape (4, 2)"),
    (lambda id: ops.allreduce_(freed(X(4)), id), "tensor is a tensor of shape (4,), dtype "
     "torch.float32, device cpu, whose memory was freed"),
    (lambda id: ops.allgather(freed(X(4)), id), "memory was freed"),
    (lambda id: ops.allgather_out(X(4), freed(X(4)), id), "memory was freed"),
    (lambda id: ops.allreduce(X(4).bool(), id), "dtype torch.bool, device cpu; symwin has f64"),
    (lambda id: ops.allreduce_(X(4).cfloat(), id), "dtype torch.complex64"),
    (lambda id: ops.allreduce(X(4), id, "median"), "op is 'median'"),
    (lambda id: ops.allreduce_out(X(4), X(5), id), "output is a tensor of shape (5,), dtype "
     "torch.float32, device cpu; expected shape (4,), dtype torch.float32"),
    (lambda id: ops.allreduce_out(X(4), X(4).double(), id), "expected shape (4,), dtype "
     "torch.float32"),
    (lambda id: ops.allgather_out(X(4), X(7), id), "expected shape (4,)"),
    (lambda id: ops.reduce_scatter(X(()), id), "expected at least one dimension"),
    (lambda id: ops.broadcast(X(4), id, 1), "root"),
    (lambda id: ops.broadcast_(X(4), id, -1), "root is -1"),
    (lambda id: ops.gather_out(X(4), None, id), "output is None; rank 0"),
    (lambda id: ops.reduce_out(X(4), X(3), id), "output is a tensor of shape (3,)"),
    (lambda id: ops.scatter(None, X(4), id), "input is None; rank 0 is the root"),
    (lambda id: ops.scatter(X(4), None, id), "like is None"),
    (lambda id: ops.allgather_out(None, X(4), id), "input is None; pass a tensor"),
    (lambda id: ops.scatter(X(3), X(4), id), "input is a tensor of shape (3,)"),
    (lambda id: ops.scatter_out(X(4).double(), X(4), id), "dtype torch.float64"),
    (lambda id: ops.alltoallv(X(4), [1, 2], [4], id), "input_counts is [1, 2]"),
    (lambda id: ops.alltoallv(X(4), [5], [4], id), "input is a tensor of shape (4,)"),
    (lambda id: ops.alltoallv(X(4), [4], [-4], id), "output_counts is [-4]"),
    (lambda id: ops.alltoallv_out(X(4), [4], [4], X(5), id), "output is a tensor of shape (5,)"),
    (lambda id: ops.allgatherv(X(4), [3], id), "needs 3 rows"),
    (lambda id: ops.reduce_scatterv(X(4), [3], id), "needs 3 rows"),
    (lambda id: ops.send(X(4), id, 5), "peer"),
    (lambda id: ops.recv_(X(4), id, -1), "peer is -1"),
    (lambda id: ops.recv(X(4, 4).T[:2].bool(), id, 0), "bool"),
]  # fmt: skip


def test_freed_storage(ranks):
    """A view with an offset keeps an address that is not 0."""

    def body(comm):
        for view in (X(8), X(8)[2:]):
            assert freed(view).storage_offset() in (0, 2)
            with pytest.raises(SymwinInvalid, match="input is .*whose memory was freed"):
                comm.allreduce(view)

    ranks(1, body)


@pytest.mark.parametrize("call, words", WRONG)
def test_wrong_input(ranks, call, words):
    def body(comm):
        with pytest.raises(SymwinInvalid) as caught:
            call(st.comm_id(comm))
        assert words in str(caught.value)
        assert ops.allreduce(torch.ones(3), st.comm_id(comm)).tolist() == [1, 1, 1]

    ranks(1, body)


def test_wrong_kinds(ranks):
    """What is no tensor, or no number, does not reach the operators."""

    def body(comm):
        for arguments in ((None, 1), (torch.ones(3), comm), (torch.ones(3), "1"), ([1], 1), ()):
            with pytest.raises((RuntimeError, TypeError)):
                ops.allreduce(*arguments)
        with pytest.raises(NotImplementedError):
            ops.allreduce(torch.ones(3, device="meta").to_sparse(), st.comm_id(comm))

    ranks(1, body)


def test_host_memory_on_a_gpu(ranks, monkeypatch):
    """With the driver of CUDA a tensor of the CPU is refused."""

    def body(comm):
        with pytest.raises(SymwinInvalid, match="device cpu; expected memory of cuda:0"):
            ops.allreduce_(torch.ones(3), st.comm_id(comm))

    monkeypatch.setattr("symwin._torch_operators.is_emulated", lambda: False)
    ranks(1, body)


def test_a_failed_communicator(ranks):
    def body(comm):
        x = torch.ones(3)
        ops.allreduce_(x, st.comm_id(comm))
        meet.wait(10)
        if comm.rank == 0:
            comm.abort()
        meet.wait(10)
        with pytest.raises(SymwinError) as caught:
            for _ in range(100):
                ops.allreduce_(x, st.comm_id(comm))
        assert caught.value.status is Status.ABORTED

    meet = threading.Barrier(2)
    ranks(2, body)


def test_a_late_rank(ranks):
    """A call on the CPU has the failure of its kernel."""

    def body(comm):
        if comm.rank == 0:
            with pytest.raises(SymwinTimeout, match="rank 1"):
                ops.allreduce_(torch.ones(3), st.comm_id(comm))
        meet.wait(20)

    meet = threading.Barrier(2)
    ranks(2, body, kernel_timeout_ms=300)


# ---- tensor parallelism ----


@pytest.mark.parametrize("nranks", [2, 4])
def test_tensor_parallel(ranks, nranks):
    alone = model_step()
    for r, found in enumerate(ranks(nranks, model_step)):
        check_model(alone, found, r, nranks)


# ---- processes ----


def process(rank, nranks, path, body, arguments):
    torch.set_num_threads(1)
    warnings.simplefilter("error", ResourceWarning)
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=nranks)
    body(*arguments)
    dist.barrier()
    dist.destroy_process_group()


def run_processes(tmp_path, nranks, body, *arguments):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = mp.spawn(
        process, (nranks, tmp_path / "meet", body, arguments), nranks, join=False
    )
    try:
        for _ in range(120):
            if context.join(1):
                return
        pytest.fail("the processes did not end in 120 s")
    finally:
        for running in context.processes:
            running.kill()


def group_body():
    comm = st.communicator()
    assert st.communicator(dist.group.WORLD, "cpu") is comm
    assert (comm.rank, comm.nranks) == (dist.get_rank(), dist.get_world_size())
    assert ops.allreduce(torch.full((3,), comm.rank + 1.0), st.comm_id(comm)).tolist() == [6] * 3
    with pytest.raises(SymwinInvalid, match="device is 3"):
        st.communicator(None, 3)
    with pytest.raises(SymwinInvalid, match="device is meta"):
        st.communicator(None, "meta")
    pair = dist.new_group([0, 2])
    if comm.rank == 1:
        with pytest.raises(SymwinInvalid, match="group is -100, .*not in the group"):
            st.communicator(pair)
    else:
        # One rank's arguments are wrong: both fail, with its sentence, and nobody waits.
        for last in (False, True):
            wrong = last == (comm.rank == 2)
            with pytest.raises(SymwinInvalid, match="device is meta"):
                st.communicator(pair, "meta" if wrong else "cpu")
            with pytest.raises(TypeError, match="color is no option"):
                st.communicator(pair, **({"color": 1} if wrong else {}))
        two = st.communicator(pair, timeout_ms=9000)
        assert two.nranks == 2 and st.communicator(pair) is two
        assert ops.allreduce(torch.ones(3), st.comm_id(two)).tolist() == [2] * 3
        two.destroy()
    comm.destroy()
    again = st.communicator()
    assert again is not comm and again.nranks == 3
    again.destroy()


def test_communicator_of_a_group(tmp_path):
    run_processes(tmp_path, 3, group_body)


def engine_body():
    rank, n = dist.get_rank(), dist.get_world_size()
    ar = st.CustomAllreduce(dist.group.WORLD, "cpu", max_size=4096 - rank)
    assert not ar.disabled and (ar.rank, ar.world_size, ar.max_size) == (rank, n, 4096 - n + 1)
    x = torch.full((16, 4), rank + 1.0)
    expected = torch.full((16, 4), n * (n + 1) / 2)
    with ar.capture():
        assert torch.equal(ar.custom_all_reduce(x), expected)
    for wrong in (torch.ones(1024), torch.ones(4, 4).T, torch.ones(4).bool(), torch.ones(0)):
        assert not ar.should_custom_ar(wrong) and ar.custom_all_reduce(wrong) is None
    out = torch.zeros(16, 4)
    assert ar.all_reduce(x, out=out, registered=True) is out and torch.equal(out, expected)
    ar.finalize_p2p()
    ar.close()
    ar.close()
    assert ar.disabled and ar.custom_all_reduce(x) is None
    # One rank cannot: all are told, none waits.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        bad = st.CustomAllreduce(dist.group.WORLD, 99 if rank == 0 else 0)
    bad.register_graph_buffers()
    with pytest.warns(UserWarning, match="disabled: .*no-such"):
        assert st.CustomAllreduce(dist.group.WORLD, "no-such" if rank == 1 else "cpu").disabled
    assert bad.disabled and "disabled" in str(told[-1].message)
    assert bad.custom_all_reduce(x) is None
    query = symwin.Communicator.query
    if rank == 0:
        symwin.Communicator.query = lambda self: query(self) | {"domains": 2}
    with pytest.warns(UserWarning, match="disabled: there are several domains"):
        assert st.CustomAllreduce(dist.group.WORLD, 0).disabled
    symwin.Communicator.query = query
    last = st.CustomAllreduce(dist.group.WORLD, 0)
    del last  # engines only drop it


def test_custom_allreduce(tmp_path, monkeypatch):
    monkeypatch.setenv("SYMWIN_BOOTSTRAP_TIMEOUT_MS", "3000")
    run_processes(tmp_path, 2, engine_body)


def ddp_body():
    """Four steps of DistributedDataParallel give the weights of one process with all the data."""
    rank, n = dist.get_rank(), dist.get_world_size()

    buckets = []

    def hook(state, bucket):
        buckets.append(bucket.buffer().numel())
        return st.ddp_hook(state, bucket)

    def hooked(state):
        def wrapped(model):
            run = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
            run.register_comm_hook(state, hook)
            return run

        return wrapped

    alone = train(lambda model: model, range(n))
    for state in (None, st.communicator()):
        assert torch.allclose(train(hooked(state), [rank]), alone, rtol=1e-12)
    assert len(buckets) >= 8  # of four steps, twice
    st.communicator().destroy()


def test_ddp_hook(tmp_path):
    run_processes(tmp_path, 2, ddp_body)


def compile_body():
    with FakeTensorMode():
        pass
    comm = st.communicator()
    compiled_body(comm, "aot_eager")
    unused_body(comm, "aot_eager")
    messages_body(comm, "aot_eager")
    comm.destroy()


def test_compile_in_processes(tmp_path):
    run_processes(tmp_path, 2, compile_body)


# ---- the extension ----


class Odd(torch.Tensor):
    """A subclass with answers of its own."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if function is torch.Tensor.numel:
            return 3
        return super().__torch_function__(function, types, arguments, named or {})


def freed_view(comm, nbytes, begin=100):
    """A view whose storage has become smaller than it."""
    base = torch.ones(1000)
    view = base[begin:]
    base.untyped_storage().resize_(nbytes)
    return view


TENSORS = {
    "plain": lambda comm: own(comm, torch.ones(4)),
    "bf16": lambda comm: own(comm, torch.ones(4, dtype=torch.bfloat16)),
    "e4m3": lambda comm: own(comm, torch.ones(4).to(torch.float8_e4m3fn)),
    "of several dimensions": lambda comm: own(comm, torch.ones(2, 1, 2)),
    "a number": lambda comm: own(comm, torch.ones(())),
    "with a gradient": lambda comm: own(comm, torch.ones(4)).requires_grad_(),
    "a parameter": lambda comm: torch.nn.Parameter(own(comm, torch.ones(4))),
    "a view": lambda comm: own(comm, torch.ones(8))[4:],
    "of strange strides": lambda comm: own(comm, torch.ones(4)).as_strided((1, 4), (77, 1)),
    "empty": lambda comm: own(comm, torch.ones(1))[:0],
    "empty and strided": lambda comm: own(comm, torch.ones(4, 4))[:0, ::2],
    "strided": lambda comm: own(comm, torch.ones(8))[::2],
    "expanded": lambda comm: own(comm, torch.ones(1)).expand(4),
    "of the host": lambda comm: torch.ones(4),
    "bool": lambda comm: own(comm, torch.ones(4, dtype=torch.uint8)).view(torch.bool),
    "complex": lambda comm: own(comm, torch.ones(4)).view(torch.complex64),
    "freed": lambda comm: freed_view(comm, 0),
    "smaller": lambda comm: freed_view(comm, 16),
    "smaller by one element": lambda comm: freed_view(comm, 3996),
    "smaller from its begin on": lambda comm: freed_view(comm, 3996, 0),
    "negated": lambda comm: torch._neg_view(own(comm, torch.ones(4))),
    "meta": lambda comm: torch.ones(4, device="meta"),
    "sparse": lambda comm: torch.ones(4).to_sparse(),
    "of a subclass": lambda comm: own(comm, torch.ones(4)).as_subclass(Odd),
}


@pytest.mark.skipif(not symwin.has_extension(), reason="no extension here")
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_the_extension(ranks, kind):
    """As by ctypes: results and sentences; ordinary tensors come to no function of comm.py."""
    ordinary = kind in [*TENSORS][: [*TENSORS].index("strided")]

    def outcome(call, *given):
        try:
            return call(*given) is given[-1]
        except Exception as error:
            return type(error), str(error)

    def body(comm):
        comm.allreduce(own(comm, torch.ones(1)))  # the classes are known from now on
        comm.allreduce(torch.nn.Parameter(own(comm, torch.ones(1))))
        x, y, seen = TENSORS[kind](comm), own(comm, torch.ones(4)), []
        slow = symwin.comm.by_ctypes
        sys.setprofile(lambda frame, event, _: seen.append(event))
        found = outcome(comm.allreduce, x)
        sys.setprofile(None)
        assert found == outcome(slow["allreduce"], comm, x)
        assert found is True or not ordinary
        refused = {"smaller": "whose memory was freed", "negated": "pass input.resolve_neg()"}
        assert refused.get(kind.split()[0], "") in str(found)
        assert not ordinary or seen.count("call") == 1  # of outcome()
        for given in (x, y), (y, x):
            assert outcome(comm.allgather, *given) == outcome(slow["allgather"], comm, *given)
        symwin.synchronize(comm.device)

    ranks(1, body)


@pytest.mark.skipif(not symwin.has_extension(), reason="no extension here")
def test_tensors_do_not_leak(ranks):
    def body(comm):
        kept = [own(comm, torch.ones(4)), own(comm, torch.ones(8))[4:], freed_view(comm, 16)]

        def repeat():
            for x in kept:
                for _ in range(300):
                    try:
                        comm.allreduce(x)
                    except SymwinInvalid:
                        pass

        repeat()
        gc.collect()
        blocks, references = sys.getallocatedblocks(), [sys.getrefcount(x) for x in kept]
        repeat()
        gc.collect()
        assert sys.getallocatedblocks() - blocks < 100
        assert references == [sys.getrefcount(x) for x in kept]
        symwin.synchronize(comm.device)

    ranks(1, body)
