"""The ctypes layer over CUDA's driver, against a stand-in in C that records what it is called with."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orbitkv.errors import ConfigurationError, DeviceError, TransferError
from orbitkv.transfer._cuda import CopyAttributes, CudaDriver
from orbitkv.transfer._driver import POINTER_OPERAND, STREAM_ORDER, STRIDED, Driver

SOURCE = Path(__file__).with_name("fake_cuda.c")
STREAM, EVENT = 0x7F0000000010, 0x7F0000000020  # what the stand-in hands out: more than 32 bits
DEVICE_MEMORY = 0x7F1234567000
STREAM_TEXT, EVENT_TEXT = hex(STREAM), hex(EVENT)
RELEASES = (13000, 12080)

Build = Callable[..., str]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return a function that compiles the stand-in with definitions, once for each set of them."""
    folder = tmp_path_factory.mktemp("cuda")
    made: dict[tuple[str, ...], str] = {}

    def compiled(release: int, *flags: str) -> str:
        definitions = (f"-DDRIVER={release}", *flags)
        if definitions not in made:
            path = folder / f"libcuda{len(made)}.so"
            command = ["cc", "-shared", "-fPIC", "-pthread", "-o", str(path), *definitions]
            subprocess.run([*command, str(SOURCE)], check=True)
            made[definitions] = str(path)
        return made[definitions]

    return compiled


