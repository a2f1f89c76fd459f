"""Four ranks, threads of one process, on whatever driver is there: every collective against numpy,
eager and in windows."""

import threading

import numpy

from . import Communicator, SymwinError, device_count, driver, group, synchronize, unique_id
from .memory import from_host
from .streams import Stream

RANKS, COUNT = 4, 1021


def _expected(inputs, rank):
    """What `rank` gets of each collective, of what all ranks pass."""
    whole = numpy.stack(inputs)  # [rank, RANKS * COUNT]
    parts = whole.reshape(RANKS, RANKS, COUNT)
    total = whole.sum(0)
    return {
        "allreduce": total,
        "allreduce max": whole.max(0),
        "allgather": whole[:, :COUNT].reshape(-1),
        "reduce_scatter": total.reshape(RANKS, COUNT)[rank],
        "alltoall": parts[:, rank].reshape(-1),
        "broadcast": whole[1],
        "reduce": total if rank == 2 else None,
        "gather": whole[:, :COUNT].reshape(-1) if rank == 3 else None,
        "scatter": parts[1, rank],
        "alltoallv": numpy.concatenate([parts[r, rank][: r + 1] for r in range(RANKS)]),
        "allgatherv": numpy.concatenate([whole[r, : 3 * r + 1] for r in range(RANKS)]),
        "reduce_scatterv": total[_begin(rank) : _begin(rank + 1)],
        "ring": whole[(rank - 1) % RANKS],
    }


def _begin(rank):
    return sum(5 * r + 2 for r in range(rank))


def _calls(comm, data, stream):
    """Name and result of every call of one rank."""
    rank, n = comm.rank, comm.nranks
    kept = []

    def host(array):
        kept.append(from_host(array, device=comm.device, stream=stream))
        return kept[-1]

    def room(count):
        return host(numpy.zeros(count, data.dtype))

    x, part = host(data), host(data[:COUNT])
    yield "allreduce", comm.allreduce(x, room(data.size), stream=stream)
    yield "allreduce max", comm.allreduce(host(data), op="max", stream=stream)
    yield "allgather", comm.allgather(part, room(n * COUNT), stream=stream)
    yield "reduce_scatter", comm.reduce_scatter(x, room(COUNT), stream=stream)
    yield "alltoall", comm.alltoall(x, room(data.size), stream=stream)
    yield "broadcast", comm.broadcast(host(data), root=1, stream=stream)
    out = room(data.size)
    comm.reduce(x, out, root=2, stream=stream)
    yield "reduce", out if rank == 2 else None
    out = room(n * COUNT) if rank == 3 else None
    comm.gather(part, out, root=3, stream=stream)
    yield "gather", out
    yield "scatter", comm.scatter(x if rank == 1 else None, room(COUNT), root=1, stream=stream)
    # Rank r sends the first r + 1 elements of each part.
    sent = numpy.concatenate([data.reshape(n, COUNT)[p][: rank + 1] for p in range(n)])
    yield "alltoallv", comm.alltoallv(
        host(sent), [rank + 1] * n, room(10), [1, 2, 3, 4], stream=stream
    )
    counts = [3 * r + 1 for r in range(n)]
    yield "allgatherv", comm.allgatherv(
        host(data[: counts[rank]]), room(sum(counts)), counts, stream=stream
    )
    counts = [5 * r + 2 for r in range(n)]
    yield "reduce_scatterv", comm.reduce_scatterv(
        host(data[: sum(counts)]), counts, room(counts[rank]), stream=stream
    )
    out = room(data.size)
    with group():
        comm.send(x, (rank + 1) % n, stream=stream)
        comm.recv(out, (rank - 1) % n, stream=stream)
    yield "ring", out
    comm.barrier(stream=stream)


def _check(comm, inputs, wrong):
    data, rank = inputs[comm.rank], comm.rank
    expected = _expected(inputs, rank)
    count = 0
    with Stream(comm.device) as stream:
        for name, result in list(_calls(comm, data, stream)):
            if result is None:
                continue
            count += 1
            if not numpy.array_equal(result.numpy(stream), expected[name]):
                wrong.append(f"{name}: rank {rank} has another result than numpy")
        comm.check()
        x = from_host(data, device=comm.device, stream=stream)
        with comm.window(x):
            comm.allreduce(x, stream=stream)
            count += 1
            if not numpy.array_equal(x.numpy(stream), expected["allreduce"]):
                wrong.append(f"allreduce in a window: rank {rank} has another result than numpy")
            comm.barrier(stream=stream)
            stream.synchronize()
    synchronize(comm.device)
    return count


def run():
    """(sentence, list of what is wrong)."""
    made, devices = driver(), device_count()
    if made["has_kernels"] == 0:
        return "", [f"this library has no kernels for the driver {made['name']}"]
    id, wrong, counts = unique_id(), [], [0] * RANKS
    generator = numpy.random.default_rng(1)
    inputs = [
        generator.integers(-1000, 1000, RANKS * COUNT).astype("f4") for _ in range(RANKS)
    ]

    def main(rank):
        try:
            with Communicator(id, RANKS, rank, rank % devices) as comm:
                try:
                    counts[rank] = _check(comm, inputs, wrong)
                except BaseException:
                    comm.abort()
                    raise
        except SymwinError as error:
            wrong.append(f"rank {rank}: {error.status.name}: {error}")
        except Exception as error:
            wrong.append(f"rank {rank}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sentence = (
        f"symwin selftest: {sum(counts)} results of {RANKS} ranks are right "
        f"(driver {made['name']}, {devices} devices)"
    )
    return sentence, wrong


def main():
    """Prints one line, or what is wrong, and returns the exit status."""
    try:
        sentence, wrong = run()
    except SymwinError as error:
        sentence, wrong = "", [f"{error.status.name}: {error}"]
    for line in wrong:
        print(f"symwin selftest: {line}")
    if not wrong:
        print(sentence)
    return 1 if wrong else 0
