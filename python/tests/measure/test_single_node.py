"""`orbitkv bench single-node` with a real engine on a CPU, from the first start to the report, cut off once on the way.

No time is judged: what is, are sources of KV, outputs, ends and the agreement of the files with one another.
"""

from __future__ import annotations

import collections
import json
import shutil
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.measurement import Group, Measurement, Row, groups

BACKENDS, LENGTHS, PREFIXES, PAGE = ("native", "orbitkv"), (256, 512), 2, 64
PHASES = ("cold", "hbm_hit", "after_pressure")
EXPLAINED = {"engine_reproduces", "engine_unstable"}  # Verdicts by which the engine alone gives both outputs.


def restorable(length: int) -> int:
    """Return how many tokens of a prompt can come from a cache: whole pages, and never the last token."""
    return (length - 1) // PAGE * PAGE


@pytest.fixture(scope="module")
def latency(measure: Any) -> Measurement:
    """Return a measurement of latency that was killed in its second backend and then resumed to its end."""
    measurement: Measurement = measure("latency", "--pressure-tokens", "1536")
    measurement.start()
    measurement.wait_until(lambda: bool(measurement.finished("orbitkv")), "a cell of orbitkv is finished")
    alive = len(measurement.running())
    measurement.kill()
    assert alive >= 3, f"{alive} processes ran beside the tests: the measurement, an engine and a Manager are more"
    measurement.wait_gone()
    measurement.run("--resume")
    measurement.wait_gone()
    return measurement


def test_every_planned_sample_is_there_once(latency: Measurement) -> None:
    found = {group: len(samples) for group, samples in groups(latency.final("samples")).items()}
    wanted = {Group(b, n, phase): PREFIXES for b in BACKENDS for n in LENGTHS for phase in PHASES}
    assert found == wanted
    names = [sample["request"] for sample in latency.rows("samples")]
    assert len(set(names)) == len(names)
    assert not latency.rows("failures")


def test_kv_comes_from_where_the_phase_says(latency: Measurement) -> None:
    wanted = {("native", "after_pressure"): "miss", ("orbitkv", "after_pressure"): "external"}
    for group, samples in groups(latency.final("samples")).items():
        source = wanted.get((group.backend, group.phase), {"cold": "miss", "hbm_hit": "hbm"}.get(group.phase))
        assert [(s["source"], s.get("why", "")) for s in samples] == [(source, "")] * PREFIXES, group


def test_a_restore_is_shown_by_the_engine_and_by_the_manager(latency: Measurement) -> None:
    bytes_per_token = latency.document("manifest.json")["model"]["bytes_per_token"]
    for group, samples in groups(latency.final("samples")).items():
        whole = restorable(group.length)
        outside = whole if (group.backend, group.phase) == ("orbitkv", "after_pressure") else 0
        inside = whole if group.phase == "hbm_hit" else 0
        for sample in samples:
            assert (sample["device_tokens"], sample["external_tokens"]) == (inside, outside), group
            assert sample["load_bytes"] == outside * bytes_per_token, group


def test_an_output_that_differs_is_the_engines_own(latency: Measurement) -> None:
    differing = {s["request"] for s in latency.final("samples") if s["measured"] and s.get("matches_cold") is False}
    verdicts = {row["request"]: row["verdict"] for row in latency.rows("attributions")}
    assert differing <= set(verdicts), "an output differs and nothing explains it"
    assert {verdicts[request] for request in differing} <= EXPLAINED
    compared = [s for s in latency.final("samples") if s["phase"] in PHASES[1:] and s["measured"]]
    assert all(s["matches_cold"] is not None for s in compared)


def test_prompts_are_those_of_the_other_backend(latency: Measurement) -> None:
    cold: dict[tuple[int, int], set[str]] = collections.defaultdict(set)
    for sample in latency.final("samples"):
        if sample["phase"] == "cold" and sample["measured"]:
            cold[sample["length"], sample["prefix"]].add(sample["text"])
    assert len(cold) == len(LENGTHS) * PREFIXES
    texts = [text for answers in cold.values() for text in answers]
    assert len(set(texts)) == len(texts), "two prompts have one answer: outputs would prove nothing"
    # A cold answer may differ between two engines in a rounding, but not for every prompt.
    assert min(len(answers) for answers in cold.values()) == 1


def test_everything_borrowed_was_given_back(latency: Measurement) -> None:
    drains = {row["backend"]: row for row in latency.rows("drains")}
    assert drains["orbitkv"]["checked"]
    assert drains["orbitkv"]["drained"], drains["orbitkv"]
    assert not any(row["checked"] and not row["drained"] for row in latency.rows("drains"))


def test_the_manifest_tells_both_attempts_and_every_start(latency: Measurement) -> None:
    manifest = latency.document("manifest.json")
    assert [attempt["outcome"] for attempt in manifest["attempts"]] == ["", "complete"]
    starts = [(row["attempt"], row["backend"], row["part"]) for row in manifest["launches"] if not row.get("control")]
    assert starts[:3] == [(1, "native", "engine"), (1, "orbitkv", "manager"), (1, "orbitkv", "engine")]
    assert sorted(starts[3:]) == [(2, "orbitkv", "engine"), (2, "orbitkv", "manager")]
    for launch in manifest["launches"]:
        assert launch["command"]
        assert (latency.folder / launch["log"]).stat().st_size > 0
    assert manifest["probe"]["packages"]["torch"]
    assert manifest["machine"]["cpus"] > 0
    assert {row["use"] for row in manifest["storage"]} >= {"output", "model"}


