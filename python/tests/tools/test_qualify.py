"""The parts of the qualifications that need no device: what they report, what they lay out, and what they notice."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.http import HTTPFailure
from orbitkv.errors import TransferError
from orbitkv.transfer import KVLayout
from qualify import engine, layouts, offline
from qualify.layouts import ELEMENT, UNIT, Shape, TensorShape
from qualify.offline import Answer, Counts, EngineChoice
from qualify.report import Report, Wrong
from qualify.rounds import Rounds, lengths
from qualify.serving import Asking

PAGE = 16
SHAPES = layouts.shapes(6, 80)


class Lines(list[dict[str, Any]]):
    """What a report wrote."""

    def write(self, text: str) -> None:
        self.append(json.loads(text))


def wrong() -> dict[str, int]:
    raise Wrong("7 bytes")


def broken() -> dict[str, int]:
    raise TransferError("no room")


def test_a_report_fails_by_any_case_and_passes_by_at_least_one(tmp_path: Path) -> None:
    lines = Lines()
    report = Report("all", tmp_path / "out.jsonl", lines.write)
    assert report.case("good", lambda: {"pages": 3})
    assert report.control("noticed", wrong)
    report.skip("elsewhere", "no device")
    assert report.close() == 0
    assert lines[0]["pages"] == 3
    assert lines[-1] == lines[-1] | {"summary": "all", "ok": True, "passed": 2, "skipped": 1, "failed": []}
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == lines


@pytest.mark.parametrize(
    "run",
    [
        lambda report: report.case("bad", wrong),
        lambda report: report.case("bad", broken),
        lambda report: report.control("bad", broken),
        lambda report: report.control("bad", dict),
    ],
)
def test_what_is_wrong_and_a_control_that_notices_nothing_fail(run: Callable[[Report], bool]) -> None:
    lines = Lines()
    report = Report("all", None, lines.write)
    report.case("good", dict)
    assert not run(report)
    assert report.close() == 1
    assert lines[-1]["failed"] == ["bad"]
    assert lines[1]["error"]


def test_a_report_without_a_case_is_no_success() -> None:
    assert Report("none", None, Lines().write).close() == 1


class Tensor:
    """The face of a torch tensor, at an address that nobody touches."""

    def __init__(self, tensor: TensorShape) -> None:
        self.shape = tensor.sizes
        self._tensor = tensor

    def stride(self) -> tuple[int, ...]:
        return self._tensor.strides

    def element_size(self) -> int:
        return ELEMENT

    def data_ptr(self) -> int:
        return ELEMENT * self._tensor.begin


def layout_of(shape: Shape) -> KVLayout:
    return KVLayout.from_tensors({t.name: Tensor(t) for t in shape.tensors}, shape.blocks, shape.steps)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.name))
def test_a_layout_is_one_that_the_copies_read_and_no_two_blocks_share_a_byte(shape: Shape) -> None:
    layout = layout_of(shape)
    used = np.zeros(shape.bytes, np.uint8)
    for layer in layout.layers:
        for block in range(shape.blocks):
            begin = layer.address + block * layer.block_stride
            used[begin : begin + layer.block_bytes] += 1
    assert used.max() == 1
    assert not used[-1], "something behind the last tensor can be looked at"
    assert [layout.layers[first].step for first, _ in layout.steps] == list(range(6))


def test_layouts_differ_in_what_the_engines_differ_in() -> None:
    found = {shape.name: layout_of(shape) for shape in SHAPES}
    assert {layout.layers[0].block_bytes >> 10 for layout in found.values()} == {256, 8, 32, 64, 128, 72, 18}
    assert found["vllm padded 32 KiB"].layers[0].block_stride > 32 << 10
    assert found["vllm block outermost 64 KiB"].layers[0].block_stride == 6 * 64 << 10
    assert found["sglang 8 KiB"].steps[1] == (2, 4)


@pytest.mark.parametrize("pattern", [p for p in layouts.PATTERNS if p != "borders"])
def test_an_arrangement_names_each_place_once(pattern: str) -> None:
    found = layouts.arrange(pattern, 40, 80, 3)
    assert len(set(found.tolist())) == 40
    assert found.min() >= 0
    assert found.max() < 80
    if pattern == "runs":
        assert (np.diff(found.reshape(-1, 4)) == 1).all()
        assert (np.diff(found.reshape(-1, 4)[:, 0]) != 4).any()


@pytest.mark.parametrize("layer_bytes", [8 << 10, 32 << 10, 72 << 10, 256 << 10])
def test_a_border_cuts_a_layer_and_pages_do_not_overlap(layer_bytes: int) -> None:
    size, border = 6 * layer_bytes, 8 << 20
    begins = layouts.across_borders(size, 3 * border, border)
    assert (np.diff(np.sort(begins)) >= size).all()
    for at in (border, 2 * border):
        across = [at - begin for begin in begins.tolist() if begin < at < begin + size]
        assert len(across) == 1
        assert across[0] % layer_bytes
        assert across[0] % UNIT == 0


def test_prompts_are_of_every_kind() -> None:
    found = lengths(200, 300, 2500, 64, 1)
    assert sum(size % 64 == 1 for size in found) >= 50
    assert sum(size % 64 == 0 for size in found) >= 50
    assert len(set(found)) > 100
    assert min(found) > 200
    assert max(found) <= 2501


@dataclass
class FakeEngine:
    """An engine whose tokens are a function of the prompt, with a device, a store, and faults of its own."""

    recomputes: bool = False
    restores_wrong: bool = False
    unlikely: bool = False
    device: set[tuple[str, int]] = field(default_factory=set)
    store: set[tuple[str, int]] = field(default_factory=set)
    counted: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    pages: int = 0
    loaded: int = 0

    def ask(self, prompt: list[int], tokens: int, salt: str = "") -> Answer:
        pages, restored = (len(prompt) - 1) // PAGE, False
        name = salt + str(prompt[: pages * PAGE])
        if (name, pages) in self.device:
            self.counted[0] += pages * PAGE
        elif (name, pages) in self.store and not self.recomputes:
            self.counted[1] += pages * PAGE
            self.loaded += pages
            restored = True
        else:
            self.pages += len(prompt) // PAGE
        self.device.add((name, pages))
        self.store.add((name, pages))
        first = sum(prompt) + (restored and self.restores_wrong)
        return Answer(tuple(first + at for at in range(tokens)), pages * PAGE)

    def ask_together(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> list[Answer]:
        return [self.ask(prompt, tokens, salt) for prompt in prompts]

    def enqueue(self, prompts: Sequence[list[int]], tokens: int, salt: str = "") -> None:
        self.waiting = [*getattr(self, "waiting", []), *self.ask_together(prompts, tokens, salt)]

    def wait(self) -> list[Answer]:
        answers, self.waiting = self.waiting, []
        return answers

    def gaps(self, prompt: list[int], tokens: Sequence[int]) -> list[float]:
        return [9.0 if self.unlikely and prompt else 0.0 for _ in tokens]

    def reset_device(self) -> bool:
        self.device.clear()
        return True

    def counts(self) -> Counts:
        return Counts(*self.counted)

    def restores(self) -> tuple[int, int]:
        return self.loaded, 0


class FakeRig:
    """The Manager of a fake engine."""

    def __init__(self, asked: FakeEngine) -> None:
        self._asked = asked
        self.manager = SimpleNamespace(status=self._status, metric=lambda _: float(10 * asked.loaded))

    @staticmethod
    def _status() -> dict[str, Any]:
        return {"cache": {"instances": [{"ranks": [{"slice_bytes": 10}]}]}}

    def inserted(self) -> int:
        return self._asked.pages

    def wait_inserted(self, pages: int) -> None:
        assert self._asked.pages >= pages

    def quiet(self) -> None:
        return None


def rounds(**faults: Any) -> Rounds:
    asked = FakeEngine(**faults)
    return Rounds(asked, FakeRig(asked), PAGE)  # type: ignore[arg-type]


CASES: dict[str, Callable[[Rounds], Any]] = {
    "single": lambda r: r.single(r.prompts([40, 48, 49])),
    "together": lambda r: r.together(r.prompts([40, 48, 49])),
    "joining": lambda r: r.joining(r.prompts([40, 48, 49]), 2, 12),
    "full-graph": lambda r: r.full_graph(4, 2, graphs=False),
    "chunked": lambda r: r.chunked(40, 100),
}


@pytest.mark.parametrize("name", [name for name in CASES if name != "chunked"])
def test_a_case_passes_with_an_engine_that_restores(name: str) -> None:
    assert CASES[name](rounds())


@pytest.mark.parametrize("name", CASES)
def test_a_case_notices_an_engine_that_recomputes(name: str) -> None:
    with pytest.raises(AssertionError, match="restored"):
        CASES[name](rounds(recomputes=True))


@pytest.mark.parametrize("name", ["single", "together", "full-graph"])
def test_a_case_notices_wrong_tokens(name: str) -> None:
    with pytest.raises(Wrong):
        CASES[name](rounds(restores_wrong=True, unlikely=True))


def test_a_case_whose_steps_nobody_controls_notices_unlikely_tokens() -> None:
    with pytest.raises(Wrong, match="likely"):
        CASES["joining"](rounds(unlikely=True))


def test_ties_are_no_fault_unless_they_are_many() -> None:
    found = rounds()
    prompts = found.prompts([40] * 20)
    right = [Answer((1, 2, 3), 32)] * 20
    assert found.equal(prompts, [Answer((1, 2, 4), 32), *right[1:]], right)["ties"] == 1
    with pytest.raises(Wrong, match="too many"):
        found.equal(prompts, [Answer((1, 2, 4), 32)] * 3 + right[3:], right)


def test_spoiled_restores_must_change_answers() -> None:
    prompts = rounds().prompts([40, 48, 49])
    assert rounds(restores_wrong=True).single(prompts, faulty=True)["changed"] == 3
    with pytest.raises(AssertionError, match="too few"):
        rounds().single(prompts, faulty=True)


def test_a_graph_that_was_never_replayed_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="full graph"):
        rounds().full_graph(4, 2, graphs=True)


def test_restores_without_hooks_are_counted_by_request() -> None:
    def line(stage: str, request: str) -> str:
        return f'worker said: cache_timeline {{"stage":"{stage}","request_id":"{request}"}}'

    lines = [
        line("restore_submit", "a"),
        "something else",
        line("layer_used", "a"),
        line("restore_submit", "b"),
        line("gpu_ready", "b"),
        line("restore_submit", "a"),
    ]
    assert offline.count_restores(lines) == (3, 2)


def test_choices_reach_the_engine_and_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_USE_V2_MODEL_RUNNER", raising=False)
    plain = EngineChoice(Path("/model"), "cuda", 64, 100, 8192, 2048)
    assert "VLLM_USE_V2_MODEL_RUNNER" not in plain.environment()
    assert "async_scheduling" not in plain.arguments("/s")
    assert "orbitkv.transfer_backend" not in plain.connector("/s")["kv_connector_extra_config"]
    chosen = EngineChoice(
        Path("/model"), "cpu", 64, 100, 8192, 2048, True, "v2", "off", "direct", "gpu", "poison-destination"
    )
    keys = chosen.connector("/s")["kv_connector_extra_config"]
    assert chosen.environment()["VLLM_USE_V2_MODEL_RUNNER"] == "1"
    assert chosen.arguments("/s")["async_scheduling"] is False
    assert chosen.arguments("/s")["dtype"] == "float32"
    assert keys["orbitkv.transfer_backend"] == "direct"
    assert keys["orbitkv.verify"] == "gpu"
    assert keys["orbitkv.fault_injection"] == "poison-destination"
    assert keys["orbitkv.socket"] == "/s"


def test_the_pool_holds_every_prompt_and_the_device_a_third(tmp_path: Path) -> None:
    facts = {"num_hidden_layers": 36, "num_key_value_heads": 8, "num_attention_heads": 32, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    options = engine.parser().parse_args(["--model", str(tmp_path)])
    scale = engine.SCALES["cuda"]
    sizes = lengths(scale.prompts, scale.low, scale.high, scale.page, 1)
    choice, pool = engine.choose(options, scale, sizes)
    assert engine.token_bytes(tmp_path, 2) == 144 << 10
    assert pool >= 1.2 * sum(sizes) * (144 << 10)
    assert choice.device_blocks < engine.PRESSED * engine.pages_of(sizes, 64)
    assert choice.device_blocks * 64 > scale.batch * scale.high


@pytest.mark.parametrize("failure", [Wrong("other tokens"), HTTPFailure("500"), OSError("gone")])
def test_a_client_stops_at_the_first_failure_and_tells_it(failure: Exception) -> None:
    def ask() -> None:
        raise failure

    asking = Asking(ask)
    asking.start()
    asking.join()
    assert asking.failed
    with pytest.raises(AssertionError):
        asking.check()
    if isinstance(failure, Wrong):
        with pytest.raises(Wrong):
            asking.check(dead=True)
    else:
        asking.check(dead=True)
