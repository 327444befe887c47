"""CUDA's driver by way of ctypes: the one file of the package that hands raw addresses to foreign code.

The library is loaded when a driver is made, so that a machine without a GPU never asks for it. Its functions are
called without the interpreter lock. Names, numbers and layouts are those of cuda.h (13.0); the names with a version
behind them are the ones that the header's macros choose.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from orbitkv.errors import ConfigurationError, DeviceError, TransferError
from orbitkv.transfer._driver import STREAM_ORDER, STRIDED, Addresses

LIBRARY = "libcuda.so.1"
OLDEST = 12080  # cuDriverGetVersion of CUDA 12.8, the first release with batches of copies

SUCCESS = 0  # CUDA_SUCCESS
NOT_READY = 600  # CUDA_ERROR_NOT_READY
REGISTER_PORTABLE = 0x01  # CU_MEMHOSTREGISTER_PORTABLE
REGISTER_DEVICEMAP = 0x02  # CU_MEMHOSTREGISTER_DEVICEMAP
EVENT_BLOCKING_SYNC = 0x1  # CU_EVENT_BLOCKING_SYNC
EVENT_DISABLE_TIMING = 0x2  # CU_EVENT_DISABLE_TIMING
STREAM_NON_BLOCKING = 0x1  # CU_STREAM_NON_BLOCKING
CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
NO_INDEX = (1 << 64) - 1  # SIZE_MAX in failIdx: the fault is that of no copy in particular
BUS_ID_BYTES = 32  # cuDeviceGetPCIBusId writes at most 13 with today's domains

HANDLE = c_void_p  # CUcontext, CUstream and CUevent
OUT_HANDLE = POINTER(c_void_p)
ADDRESS = c_uint64  # CUdeviceptr
ARRAY = c_void_p  # the address of a numpy array's first element

# Arguments of each function; the result of all is a CUresult.
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetPCIBusId": (c_char_p, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (OUT_HANDLE, c_int),
    "cuCtxGetCurrent": (OUT_HANDLE,),
    "cuCtxSetCurrent": (HANDLE,),
    "cuThreadExchangeStreamCaptureMode": (POINTER(c_int),),
    "cuCtxGetStreamPriorityRange": (POINTER(c_int), POINTER(c_int)),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(ADDRESS), c_size_t),
    "cuMemFree_v2": (ADDRESS,),
    "cuStreamCreateWithPriority": (OUT_HANDLE, c_uint, c_int),
    "cuStreamDestroy_v2": (HANDLE,),
    "cuEventCreate": (OUT_HANDLE, c_uint),
    "cuEventDestroy_v2": (HANDLE,),
    "cuEventRecord": (HANDLE, HANDLE),
    "cuStreamWaitEvent": (HANDLE, HANDLE, c_uint),
    "cuEventSynchronize": (HANDLE,),
    "cuEventQuery": (HANDLE,),
    "cuEventElapsedTime": (POINTER(c_float), HANDLE, HANDLE),
}
# Targets, sources, sizes, their number, attributes, where each attribute begins to hold, their number; of the older
# form then failIdx; the stream.
BATCH = (ARRAY, ARRAY, ARRAY, c_size_t, c_void_p, POINTER(c_size_t), c_size_t)
FAIL_INDEX = POINTER(c_size_t)
# CUDA 13 took failIdx out of both functions; its driver still has the older ones.
BATCHES: dict[str, tuple[Any, ...]] = {
    "cuMemcpyBatchAsync_v2": (*BATCH, HANDLE),
    "cuMemcpy3DBatchAsync_v2": (c_size_t, ARRAY, c_uint64, HANDLE),
}
OLDER_BATCHES: dict[str, tuple[Any, ...]] = {
    "cuMemcpyBatchAsync": (*BATCH, FAIL_INDEX, HANDLE),
    "cuMemcpy3DBatchAsync": (c_size_t, ARRAY, FAIL_INDEX, c_uint64, HANDLE),
}


class CopyAttributes(ctypes.Structure):
    """CUmemcpyAttributes: the order in which sources are read; the hints say nothing about memory outside of CUDA."""

    _fields_ = (
        ("source_order", c_int),
        ("source_type", c_int),
        ("source_id", c_int),
        ("target_type", c_int),
        ("target_id", c_int),
        ("flags", c_uint),
    )


class CudaDriver:
    """One CUDA device of this process; see Driver. Its primary context is kept until the process ends, as torch does.

    ConfigurationError when there is no driver or one older than CUDA 12.8, DeviceError when it has no such device.
    """

    def __init__(self, index: int, library: str = LIBRARY) -> None:
        """`index` counts the devices that this process sees; `library` is the driver's file or its name."""
        self._library, self._older = load(library)
        self._attributes = CopyAttributes(source_order=STREAM_ORDER)
        self._index = index
        self._call("cuInit", 0)
        self._device = self._new("cuDeviceGet", c_int(), index)
        self._context = self._new("cuDevicePrimaryCtxRetain", c_void_p(), self._device)

    @property
    def index(self) -> int:
        """Return the device's ordinal in this process."""
        return self._index

    def bind(self) -> None:
        """Make the device current in the calling thread, and leave captures of other threads alone.

        It is the first call of a thread of ours. A thread in which the device is current already stays as it is: it
        was bound before, or it is the engine's, whose own captures must go on being checked.
        """
        if self._new("cuCtxGetCurrent", c_void_p()) == self._context:
            return
        self._call("cuCtxSetCurrent", self._context)
        # While an engine captures a graph, an ordinary thread's registrations and event queries would break it.
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(c_int(CAPTURE_RELAXED)))

    def bus_id(self) -> str:
        """Return the device's PCI address, as sysfs spells it: 0000:1b:00.0."""
        text = ctypes.create_string_buffer(BUS_ID_BYTES)
        self._call("cuDeviceGetPCIBusId", text, BUS_ID_BYTES, self._device)
        return text.value.decode("ascii", "replace").lower()

    def priorities(self) -> tuple[int, int]:
        """Return the lowest and the highest stream priority, in this order."""
        lowest, highest = c_int(), c_int()
        self._call("cuCtxGetStreamPriorityRange", ctypes.byref(lowest), ctypes.byref(highest))
        return lowest.value, highest.value

    def register(self, address: int, size: int) -> None:
        """Lock host memory and map it for the device, and for every other device of the process."""
        self._call("cuMemHostRegister_v2", address, size, REGISTER_PORTABLE | REGISTER_DEVICEMAP)

    def unregister(self, address: int) -> None:
        """Undo `register` of a range that began at the address; waits for copies that use it."""
        self._call("cuMemHostUnregister", address)

    def allocate(self, size: int) -> int:
        """Return device memory of `size` bytes; the caller frees it."""
        return self._new("cuMemAlloc_v2", ADDRESS(), size)

    def free(self, address: int) -> None:
        """Give back what `allocate` returned; waits for the device."""
        self._call("cuMemFree_v2", address)

    def create_stream(self, priority: int) -> int:
        """Return a stream that does not synchronise with the default stream."""
        return self._new("cuStreamCreateWithPriority", c_void_p(), STREAM_NON_BLOCKING, priority)

    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; its work still ends."""
        self._call("cuStreamDestroy_v2", stream)

    def create_event(self, *, timing: bool = False) -> int:
        """Return an event whose waiters sleep; only one with `timing` can be compared."""
        flags = EVENT_BLOCKING_SYNC if timing else EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING
        return self._new("cuEventCreate", c_void_p(), flags)

    def destroy_event(self, event: int) -> None:
        """Destroy an event."""
        self._call("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        """Let the event stand for everything that was given to the stream so far."""
        self._call("cuEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        """Let everything that is given to the stream from now on come after the event's last record so far."""
        self._call("cuStreamWaitEvent", stream, event, 0)

    def synchronize(self, event: int) -> None:
        """Wait until what the event stands for has ended; the thread sleeps."""
        self._call("cuEventSynchronize", event)

    def finished(self, event: int) -> bool:
        """Return whether what the event stands for has ended."""
        code = int(self._library.cuEventQuery(event))
        if code not in (SUCCESS, NOT_READY):
            raise self._error("cuEventQuery", code)
        return code == SUCCESS

    def elapsed_seconds(self, begin: int, end: int) -> float:
        """Return the time between two events with timing that have ended."""
        milliseconds = c_float()
        self._call("cuEventElapsedTime", ctypes.byref(milliseconds), begin, end)
        return milliseconds.value / 1e3

    def copy_batch(self, targets: Addresses, sources: Addresses, sizes: Addresses, stream: int) -> None:
        """Submit one copy for each entry; sizes are in bytes. Copies of one batch have no order among each other."""
        if not len(targets) == len(sources) == len(sizes):
            raise TransferError(f"{len(targets)} targets, {len(sources)} sources and {len(sizes)} sizes are no batch")
        addresses = [address_of(array, np.dtype(np.uint64)) for array in (targets, sources, sizes)]
        first = c_size_t(0)  # The one attribute holds from copy 0 on.
        batch = (*addresses, len(sizes), ctypes.byref(self._attributes), ctypes.byref(first), 1)
        if self._older:
            self._submit_older("cuMemcpyBatchAsync", batch, (stream,))
        else:
            self._call("cuMemcpyBatchAsync_v2", *batch, stream)

    def copy_strided(self, operations: npt.NDArray[np.void], stream: int) -> None:
        """Submit strided copies, rows of STRIDED. They have no order among each other."""
        batch = (len(operations), address_of(operations, STRIDED))
        if self._older:
            self._submit_older("cuMemcpy3DBatchAsync", batch, (0, stream))
        else:
            self._call("cuMemcpy3DBatchAsync_v2", *batch, 0, stream)

    def _submit_older(self, name: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        """Call a batch function of CUDA 12, which also says which copy was wrong."""
        wrong = c_size_t(NO_INDEX)
        code = int(getattr(self._library, name)(*before, ctypes.byref(wrong), *after))
        if code != SUCCESS:
            raise self._error(name, code, "" if wrong.value == NO_INDEX else f" at copy {wrong.value}")

    def _new(self, name: str, result: Any, *arguments: Any) -> int:
        """Call a function whose first argument is where it puts its result; 0 stands for NULL."""
        self._call(name, ctypes.byref(result), *arguments)
        return int(result.value or 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self._library, name)(*arguments))
        if code != SUCCESS:
            raise self._error(name, code)

    def _error(self, name: str, code: int, place: str = "") -> DeviceError:
        words = []
        for describe in (self._library.cuGetErrorName, self._library.cuGetErrorString):
            text = c_char_p()
            if describe(code, ctypes.byref(text)) == SUCCESS and text.value is not None:
                words.append(text.value.decode("utf-8", "replace"))
        return DeviceError(name, code, (": ".join(words) or "an error that the driver has no name for") + place)


