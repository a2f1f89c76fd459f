"""The operators of `torch.ops.symwin`: every collective, functional and with an output, for tensors
of CUDA and of the CPU, with fake kernels and gradients. symwin.torch is what programs import.
"""

import functools
import itertools
import math
import threading
import weakref

import torch
from torch.autograd.graph import increment_version
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import has_side_effect

from . import _api
from ._library import lib
from .comm import Communicator, opened
from .errors import SymwinError, invalid
from .memory import TYPES, dtype_name, is_emulated
from .streams import Stream

# ---- communicators ----

# An id has the numbers of ranks and of this rank in it. So a compiled graph that a cache has kept
# is not found for a communicator of another size.
_RANK_BITS = 18
_serial = itertools.count(1)
_comms = {}  # id -> weak reference
_lock = threading.Lock()


def comm_id(comm):
    """The number by which operators know a communicator of this process. It is valid until the
    communicator is destroyed or dropped, and never used again."""
    if not isinstance(comm, Communicator):
        raise invalid(f"comm is a {type(comm).__name__}; pass a symwin.Communicator")
    with _lock:
        id = comm.__dict__.get("_torch_id")
        if id is None:
            id = ((next(_serial) << _RANK_BITS) + comm.rank << _RANK_BITS) + comm.nranks
            comm._torch_id = id
            _comms[id] = weakref.ref(comm, lambda _, comms=_comms: comms.pop(id, None))
    return id


def _find(id):
    reference = _comms.get(id)
    comm = reference and reference()
    if comm is None:
        raise invalid(
            f"comm is {id}, and no communicator of this process has this id: it was dropped, or "
            "never was; pass symwin.torch.comm_id(communicator)"
        )
    if comm._handle is None:
        raise invalid(f"comm is {id}, and this communicator was destroyed")
    return comm


def _new(comm, shape, like):
    """A tensor of the type of `like` where that is; on the emulated driver in symwin's memory."""
    _check_type("input", like)
    if not is_emulated():
        return like.new_empty(shape)
    return torch.from_dlpack(comm.empty(tuple(shape), like.dtype))


# ---- what operators have in common ----