def test_a_resumed_run_repeats_no_finished_cell(latency: Measurement) -> None:
    attempts = latency.finished()
    assert set(attempts.values()) == {1, 2}
    assert {attempts[cell] for cell in attempts if cell.startswith("native/")} == {1}
    again = {s["cell"] for s in latency.rows("samples") if s["attempt"] == 2 and s["measured"]}
    assert again == {cell for cell, attempt in attempts.items() if attempt == 2}


def test_the_summary_agrees_with_the_samples(latency: Measurement) -> None:
    summary = latency.document("summary.json")
    assert summary["engine_version"]
    assert summary["part"] == {"finished": 8, "planned": 8}
    final, kept = latency.final("samples"), latency.rows("samples")
    measured = sum(sample["measured"] for sample in final)
    counts = {"samples": len(kept), "measured": measured, "failed": 0, "unverified": 0}
    counts["superseded"] = sum(sample["measured"] for sample in kept) - measured
    assert {name: summary["counts"][name] for name in counts} == counts
    found = groups(final)
    assert {Group(row["backend"], row["length"], row["phase"]) for row in summary["groups"]} == set(found)
    for row in summary["groups"]:
        check_group(row, found[Group(row["backend"], row["length"], row["phase"])])


def test_the_report_is_one_file_that_names_nothing_outside(latency: Measurement) -> None:
    page = (latency.folder / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") >= 2
    assert not any(mark in page for mark in ("<script src", "<link", "<img", "@import", "url(http"))
    for word in (*BACKENDS, *map(str, LENGTHS)):
        assert word in page


def test_nobody_else_may_read_what_was_kept(latency: Measurement) -> None:
    modes = {path: path.stat().st_mode & 0o077 for path in (latency.folder, *latency.folder.rglob("*"))}
    assert not {str(path): mode for path, mode in modes.items() if mode}


def check_group(row: Row, samples: list[Row]) -> None:
    """Compare one group of the summary with its samples: how many, from where, the median of the time to first text."""
    sources = collections.Counter(sample["source"] for sample in samples)
    assert (row["n"], row["failed"], row["unexpected"]) == (len(samples), 0, 0)
    assert {count["source"]: count["n"] for count in row["sources"]} == sources
    for part in row["rows"]:
        times = [sample["ttft_ms"] for sample in samples if sample["source"] == part["source"]]
        assert part["ttft_ms"]["n"] == len(times)
        assert part["ttft_ms"]["median"] == pytest.approx(statistics.median(times))


@pytest.fixture(scope="module")
def windows(engine: str, measure: Any) -> Measurement:
    """Return a measurement of several requests at a time, of another workload for each engine."""
    words = ["--backend", "orbitkv", "--lengths", "256", "--concurrencies", "2"]
    if engine == "vllm":
        # More prompts than device memory holds, so that some come back from outside.
        words += ["--workload", "sustained", "--duration-seconds", "20", "--max-requests", "16", "--working-set", "10"]
    else:
        words += ["--workload", "concurrent", "--repeats", "1"]
    measurement: Measurement = measure("windows", *words)
    measurement.run()
    measurement.wait_gone()
    return measurement


def test_windows_hold_their_samples_and_their_counters(windows: Measurement) -> None:
    rows = windows.final("windows")
    assert rows
    samples = [s for s in windows.final("samples") if s["measured"]]
    assert sum(row["requests"] for row in rows) == len(samples) > 0
    for row in rows:
        assert row["failed"] == 0
        assert row["wall_seconds"] >= row["drain_seconds"] >= 0
        assert row["peak_samples"] > 0
        assert set(row["before"]) <= set(row["after"])
    assert any(row["after"] != row["before"] for row in rows)
    assert not windows.rows("failures")


def test_restores_happen_in_windows_and_nothing_is_unverified(windows: Measurement) -> None:
    samples = [s for s in windows.final("samples") if s["measured"]]
    assert {s["source"] for s in samples} & {"external", "mixed"}
    assert not [s for s in samples if s["source"] == "unverified"]
    assert all(row["drained"] for row in windows.rows("drains"))


def test_windows_have_a_summary_and_a_report(windows: Measurement) -> None:
    assert windows.document("summary.json")["windows"]
    assert (windows.folder / "report.html").stat().st_size > 0


def test_a_copy_of_a_run_is_no_other_run(latency: Measurement, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(latency.folder, copy)
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        latency.ask("compare", str(latency.folder), str(copy))
    assert "the same run" in refusal.value.stderr


def test_a_run_of_equal_figures_is_paired_and_differs_by_nothing(latency: Measurement, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(latency.folder, copy)
    manifest = latency.document("manifest.json")
    manifest["started"] = "2001-02-03T04:05:06Z"
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    shown = latency.ask("compare", str(latency.folder), str(copy))
    for word in ("orbitkv", "native", "after pressure"):
        assert word in shown
    assert "unpaired" not in shown


def test_runs_of_two_engines_are_refused(latency: Measurement, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(latency.folder, other)
    manifest = latency.document("manifest.json")
    manifest["options"]["engine"] = "sglang" if manifest["options"]["engine"] == "vllm" else "vllm"
    (other / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        latency.ask("compare", str(latency.folder), str(other))
    assert "engine" in refusal.value.stderr
