"""Ranks for tests: threads of this process on the driver in use."""

import gc
import threading

import pytest

import symwin


def run_ranks(nranks, body, **options):
    """Runs body(comm) for each rank in a thread; returns what they returned. If one raises, the
    others are aborted, and its exception is raised."""
    id, results, failures = symwin.unique_id(), [None] * nranks, []

    def main(rank):
        try:
            with symwin.Communicator(
                id, nranks, rank, rank % symwin.device_count(), **options
            ) as comm:
                try:
                    results[rank] = body(comm)
                except BaseException as failure:
                    failures.append(failure)
                    comm.abort()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


@pytest.fixture
def ranks():
    return run_ranks


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves memory behind."""
    yield
    gc.collect()
    for device in range(symwin.device_count()):
        assert symwin.memory.usage(device)["asked_bytes"] == 0, f"device {device}"