_library = torch.library.Library("symwin", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_raw_stream = getattr(
    torch._C, "_cuda_getCurrentRawStream", lambda i: torch.cuda.current_stream(i).cuda_stream
)


def text(name, tensor):
    return (
        f"{name} is a tensor of shape {tuple(tensor.shape)}, dtype {tensor.dtype}, device "
        f"{tensor.device}"
    )


def _check_type(name, tensor):
    if tensor.dtype not in known_types():
        raise invalid(f"{text(name, tensor)}; symwin has {', '.join(TYPES)}")


def _check_given(name, tensor):
    if tensor is None:  # torch lets it pass as a tensor
        raise invalid(f"{name} is None; pass a tensor")


def _require(condition, sentence, told=False):
    """Raises the sentence unless the condition is true. Where a compiler traces numbers that are
    data, the call checks them. `told`: the compiler is told the condition and checks it; but an
    equality that it is told it believes, and puts the one number in place of the other."""
    if not isinstance(condition, torch.SymBool):
        if not condition:
            raise invalid(sentence())
    elif told or not free_unbacked_symbols(condition):
        torch._check(condition, sentence)


def _check_room(name, tensor, shape, like):
    """That `tensor` has as many elements as `shape`, of the type of the tensor `like`."""
    for condition in (tensor.dtype == like.dtype, tensor.numel() == math.prod(shape)):
        _require(
            condition,
            lambda: f"{text(name, tensor)}; expected shape {tuple(shape)}, dtype {like.dtype}",
        )


def _check_no_gradient(*tensors):
    """Of a call that writes to a tensor of the caller."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
            raise invalid(
                f"{text('an argument', tensor)}, and requires a gradient, which calls that write "
                "to their arguments have not; call the functional operator, or in torch.no_grad()"
            )


def _write(run, comm, call, output, arguments):
    """A call that writes to a tensor of the caller. autograd sees by the version of a tensor that
    it is no longer what it had kept."""
    run(comm, call, output, arguments)
    if output is not None:
        increment_version((output,))


def _run_on_cuda(comm, call, output, arguments):
    if is_emulated():
        raise invalid("tensors are of CUDA, and symwin's driver is the emulated one; unset SYMWIN_"
                      "DRIVER, or pass tensors of the CPU")  # fmt: skip
    call(comm, _raw_stream(comm.device), output, *arguments)


def _run_on_host(comm, call, output, arguments):
    """Calls on tensors of the CPU, which the emulated driver alone has. Within a group they are
    launched at its end, so they have to be in symwin's memory, and the caller waits."""
    names = call.__code__.co_varnames[2:]
    tensors = [output, *arguments]
    for i, (name, tensor) in enumerate(zip(names, tensors)):
        if isinstance(tensor, torch.Tensor):
            tensors[i] = _staged(comm, name, tensor)
    if opened.depth:
        call(comm, None, *tensors)
        return
    with Stream(comm.device) as stream:
        call(comm, stream, *tensors)
        stream.synchronize()
    comm.check()
    if tensors[0] is not output:
        output.detach().copy_(tensors[0])


def _staged(comm, name, tensor):
    if tensor.device.type != "cpu" or not is_emulated():
        raise invalid(f"{text(name, tensor)}; expected memory of cuda:{comm.device}")
    if not tensor.is_contiguous():
        raise invalid(f"{text(name, tensor)}, not contiguous; pass {name}.contiguous()")
    if tensor.untyped_storage().nbytes() < tensor.nbytes:
        raise invalid(f"{text(name, tensor)}, whose memory was freed")
    info = _api.symwin_mem_info()
    if lib.symwin_mem_query(tensor.data_ptr(), info) == 0:
        return tensor
    if opened.depth:
        raise invalid(f"{text(name, tensor)}; calls of a group need symwin's memory")
    return _new(comm, tensor.shape, tensor).copy_(tensor.detach())


@functools.cache
def known_types():
    """torch's types that symwin has."""
    found = set()
    for dtype in {v for v in vars(torch).values() if isinstance(v, torch.dtype)}:
        try:
            dtype_name(dtype)
            found.add(dtype)
        except SymwinError:
            pass
    return found


def _operator(schema, kernel, fake, effect=False):
    """Defines an operator. kernel(run, ...) is for both kinds of devices."""
    name = _library.define(schema, tags=_TAGS)
    keys = {"CPU": _run_on_host, "CUDA": _run_on_cuda}
    if "Tensor" not in schema:
        keys = {"CompositeExplicitAutograd": lambda *a: _run_for_driver()(*a)}
    for key, run in keys.items():
        _library.impl(name, functools.partial(kernel, run), key)
    torch.library.register_fake(f"symwin::{name}", fake, lib=_library)
    # A rank that does not use a result makes the call nevertheless: the others wait for it.
    has_side_effect(getattr(torch.ops.symwin, name).default)
    if effect:  # compilers keep the order of these calls, which may differ between ranks
        torch.library._register_effectful_op(
            f"symwin::{name}", torch._library.effects.EffectType.ORDERED, lib=_library
        )


def _run_for_driver():
    return _run_on_host if is_emulated() else _run_on_cuda


def _collective(name, arguments, shape, call):
    """Defines the operators `name`, which is functional, and `name_out`, which has a tensor
    `output` before `comm`.

    arguments  of the schema
    shape      of the output, by the communicator and the other arguments, which it checks. None: no
               output on this rank; the functional form then gives an empty tensor
    call       (comm, stream, output, other arguments)"""
    at = arguments[: arguments.index("int comm")].count(",")

    def functional(run, *given):
        _check_given("input", given[0])
        comm, others = _find(given[at]), given[:at] + given[at + 1 :]
        size = shape(comm, *others)
        output = None if size is None else _new(comm, size, given[0])
        run(comm, call, output, others)
        return given[0].new_empty(0) if size is None else output

    def functional_fake(*given):
        _check_given("input", given[0])
        size = shape(_find(given[at]), *given[:at], *given[at + 1 :])
        return given[0].new_empty(0 if size is None else size)

    def checked(*given):
        _check_given("input", given[0])
        output, comm, others = given[at], _find(given[at + 1]), given[:at] + given[at + 2 :]
        size = shape(comm, *others)
        if size is None:
            output = None
        elif output is None:
            raise invalid(f"output is None; rank {comm.rank} gets the result of {name}")
        else:
            _check_room("output", output, size, given[0])
        _check_no_gradient(output, *others)
        return comm, call, output, others

    _operator(f"{name}({arguments}) -> Tensor", functional, functional_fake)
    _operator(
        f"{name}_out({arguments.replace('int comm', 'Tensor(a!)? output, int comm')}) -> ()",
        lambda run, *given: _write(run, *checked(*given)),
        lambda *given: checked(*given) and None,
    )


def _in_place_kernel(call):
    def kernel(run, tensor, id, *others):
        if tensor.requires_grad:
            _check_no_gradient(tensor)
        run(_find(id), call, tensor, others)
        increment_version((tensor,))

    return kernel


def _in_place(schema, call):
    """Defines an operator that has its result in its first argument. call: (comm, stream, tensor,
    other arguments)"""

    def fake(tensor, id, *others):
        _check_no_gradient(tensor)
        _find(id)

    _operator(schema, _in_place_kernel(call), fake)


# ---- collectives: shapes ----

# Parts of ranks are rows, places of the first dimension, as in torch.distributed.


def _rows(input):
    if not input.dim():
        raise invalid(f"{text('input', input)}; expected at least one dimension")
    return input.shape[0]


def _gathered(comm, input, *_):
    return (comm.nranks * (input.shape[0] if input.dim() else 1), *input.shape[1:])


def _divided(comm, input, *_):
    if _rows(input) % comm.nranks:
        raise invalid(f"{text('input', input)}; expected a multiple of {comm.nranks} rows")
    return (input.shape[0] // comm.nranks, *input.shape[1:])


def _same(comm, input, *_):
    return input.shape


def _exchanged(comm, input):
    return _divided(comm, input) and input.shape


def _at_root(shape):
    def of(comm, input, *others):
        root = others[-1] if others and isinstance(others[-1], int) else 0
        return shape(comm, input) if comm.rank == root else None

    return of


def _check_counts(comm, name, counts, input=None, rows=None):
    """That there is a count for each rank, and that `input` has so many rows."""
    for condition in (len(counts) == comm.nranks, *(count >= 0 for count in counts)):
        _require(
            condition,
            lambda: f"{name} is {list(counts)}; pass the rows of each of {comm.nranks} ranks",
            told=True,
        )
    if rows is not None:
        _require(
            _rows(input) == rows,
            lambda: f"{text('input', input)}; {name} {list(counts)} needs {rows} rows",
        )


def _alltoallv_shape(comm, input, input_counts, output_counts):
    _check_counts(comm, "input_counts", input_counts, input, sum(input_counts))
    _check_counts(comm, "output_counts", output_counts)
    return (sum(output_counts), *input.shape[1:])


def _allgatherv_shape(comm, input, counts):
    _check_counts(comm, "counts", counts)
    _check_counts(comm, "counts", counts, input, counts[comm.rank])
    return (sum(counts), *input.shape[1:])


def _reduce_scatterv_shape(comm, input, counts, op="sum"):
    _check_counts(comm, "counts", counts, input, sum(counts))
    return (counts[comm.rank], *input.shape[1:])


def _elements(input, counts):
    each = math.prod(input.shape[1:])
    return [int(count) * each for count in counts]


def _check_scatter(comm, input, output, root):
    """Returns what the rank passes: only the root's input counts."""
    _check_given("output or like", output)
    if comm.rank != root:
        return None
    if input is None:
        raise invalid(f"input is None; rank {root} is the root, and passes the parts of all ranks")
    _check_room("input", input, (comm.nranks * output.numel(),), output)
    return input


# ---- collectives: calls ----


def _allreduce(comm, stream, output, input, op="sum"):
    comm.allreduce(input, output, op, stream=stream)


def _allgather(comm, stream, output, input):
    comm.allgather(input, output, stream=stream)


def _reduce_scatter(comm, stream, output, input, op="sum"):
    comm.reduce_scatter(input, output, op, stream=stream)


def _alltoall(comm, stream, output, input):
    comm.alltoall(input, output, stream=stream)


def _broadcast(comm, stream, output, input, root=0):
    comm.broadcast(input, output, root, stream=stream)


def _reduce(comm, stream, output, input, op="sum", root=0):
    comm.reduce(input, output, op, root, stream=stream)


def _gather(comm, stream, output, input, root=0):
    comm.gather(input, output, root, stream=stream)


def _scatter(comm, stream, output, input, root=0):
    comm.scatter(input, output, root, stream=stream)


def _alltoallv(comm, stream, output, input, input_counts, output_counts):
    sent, received = _elements(input, input_counts), _elements(input, output_counts)
    comm.alltoallv(input, sent, output, received, stream=stream)


def _allgatherv(comm, stream, output, input, counts):
    comm.allgatherv(input, output, _elements(input, counts), stream=stream)


def _reduce_scatterv(comm, stream, output, input, counts, op="sum"):
    comm.reduce_scatterv(input, _elements(input, counts), output, op, stream=stream)


def _allreduce_(comm, stream, tensor, op="sum"):
    comm.allreduce(tensor, None, op, stream=stream)


def _broadcast_(comm, stream, tensor, root=0):
    comm.broadcast(tensor, None, root, stream=stream)


def _reduce_(comm, stream, tensor, op="sum", root=0):
    comm.reduce(tensor, None, op, root, stream=stream)


def _send(comm, stream, output, input, peer):
    comm.send(input, peer, stream=stream)


def _recv(comm, stream, output, peer):
    comm.recv(output, peer, stream=stream)


def _barrier(comm, stream, output):
    comm.barrier(stream=stream)


# ---- collectives: operators ----

_IN, _V, _OP, _ROOT = "Tensor input", "SymInt[] counts", "int comm, str op='sum'", "int root=0"

_collective("allreduce", f"{_IN}, {_OP}", _same, _allreduce)
_collective("allgather", f"{_IN}, int comm", _gathered, _allgather)
_collective("reduce_scatter", f"{_IN}, {_OP}", _divided, _reduce_scatter)
_collective("alltoall", f"{_IN}, int comm", _exchanged, _alltoall)
_collective("broadcast", f"{_IN}, int comm, {_ROOT}", _same, _broadcast)
_collective("reduce", f"{_IN}, {_OP}, {_ROOT}", _at_root(_same), _reduce)
_collective("gather", f"{_IN}, int comm, {_ROOT}", _at_root(_gathered), _gather)
_collective("allgatherv", f"{_IN}, {_V}, int comm", _allgatherv_shape, _allgatherv)
_collective("reduce_scatterv", f"{_IN}, {_V}, {_OP}", _reduce_scatterv_shape, _reduce_scatterv)
_collective(
    "alltoallv", f"{_IN}, SymInt[] input_counts, SymInt[] output_counts, int comm",
    _alltoallv_shape, _alltoallv,
)  # fmt: skip
_in_place(f"allreduce_(Tensor(a!) tensor, {_OP}) -> ()", _allreduce_)
_in_place(f"broadcast_(Tensor(a!) tensor, int comm, {_ROOT}) -> ()", _broadcast_)
_in_place(f"reduce_(Tensor(a!) tensor, {_OP}, {_ROOT}) -> ()", _reduce_)
_in_place("recv_(Tensor(a!) tensor, int comm, int peer) -> ()", _recv)


def _recv_kernel(run, like, id, peer):
    comm = _find(id)
    output = _new(comm, like.shape, like)
    run(comm, _recv, output, (peer,))
    return output


def _recv_fake(like, id, peer):
    _find(id)
    return like.new_empty(like.shape)


def _scatter_kernel(run, input, like, id, root=0):
    comm = _find(id)
    input = _check_scatter(comm, input, like, root)
    output = _new(comm, like.shape, like)
    run(comm, _scatter, output, (input, root))
    return output


def _scatter_fake(input, like, id, root=0):
    _check_scatter(_find(id), input, like, root)
    return like.new_empty(like.shape)


def _scatter_out_kernel(run, input, output, id, root=0):
    comm = _find(id)
    _check_no_gradient(input, output)
    _write(run, comm, _scatter, output, (_check_scatter(comm, input, output, root), root))


def _scatter_out_fake(input, output, id, root=0):
    _check_no_gradient(input, output)
    _check_scatter(_find(id), input, output, root)


_operator(
    f"scatter(Tensor? input, Tensor like, int comm, {_ROOT}) -> Tensor", _scatter_kernel,
    _scatter_fake,
)  # fmt: skip
_operator(
    f"scatter_out(Tensor? input, Tensor(a!) output, int comm, {_ROOT}) -> ()",
    _scatter_out_kernel, _scatter_out_fake,
)  # fmt: skip
_operator("recv(Tensor like, int comm, int peer) -> Tensor", _recv_kernel, _recv_fake, True)
_operator(
    "send(Tensor input, int comm, int peer) -> ()",
    lambda run, input, id, peer: run(_find(id), _send, None, (input, peer)),
    lambda input, id, peer: _find(id) and None,
    True,
)
_operator(
    "barrier(int comm) -> ()",
    lambda run, id: run(_find(id), _barrier, None, ()),
    lambda id: _find(id) and None,
    True,
)


# ---- gradients: of the sum of all ranks' losses ----

_ops = torch.ops.symwin


def _gradient(name, backward):
    """backward: (gradient, keep), where keep is inputs but for the first, shape of the first."""

    def keep(ctx, inputs, output):
        ctx.others = inputs[1:]

    def formula(ctx, gradient):
        return backward(gradient.contiguous(), *ctx.others), *[None for _ in ctx.others]

    torch.library.register_autograd(
        f"symwin::{name}", formula, setup_context=keep, lib=_library
    )


def _linear(name, op):
    """Refuses operations without a gradient; returns what an average divides by."""
    if op not in ("sum", "avg"):
        raise invalid(f"{name} by {op} has no gradient; sum and avg have")


def _averaged(gradient, comm, op):
    return gradient / _find(comm).nranks if op == "avg" else gradient


def _allreduce_gradient(gradient, comm, op):
    _linear("allreduce", op)
    return _ops.allreduce(gradient, comm, op)


def _reduce_scatter_gradient(gradient, comm, op):
    _linear("reduce_scatter", op)
    return _ops.allgather(_averaged(gradient, comm, op), comm)


def _reduce_scatterv_gradient(gradient, counts, comm, op):
    _linear("reduce_scatterv", op)
    return _ops.allgatherv(_averaged(gradient, comm, op), counts, comm)


def _no_gradient(name):
    def backward(*_):
        raise invalid(
            f"{name} has no gradient; allreduce, allgather, reduce_scatter and alltoall have one"
        )

    return backward


_gradient("allreduce", _allreduce_gradient)
_gradient("allgather", lambda g, comm: _ops.reduce_scatter(g, comm))
_gradient("reduce_scatter", _reduce_scatter_gradient)
_gradient("alltoall", lambda g, comm: _ops.alltoall(g, comm))
_gradient("allgatherv", lambda g, counts, comm: _ops.reduce_scatterv(g, counts, comm))
_gradient("reduce_scatterv", _reduce_scatterv_gradient)
_gradient("alltoallv", lambda g, sent, got, comm: _ops.alltoallv(g, got, sent, comm))
for _name in ("broadcast", "reduce", "gather", "scatter"):
    _gradient(_name, _no_gradient(_name))
