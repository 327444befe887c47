"""The kernel's mover against numpy: exact bytes of all memory on both sides, whatever the pieces' sizes and places."""

from __future__ import annotations

import pytest
from python.tests.kernel.rig import Engine, Pages

from harness.immediate import ImmediateDriver
from harness.interpreted import Interpreted
from orbitkv.errors import DeviceError, TransferError
from orbitkv.kernel.mover import LAYOUTS_MAX, KernelMover, Prepared

BLOCKS = [7, 2, 11, 5, 0]
TARGETS = [1, 9, 3, 8, 10]


def mover_of(driver: ImmediateDriver, engine: Engine) -> KernelMover:
    return KernelMover(driver, engine.layout, launcher=Interpreted(driver))


@pytest.mark.parametrize(
    ("widths", "gap"),
    [
        ([8], 0),
        ([16, 16, 16], 0),
        ([8192, 8192], 0),
        ([65536], 0),
        ([20000, 20000], 24),  # a tail that fills no lane, and blocks apart
        ([4, 12, 12], 4),
        ([1004, 1004], 0),  # words of four bytes
        ([2050, 6], 0),  # of two
        ([999, 1, 4097], 0),  # of one
        ([576, 4096, 24], 0),  # no two layers alike
    ],
)
@pytest.mark.parametrize("whole", [False, True])
def test_bytes_are_exact_in_both_directions(widths: list[int], gap: int, whole: bool) -> None:
    driver = ImmediateDriver()
    source, target = Engine(widths, 12, gap=gap), Engine(widths, 12, gap=gap)
    source.fill(1)
    target.fill(2)
    pages = Pages(driver, source.layout, len(BLOCKS), seed=3)
    with_source, with_target = mover_of(driver, source), mover_of(driver, target)

    stream = driver.create_stream(0)
    out = with_source.prepare(pages.group(source.layout, BLOCKS, restore=False))
    before = source.images()
    hand_over(with_source, out, source, stream, whole=whole)
    assert pages.memory.tobytes() == pages.image([source.slice_of(block) for block in BLOCKS])
    assert source.images() == before

    expected = Engine(widths, 12, gap=gap)
    for image, memory in zip(expected.memory, target.memory, strict=True):
        image[...] = memory
    for block, into in zip(BLOCKS, TARGETS, strict=True):
        for own, tensor in zip(expected.tensors, source.tensors, strict=True):
            own.rows[into] = tensor.rows[block]
    back = with_target.prepare(pages.group(target.layout, TARGETS, restore=True))
    hand_over(with_target, back, target, stream, whole=whole)
    assert target.images() == expected.images()


def hand_over(mover: KernelMover, prepared: Prepared, engine: Engine, stream: int, *, whole: bool) -> None:
    if whole:
        middle = prepared.group.pages // 2
        mover.submit_pages(prepared, 0, middle, stream)
        mover.submit_pages(prepared, middle, prepared.group.pages, stream)
    else:
        for step in range(len(engine.layout.steps)):
            mover.submit_steps(prepared, step, step + 1, stream)
    mover.release(prepared)


def test_a_step_moves_its_own_layers_and_part_of_the_pages_moves_alone() -> None:
    driver = ImmediateDriver()
    engine = Engine([512, 512, 512], 12)
    engine.fill(4)
    pages = Pages(driver, engine.layout, len(BLOCKS), seed=5)
    mover = mover_of(driver, engine)
    prepared = mover.prepare(pages.group(engine.layout, BLOCKS, restore=False))
    stream = driver.create_stream(0)
    assert mover.submit_steps(prepared, 1, 2, stream) == 1
    for page, block in enumerate(BLOCKS):
        lone = bytes([0xEE]) * 512 + engine.tensors[1].rows[block].tobytes() + bytes([0xEE]) * 512
        assert pages.slice_of(page, 1536) == lone
    assert mover.submit_pages(prepared, 3, 4, stream) == 1
    assert pages.slice_of(3, 1536) == engine.slice_of(BLOCKS[3])
    assert pages.slice_of(2, 512) == bytes([0xEE]) * 512