class Fake:
    """The stand-in's own functions."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = ctypes.CDLL(path)
        self.library.fake_record.restype = ctypes.c_char_p
        self.library.fake_context.restype = ctypes.c_void_p
        self.library.fake_current.restype = ctypes.c_void_p
        self.library.fake_fail.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_size_t)
        self.library.fake_reset()

    def calls(self) -> list[str]:
        """Return the lines since the last time, and forget them."""
        lines: list[str] = self.library.fake_record().decode().splitlines()
        self.library.fake_forget()
        return lines

    def fail(self, name: str, code: int, copy: int = (1 << 64) - 1) -> None:
        self.library.fake_fail(name.encode(), code, copy)

    def driver(self, index: int = 3) -> CudaDriver:
        """Return a driver, bound to this thread, without a record of how it was made."""
        made = CudaDriver(index, self.path)
        made.bind()
        self.calls()
        return made


@pytest.fixture(params=RELEASES)
def fake(build: Build, request: pytest.FixtureRequest) -> Iterator[Fake]:
    made = Fake(build(request.param))
    yield made
    made.library.fake_reset()


@pytest.fixture
def newest(build: Build) -> Iterator[Fake]:
    made = Fake(build(RELEASES[0]))
    yield made
    made.library.fake_reset()


@pytest.fixture
def oldest(build: Build) -> Iterator[Fake]:
    made = Fake(build(RELEASES[1]))
    yield made
    made.library.fake_reset()


def test_a_driver_keeps_the_primary_context_and_leaves_its_maker_alone(newest: Fake) -> None:
    driver: Driver = CudaDriver(3, newest.path)
    assert newest.calls() == ["cuDriverGetVersion", "cuInit 0", "cuDeviceGet 3", "cuDevicePrimaryCtxRetain 43"]
    assert newest.library.fake_current() is None
    assert driver.index == 3
    assert driver.bus_id() == "0000:1b:00.0"
    assert newest.calls() == ["cuDeviceGetPCIBusId 43"]


def test_bind_makes_the_device_current_for_a_new_thread_and_relaxes_its_captures(newest: Fake) -> None:
    driver = CudaDriver(0, newest.path)
    newest.calls()
    found: list[Any] = []

    def work() -> None:
        driver.bind()
        found.append(newest.library.fake_current())
        driver.bind()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [newest.library.fake_context()]
    first = ["cuCtxGetCurrent", "cuCtxSetCurrent primary", "cuThreadExchangeStreamCaptureMode 2"]
    assert newest.calls() == [*first, "cuCtxGetCurrent"], "a second time is nothing"
    assert newest.library.fake_current() is None, "the calling thread is as it was"


def test_bind_leaves_a_thread_of_the_engine_as_it_is(newest: Fake) -> None:
    driver = CudaDriver(0, newest.path)
    newest.library.cuCtxSetCurrent(ctypes.c_void_p(newest.library.fake_context()))
    newest.calls()
    driver.bind()
    assert newest.calls() == ["cuCtxGetCurrent"]


def test_memory_calls_carry_their_arguments(newest: Fake) -> None:
    driver = newest.driver()
    driver.register(0x7F00AABB0000, 5 << 30)
    driver.unregister(0x7F00AABB0000)
    assert driver.allocate(6 << 30) == DEVICE_MEMORY
    driver.free(DEVICE_MEMORY)
    assert newest.calls() == [
        f"cuMemHostRegister_v2 0x7f00aabb0000 {5 << 30} 3",
        "cuMemHostUnregister 0x7f00aabb0000",
        f"cuMemAlloc_v2 {6 << 30}",
        f"cuMemFree_v2 {DEVICE_MEMORY:#x}",
    ]


def test_stream_and_event_calls_carry_their_arguments(newest: Fake) -> None:
    driver = newest.driver()
    assert driver.priorities() == (0, -5)
    assert driver.create_stream(-5) == STREAM
    assert driver.create_event() == EVENT
    assert driver.create_event(timing=True) == EVENT
    driver.record(EVENT, STREAM)
    driver.wait(STREAM, EVENT)
    driver.wait(0, EVENT)
    assert driver.elapsed_seconds(EVENT, EVENT + 1) == 0.0015
    driver.destroy_event(EVENT)
    driver.destroy_stream(STREAM)
    assert newest.calls() == [
        "cuCtxGetStreamPriorityRange",
        "cuStreamCreateWithPriority 1 -5",
        "cuEventCreate 3",
        "cuEventCreate 1",
        f"cuEventRecord {EVENT_TEXT} {STREAM_TEXT}",
        f"cuStreamWaitEvent {STREAM_TEXT} {EVENT_TEXT} 0",
        f"cuStreamWaitEvent (nil) {EVENT_TEXT} 0",
        f"cuEventElapsedTime {EVENT_TEXT} {hex(EVENT + 1)}",
        f"cuEventDestroy_v2 {EVENT_TEXT}",
        f"cuStreamDestroy_v2 {STREAM_TEXT}",
    ]


def test_a_waiting_thread_leaves_the_interpreter_to_others(newest: Fake) -> None:
    driver = newest.driver()
    ended: list[str] = []

    def wait() -> None:
        try:
            driver.synchronize(EVENT)
            ended.append("opened")
        except DeviceError as fault:
            ended.append(str(fault))

    thread = threading.Thread(target=wait)
    thread.start()
    newest.library.fake_open()
    thread.join()
    assert ended == ["opened"]


def test_an_event_has_ended_or_not_or_tells_an_error(newest: Fake) -> None:
    driver = newest.driver()
    assert driver.finished(EVENT)
    newest.fail("cuEventQuery", 600)
    assert not driver.finished(EVENT)
    newest.fail("cuEventQuery", 700)
    with pytest.raises(DeviceError) as caught:
        driver.finished(EVENT)
    assert (caught.value.call, caught.value.code) == ("cuEventQuery", 700)


def test_a_batch_moves_its_pieces_and_reads_sources_in_stream_order(fake: Fake) -> None:
    driver = fake.driver()
    rng = np.random.default_rng(11)
    source = rng.integers(0, 256, 4096, np.uint8)
    target = np.zeros_like(source)
    sizes = np.array([100, 1, 640], np.uint64)
    sources = np.array([3000, 17, 512], np.uint64)
    targets = np.array([0, 200, 1024], np.uint64)
    driver.copy_batch(targets + np.uint64(target.ctypes.data), sources + np.uint64(source.ctypes.data), sizes, STREAM)
    expected = np.zeros_like(source)
    for at, read, size in zip(targets.tolist(), sources.tolist(), sizes.tolist(), strict=True):
        expected[at : at + size] = source[read : read + size]
    assert np.array_equal(target, expected)
    assert fake.calls()[1] == f"batch of 3 on {STREAM_TEXT}: from 0 order 1 hints 0 0 0 0 flags 0"


def test_strided_rows_are_laid_out_as_c_lays_them_out(fake: Fake) -> None:
    driver = fake.driver()
    rng = np.random.default_rng(12)
    source = rng.integers(0, 256, 8192, np.uint8)
    target = np.zeros_like(source)
    rows = [(64, 256, 8, 96, 40, 5), (4000, 128, 4096, 512, 128, 3)]  # source, pitch, target, pitch, width, height
    operations = np.zeros(len(rows), STRIDED)
    expected = np.zeros_like(source)
    for operation, (read, pitch, at, step, width, height) in zip(operations, rows, strict=True):
        operation["source_type"] = operation["target_type"] = POINTER_OPERAND
        operation["source"], operation["target"] = source.ctypes.data + read, target.ctypes.data + at
        operation["source_pitch"], operation["target_pitch"] = pitch, step
        operation["source_rows"], operation["target_rows"] = height, height + 1
        operation["width"], operation["height"], operation["depth"] = width, height, 1
        operation["order"] = STREAM_ORDER
        for row in range(height):
            expected[at + row * step :][:width] = source[read + row * pitch :][:width]
    driver.copy_strided(operations, STREAM)
    assert np.array_equal(target, expected)
    each = " types 1 1 depth 1 order 1 flags 0 rows {} {} hints 0 0"
    assert fake.calls()[1] == f"2 strided on {STREAM_TEXT} flags 0:{each.format(5, 6)}{each.format(3, 4)}"


def test_the_batch_functions_are_those_of_the_driver(newest: Fake, oldest: Fake) -> None:
    nothing = np.zeros(0, np.uint64)
    for fake, suffix in ((newest, "_v2"), (oldest, "")):
        driver = fake.driver()
        driver.copy_batch(nothing, nothing, nothing, STREAM)
        driver.copy_strided(np.zeros(0, STRIDED), STREAM)
        names = [line for line in fake.calls() if line.startswith("cu")]
        assert names == [f"cuMemcpyBatchAsync{suffix}", f"cuMemcpy3DBatchAsync{suffix}"]


def test_the_sizes_of_the_structures_are_those_of_the_header() -> None:
    assert (ctypes.sizeof(CopyAttributes), STRIDED.itemsize) == (24, 112)


def test_an_error_names_the_call_and_what_the_driver_says(newest: Fake) -> None:
    driver = newest.driver()
    newest.fail("cuMemHostRegister_v2", 2)
    with pytest.raises(
        DeviceError, match=r"cuMemHostRegister_v2 failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory \(2\)"
    ):
        driver.register(4096, 4096)
    newest.fail("cuMemFree_v2", 12345)
    with pytest.raises(DeviceError, match="an error that the driver has no name for") as caught:
        driver.free(4096)
    assert (caught.value.call, caught.value.code) == ("cuMemFree_v2", 12345)


def test_the_older_functions_say_which_copy_was_wrong(oldest: Fake) -> None:
    driver = oldest.driver()
    row = np.zeros(1, np.uint64)
    oldest.fail("cuMemcpyBatchAsync", 1, copy=7)
    with pytest.raises(DeviceError, match=r"cuMemcpyBatchAsync failed: .*invalid argument at copy 7 \(1\)"):
        driver.copy_batch(row, row, row, STREAM)
    oldest.fail("cuMemcpy3DBatchAsync", 1)
    with pytest.raises(DeviceError, match=r"invalid argument \(1\)"):
        driver.copy_strided(np.zeros(1, STRIDED), STREAM)


@pytest.mark.parametrize("wrong", ["type", "gaps", "shape", "length"])
def test_arrays_that_are_no_batch_never_reach_the_driver(newest: Fake, wrong: str) -> None:
    driver = newest.driver()
    row = np.zeros(4, np.uint64)
    others: dict[str, Any] = {
        "type": np.zeros(4, np.int64),
        "gaps": np.zeros(8, np.uint64)[::2],
        "shape": np.zeros((4, 2), np.uint64),
        "length": np.zeros(3, np.uint64),
    }
    with pytest.raises(TransferError):
        driver.copy_batch(row, others[wrong], row, STREAM)
    with pytest.raises(TransferError):
        driver.copy_strided(others["type"], STREAM)
    assert newest.calls() == []


def test_a_machine_without_a_driver_is_told_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="install NVIDIA's driver") as caught:
        CudaDriver(0, str(tmp_path / "libcuda.so.1"))
    assert "libcuda.so.1" in str(caught.value)


def test_a_driver_before_batches_is_refused_with_both_releases(build: Build) -> None:
    with pytest.raises(ConfigurationError, match=r"CUDA 12\.4, but .* need CUDA 12\.8: install driver release 570"):
        CudaDriver(0, build(12040))


def test_a_library_without_a_release_or_a_function_is_refused(build: Build) -> None:
    stub = Fake(build(RELEASES[0]))
    stub.fail("cuDriverGetVersion", 34)
    try:
        with pytest.raises(ConfigurationError, match=r"does not tell its release \(error 34\)"):
            CudaDriver(0, stub.path)
    finally:
        stub.library.fake_reset()
    with pytest.raises(ConfigurationError, match="no function cuMemcpyBatchAsync, "):
        CudaDriver(0, build(12080, "-DLACKS_BATCHES"))


def test_a_device_that_is_not_there_is_an_error_of_the_device(newest: Fake) -> None:
    newest.fail("cuDeviceGet", 101)
    with pytest.raises(DeviceError) as caught:
        CudaDriver(9, newest.path)
    assert (caught.value.call, caught.value.code) == ("cuDeviceGet", 101)
