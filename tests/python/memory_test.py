"""Buffers, arrays, and what other libraries make of them."""

import ctypes
import gc

import numpy as np
import pytest

import symwin
from symwin import Status, SymwinError, SymwinInvalid, SymwinMemory

DTYPES = ["f64", "f32", "f16", "i8", "u8", "i32", "u32", "i64", "u64"]
emulated = pytest.mark.skipif(not symwin.is_emulated(), reason="device memory is no host memory")


@pytest.mark.parametrize("dtype", DTYPES + ["bf16", "e4m3", "e5m2"])
def test_copies(dtype):
    x = symwin.empty((3, 5), dtype)
    host = np.arange(15).reshape(3, 5).astype(x.numpy().dtype)
    assert x.copy_from(host) is x
    back = x.numpy()
    assert back.shape == (3, 5) and np.array_equal(back, host)
    x.buffer.free()


@pytest.mark.parametrize("dtype", DTYPES)
@emulated
def test_numpy_sees_the_memory(dtype):
    x = symwin.empty((4, 6), dtype)
    for seen in (np.asarray(x), np.from_dlpack(x)):
        assert seen.shape == (4, 6) and seen.dtype == x.numpy().dtype
        seen[1, 2] = 7
        assert x.numpy()[1, 2] == 7
        seen[1, 2] = 0
        with pytest.raises(SymwinError, match="view") as caught:
            x.buffer.free()
        assert caught.value.status is Status.BUSY
        del seen
        gc.collect()
    x.buffer.free()


@emulated
def test_a_view_keeps_the_memory():
    x = symwin.empty(8)
    seen = np.from_dlpack(x)
    seen[:] = 3
    del x
    gc.collect()
    assert seen.sum() == 24
    part = seen[2:4]
    del seen
    gc.collect()
    assert part.sum() == 6


@emulated
def test_a_capsule_that_nobody_takes():
    x = symwin.empty(8)
    capsule = x.__dlpack__()
    with pytest.raises(SymwinError):
        x.buffer.free()
    del capsule
    x.buffer.free()


def test_use_after_free():
    x = symwin.empty(8)
    view = x.view((2, 2), offset=8)
    x.buffer.free()
    x.buffer.free()
    for use in (
        lambda: x.ptr,
        lambda: view.ptr,
        lambda: x.numpy(),
        lambda: x.copy_from(np.zeros(8, "f4")),
        lambda: x.__dlpack__(),
        lambda: x.__cuda_array_interface__ if not symwin.is_emulated() else np.asarray(x),
    ):
        with pytest.raises(SymwinInvalid, match="was freed"):
            use()
    assert "freed" in repr(x) and "freed" in repr(x.buffer)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: symwin.Buffer(0), "nbytes is 0"),
        (lambda: symwin.Buffer(-5), "nbytes is -5"),
        (lambda: symwin.Buffer(1.5), "nbytes is 1.5"),
        (lambda: symwin.Buffer(1 << 70), "nbytes is"),
        (lambda: symwin.Buffer(8, device=99), "99"),
        (lambda: symwin.Buffer(8, device=1 << 32), "device is 4294967296"),
        (lambda: symwin.Buffer(8, device="x"), "device is 'x'"),
        (lambda: symwin.Stream(1 << 32), "device is 4294967296"),
        (lambda: symwin.synchronize("x"), "device is 'x'"),
        (lambda: symwin.device(1 << 32), "ordinal is 4294967296"),
        (lambda: symwin.Buffer(8, flags=1 << 20), "flag"),
        (lambda: symwin.empty(-1), "shape is -1"),
        (lambda: symwin.empty((2, "x")), "shape is (2, 'x')"),
        (lambda: symwin.empty(2.0), "shape is 2.0; pass numbers of elements, 0 or more"),
        (lambda: symwin.empty(2, "f33"), "dtype is f33"),
        (lambda: symwin.empty(2, np.complex64), "dtype is"),
        (lambda: symwin.empty(2, object()), "dtype is"),
        (lambda: symwin.empty(4).view((5,)), "needs 20 bytes"),
        (lambda: symwin.empty(4).view((2,), offset=12), "needs 20 bytes"),
        (lambda: symwin.empty(4).view((1,), offset=2), "offset is 2"),
        (lambda: symwin.empty(4).view((1,), offset=-4), "offset is -4"),
        (lambda: symwin.empty(8).view((4,)).view((5,)), "passes 16 bytes"),
        (lambda: symwin.empty(8).part(4, 8).view((1,), offset=-4), "offset is -4"),
        (lambda: symwin.empty(4).part(3, 2), "part 3 to 2"),
        (lambda: symwin.empty(4).copy_from(np.zeros(5, "f4")), "20 bytes"),
        (lambda: symwin.empty(4).copy_from(np.zeros(2, "f8")), "do not fit"),
        (lambda: symwin.from_host(np.zeros(4, "i4"), "f32"), "int32 are no f32"),
        (lambda: symwin.from_host(np.zeros(4, "f4"), "i32"), "float32 are no i32"),
        (lambda: symwin.from_host(np.zeros(4, "f2"), "bf16"), "float16 are no bf16"),
        (lambda: symwin.empty(4).numpy(stream="x"), "stream is a str"),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(SymwinInvalid) as caught:
        make()
    assert words in str(caught.value) and caught.value.status is Status.INVALID


def test_numpy_numbers():
    x = symwin.Buffer(np.int64(64)).array(np.int32(8), "f32", np.int64(16))
    x.copy_from(np.arange(8, dtype=">f4"))  # the other order of bytes
    assert x.part(np.int64(2), np.int64(4)).numpy().tolist() == [2, 3]
    assert x.view(1, offset=np.uint8(4)).numpy().tolist() == [1]


def test_too_large():
    with pytest.raises(SymwinMemory) as caught:
        symwin.Buffer(1 << 50)
    assert caught.value.status is Status.NO_MEMORY and isinstance(caught.value, MemoryError)


def test_arrays_without_elements():
    x = symwin.empty((0, 3))
    assert x.count == 0 and x.numpy().shape == (0, 3)
    assert x.copy_from(np.zeros((0, 3), "f4")) is x


@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4)])
@emulated
def test_shapes(shape):
    x = symwin.from_host(np.ones(shape, "f4"))
    symwin.synchronize()
    assert x.shape == shape and np.from_dlpack(x).shape == shape
    assert np.array_equal(np.from_dlpack(x), np.ones(shape, "f4"))


@emulated
def test_dlpack_struct():
    """The struct, read as a consumer in C reads it."""
    x = symwin.empty((2, 3), "i64")
    address, device, dtype, shape, keep = symwin._dlpack.describe(x, None)
    assert (address, device, dtype, shape) == (x.ptr, (1, 0), "i64", (2, 3))
    assert ctypes.c_int64.from_address(address).value == x.numpy()[0, 0]


def test_streams():
    with symwin.Stream() as stream:
        x = symwin.from_host(np.arange(5, dtype="f4"), stream=stream)
        assert np.array_equal(x.numpy(stream), np.arange(5))
        handle = stream.__cuda_stream__()[1]
        assert np.array_equal(x.numpy(handle), np.arange(5))
    stream.destroy()
    with pytest.raises(SymwinInvalid, match="destroyed"):
        stream.synchronize()
    with pytest.raises(SymwinInvalid):
        symwin.Stream(99)


def test_errors_can_be_sent():
    import pickle

    with pytest.raises(SymwinInvalid) as caught:
        symwin.Buffer(0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is SymwinInvalid and again.status == Status.INVALID
    assert str(again) == str(caught.value)