def test_layers_of_one_shape_share_a_launch_and_others_have_their_own() -> None:
    driver = ImmediateDriver()
    alike, unlike = Engine([256, 256, 256], 12), Engine([256, 260, 256], 12)
    for engine, launches in ((alike, 1), (unlike, 2)):
        pages = Pages(driver, engine.layout, len(BLOCKS), seed=6)
        mover = mover_of(driver, engine)
        prepared = mover.prepare(pages.group(engine.layout, BLOCKS, restore=True))
        assert mover.submit_pages(prepared, 0, len(BLOCKS), driver.create_stream(0)) == launches


@pytest.mark.parametrize("restore", [False, True])
def test_pages_of_another_layout_are_moved_and_the_engines_are_left_alone(restore: bool) -> None:
    """An adapter checks a session on pages of its own while the engine serves from the same block numbers."""
    driver = ImmediateDriver()
    engine, other = Engine([512, 512], 12), Engine([512, 512], 4)
    engine.fill(10)
    other.fill(11)
    before = engine.images()
    pages = Pages(driver, engine.layout, 3, seed=12)
    mover = mover_of(driver, engine)
    prepared = mover.prepare(pages.group(other.layout, [3, 0, 1], restore=restore))
    hand_over(mover, prepared, other, driver.create_stream(0), whole=not restore)
    assert engine.images() == before
    assert [pages.slice_of(page, 1024) for page in range(3)] == [other.slice_of(block) for block in (3, 0, 1)]


def test_a_mover_keeps_the_runs_of_few_layouts() -> None:
    driver = ImmediateDriver()
    engines = [Engine([256], 12) for _ in range(LAYOUTS_MAX + 1)]
    pages = Pages(driver, engines[0].layout, 1, seed=13)
    mover = mover_of(driver, engines[0])
    for engine in (*engines[:-1], engines[0]):
        mover.release(mover.prepare(pages.group(engine.layout, [0], restore=True)))
    kept = len(driver.allocated)
    with pytest.raises(TransferError, match="this is another"):
        mover.prepare(pages.group(engines[-1].layout, [0], restore=True))
    assert len(driver.allocated) == kept
    mover.close()
    assert not driver.allocated


def test_a_page_that_begins_at_no_multiple_of_a_word_is_refused() -> None:
    driver = ImmediateDriver()
    engine = Engine([256], 12)
    pages = Pages(driver, engine.layout, len(BLOCKS), seed=7)
    pages.begins[2] += 4
    with pytest.raises(TransferError, match="multiple of 8 bytes"):
        mover_of(driver, engine).prepare(pages.group(engine.layout, BLOCKS, restore=True))


def test_a_refused_launch_is_an_error_of_the_device() -> None:
    driver = ImmediateDriver()
    engine = Engine([256], 12)
    launcher = Interpreted(driver)
    mover = KernelMover(driver, engine.layout, launcher=launcher)
    pages = Pages(driver, engine.layout, len(BLOCKS), seed=8)
    prepared = mover.prepare(pages.group(engine.layout, BLOCKS, restore=True))
    launcher.fault = "an illegal memory access was encountered"
    with pytest.raises(DeviceError, match="illegal memory access"):
        mover.submit_steps(prepared, 0, 1, driver.create_stream(0))


def test_launches_go_to_the_stream_that_was_given() -> None:
    driver = ImmediateDriver()
    engine = Engine([256, 512], 12)
    launcher = Interpreted(driver)
    mover = KernelMover(driver, engine.layout, launcher=launcher)
    pages = Pages(driver, engine.layout, len(BLOCKS), seed=8)
    launcher.streams.clear()
    one, other = driver.create_stream(0), driver.create_stream(0)
    for stream, restore in ((one, True), (other, False)):
        prepared = mover.prepare(pages.group(engine.layout, BLOCKS, restore=restore))
        mover.submit_pages(prepared, 0, len(BLOCKS), stream)
    assert launcher.streams == [one, one, other, other]


def test_a_closed_mover_gives_everything_back() -> None:
    driver = ImmediateDriver()
    mover = mover_of(driver, Engine([256, 300], 12))
    assert driver.allocated
    mover.close()
    assert not driver.allocated
    assert not driver.registered
    assert not driver.handles
