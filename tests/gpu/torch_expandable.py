"""Tensors of PyTorch's expandable segments as windows and as registered buffers of symwin, for
tests/gpu/gpu_torch.t.

    export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    python3 tests/gpu/torch_expandable.py LIBRARY RANKS
    python3 -m torch.distributed.run --nproc-per-node RANKS tests/gpu/torch_expandable.py LIBRARY

Ranks are threads of one process, or processes under torchrun. They share devices if there are
fewer. Each rank prints one line for each case. The line ends with "right" if the sums are right.
"""
import ctypes as c
import os
import sys
import threading

import torch

MIB = 1 << 20
AUTO, TWOSHOT, F32, SUM = 0, 2, 1, 0
PEER = 1  # SYMWIN_TRANSPORT_PEER


class Id(c.Structure):
    _fields_ = [("bytes", c.c_ubyte * 128)]


class WindowInfo(c.Structure):  # symwin_window_info
    _fields_ = [("ptr", c.c_void_p), ("bytes", c.c_size_t), ("base", c.c_void_p),
                ("stride", c.c_size_t), ("offset", c.c_size_t), ("rank", c.c_int),
                ("nranks", c.c_int), ("transports", c.c_uint), ("buffer_id", c.c_uint64),
                ("allocations", c.c_int)]


class RegistrationInfo(c.Structure):  # symwin_registration_info
    _fields_ = [("ptr", c.c_void_p), ("bytes", c.c_size_t), ("local_references", c.c_uint),
                ("graph_references", c.c_uint), ("transports", c.c_uint), ("buffer_id", c.c_uint64),
                ("refused", c.c_char * 256)]


class Options(c.Structure):  # symwin_collective_options
    _fields_ = [("size", c.c_size_t), ("algo", c.c_int), ("blocks", c.c_int), ("threads", c.c_int),
                ("scalar", c.c_void_p), ("scalar_on_device", c.c_int)]


lib = c.CDLL(os.path.abspath(sys.argv[1]))
lib.symwin_last_error.restype = c.c_char_p
processes = "LOCAL_RANK" in os.environ
nranks = int(os.environ["WORLD_SIZE"]) if processes else int(sys.argv[2])
# Threads share PyTorch's allocator: none may allocate while others reduce.
barrier = threading.Barrier(1 if processes else nranks)


def must(status, what):
    if status != 0:
        raise RuntimeError(f"{what}: {lib.symwin_last_error().decode()}")


class Rank:
    def __init__(self, rank, unique_id):
        self.rank, self.device = rank, rank % torch.cuda.device_count()
        torch.cuda.set_device(self.device)
        self.stream = torch.cuda.Stream(self.device)
        self.comm = c.c_void_p()
        must(lib.symwin_comm_create(c.byref(unique_id), nranks, rank, self.device, None,
                                    c.byref(self.comm)), "symwin_comm_create")

    def reduce(self, tensor, algo):
        options = Options(c.sizeof(Options), algo)
        pointer = c.c_void_p(tensor.data_ptr())
        must(lib.symwin_allreduce_with(self.comm, pointer, pointer, c.c_uint64(tensor.numel()), F32,
                                       SUM, c.byref(options), c.c_void_p(self.stream.cuda_stream)),
             "symwin_allreduce_with")

    def prepare(self, tensors):
        """Allocates everything that is compared: no rank may allocate while its kernel waits for
        another rank's."""
        most = max(t.numel() for t in tensors)
        self.pattern = (torch.arange(most, device=self.device) % 1021).float()
        self.mine = self.pattern * (self.rank + 1)
        self.want = self.pattern * (nranks * (nranks + 1) // 2)
        with torch.cuda.stream(self.stream):
            for tensor in tensors:
                tensor.copy_(self.mine[:tensor.numel()])
                assert torch.equal(tensor, self.mine[:tensor.numel()])
        torch.cuda.synchronize(self.device)

    def right(self, tensor, algo):
        """Reduces this rank's data in place, and compares every element with the sum over all
        ranks."""
        with torch.cuda.stream(self.stream):
            tensor.copy_(self.mine[:tensor.numel()])
            self.reduce(tensor, algo)
            self.stream.synchronize()
            must(lib.symwin_comm_check(self.comm), "symwin_comm_check")
            return torch.equal(tensor, self.want[:tensor.numel()])

    def say(self, what, right):
        # One write: threads print at the same time.
        print(f"rank {self.rank}: {what}: {'right' if right else 'wrong'}\n", end="", flush=True)

    def window(self, tensor, mib):
        window, info = c.c_void_p(), WindowInfo()
        must(lib.symwin_window_register(self.comm, c.c_void_p(tensor.data_ptr()),
                                        c.c_size_t(tensor.nbytes), 0, c.byref(window)),
             "symwin_window_register")
        must(lib.symwin_window_query(self.comm, window, c.byref(info)), "symwin_window_query")
        right = all([self.right(tensor, TWOSHOT), self.right(tensor, AUTO)])
        self.say(f"window of {mib} MiB on {info.allocations} allocations",
                 right and info.allocations > 1)
        must(lib.symwin_window_deregister(self.comm, window), "symwin_window_deregister")

    def registered(self, tensor, mib):
        registration, info = c.c_void_p(), RegistrationInfo()
        must(lib.symwin_register(self.comm, c.c_void_p(tensor.data_ptr()),
                                 c.c_size_t(tensor.nbytes), c.byref(registration)),
             "symwin_register")
        # The first call connects the buffer.
        right = all([self.right(tensor, AUTO), self.right(tensor, TWOSHOT)])
        must(lib.symwin_registration_query(self.comm, registration, c.byref(info)),
             "symwin_registration_query")
        connected = info.transports & PEER != 0
        refused = "" if connected else ", refused: " + info.refused.decode()
        self.say(f"registered buffer of {mib} MiB{refused}", right and connected)
        must(lib.symwin_deregister(self.comm, registration), "symwin_deregister")

    def run(self):
        # The second tensor begins where the first ends, inside a mapping of the segment.
        tensors = [(mib, torch.empty(mib * MIB // 4, device=self.device)) for mib in (30, 100)]
        self.prepare([tensor for _, tensor in tensors])
        barrier.wait()
        for mib, tensor in tensors:
            self.window(tensor, mib)
        for mib, tensor in tensors:
            self.registered(tensor, mib)
        self.stream.synchronize()
        lib.symwin_comm_destroy(self.comm)


def thread(rank, unique_id):
    try:
        Rank(rank, unique_id).run()
    except Exception as error:  # the other ranks wait for this one: end all
        print(f"rank {rank}: {error}", flush=True)
        os._exit(1)


unique_id = Id()
if processes:
    must(lib.symwin_unique_id_from_env(c.byref(unique_id)), "symwin_unique_id_from_env")
    thread(int(os.environ["RANK"]), unique_id)
else:
    must(lib.symwin_unique_id_create(c.byref(unique_id)), "symwin_unique_id_create")
    # The first expandable segment of a process decides how PyTorch shares memory, and a second one
    # that begins on another device meanwhile fails (PyTorch 2.11).
    torch.empty(1, device=0)
    threads = [threading.Thread(target=thread, args=(rank, unique_id)) for rank in range(nranks)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