def load(name: str) -> tuple[ctypes.CDLL, bool]:
    """Return the driver's library with all prototypes, and whether its batch functions are those of CUDA 12."""
    try:
        library = ctypes.CDLL(name)
    except OSError as fault:
        raise ConfigurationError(
            f"CUDA's driver cannot be loaded ({fault}), so KV on a GPU cannot be copied: install NVIDIA's driver, "
            "or start the container with it (`--gpus all`)"
        ) from fault
    declare(library, name, {"cuDriverGetVersion": PROTOTYPES["cuDriverGetVersion"]})
    number = c_int()
    code = int(library.cuDriverGetVersion(ctypes.byref(number)))
    if code != SUCCESS:
        raise ConfigurationError(
            f"{name} does not tell its release (error {code}); it may be the stand-in of a compiler's package: "
            "install NVIDIA's driver, or start the container with it (`--gpus all`)"
        )
    if number.value < OLDEST:
        raise ConfigurationError(
            f"the NVIDIA driver supports CUDA {version(number.value)}, but copies in batches need CUDA "
            f"{version(OLDEST)}: install driver release 570 or later"
        )
    declare(library, name, PROTOTYPES)
    older = not all(hasattr(library, function) for function in BATCHES)
    declare(library, name, OLDER_BATCHES if older else BATCHES)
    return library, older


def declare(library: ctypes.CDLL, name: str, prototypes: dict[str, tuple[Any, ...]]) -> None:
    """Give functions of the library their types. ConfigurationError names one that it lacks."""
    for function, arguments in prototypes.items():
        try:
            found = getattr(library, function)
        except AttributeError as fault:
            raise ConfigurationError(
                f"{name} has no function {function}, so it is no driver of CUDA {version(OLDEST)} or later: "
                "install NVIDIA's driver of release 570 or later"
            ) from fault
        found.argtypes = arguments
        found.restype = c_int


def version(number: int) -> str:
    """Return CUDA's version as people write it: 13000 is 13.0."""
    return f"{number // 1000}.{number % 1000 // 10}"


def address_of(array: npt.NDArray[Any], kind: np.dtype[Any]) -> int:
    """Return where the array's elements lie. TransferError when they are not `kind` one behind the other."""
    if array.dtype != kind or array.ndim != 1 or not array.flags.c_contiguous:
        raise TransferError(f"a batch takes a contiguous row of {kind}, not {array.dtype} of shape {array.shape}")
    return int(array.ctypes.data)
