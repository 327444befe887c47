"""`orbitkv bench single-node` with an SSD tier and a real engine: hits from the disk, and what proves them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.measurement import Measurement, Row

LENGTH, PREFIXES, PAGE = 256, 2, 64
WHOLE = (
    (LENGTH - 1) // PAGE * PAGE
)  # Tokens of a prompt that can come from a cache: whole pages, and never the last token.
O_DIRECT = os.O_DIRECT
# A disk that others use may need seconds for a page. No time is judged here, so a request waits for its pages.
PATIENCE = {"ORBITKV_LOAD_WAIT_MS": "120000", "ORBITKV_LOAD_WAIT_POLICY": "always"}


@pytest.fixture(scope="module")
def tiered(measure: Any, tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    """Return a measurement of OrbitKV alone whose Manager has an SSD tier."""
    refuse_unless_direct(tmp_path_factory.mktemp("probe"))
    words = ["--backend", "orbitkv", "--lengths", str(LENGTH), "--repeats", str(PREFIXES), "--pressure-tokens", "1536"]
    words += ["--ssd-gib", "0.25", "--ssd-write-policy", "all", "--cache-protected-percent", "10"]
    words += ["--read-batch-mib", "1", "--stop-policy", "timeout", "--read-timeout-ms", "120000"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in PATIENCE.items():
            patch.setenv(name, value)
        measurement: Measurement = measure("tiered", *words)
        measurement.run()
    measurement.wait_gone()
    return measurement


def refuse_unless_direct(folder: Path) -> None:
    """Skip where no file of a folder can be opened around the page cache: there is no SSD tier to measure then."""
    try:
        os.close(os.open(folder / "probe", os.O_RDWR | os.O_CREAT | O_DIRECT, 0o600))
    except OSError as failure:
        pytest.skip(f"{folder} takes no O_DIRECT: {failure}")


def rows_of(tiered: Measurement, phase: str) -> list[Row]:
    """Return the measured samples of a phase."""
    return [row for row in tiered.final("samples") if row["measured"] and row["phase"] == phase]


def test_every_prompt_comes_back_from_the_ssd(tiered: Measurement) -> None:
    bytes_per_token = tiered.document("manifest.json")["model"]["bytes_per_token"]
    rows = rows_of(tiered, "after_host_eviction")
    assert len(rows) == PREFIXES
    for row in rows:
        assert (row["source"], row.get("why", "")) == ("external", "")
        assert (row["device_tokens"], row["external_tokens"]) == (0, WHOLE)
        assert row["load_bytes"] == WHOLE * bytes_per_token
        assert row["tiers"]["ssd_read_bytes"] >= WHOLE * bytes_per_token
        assert row["tiers"]["ssd_pages"] > 0
        assert row["tiers"]["ram_pages"] == 0
        assert row["matches_cold"] is not None


def test_memory_is_asked_before_the_disk(tiered: Measurement) -> None:
    rows = rows_of(tiered, "after_pressure")
    assert [(row["source"], row["tiers"]["ssd_read_bytes"]) for row in rows] == [("external", 0)] * PREFIXES


def test_tiers_sum_to_what_was_asked_for(tiered: Measurement) -> None:
    names = ("ram_pages", "remote_pages", "ssd_pages", "miss_pages")
    for row in tiered.rows("samples"):
        if "tiers" in row:
            assert sum(row["tiers"][name] for name in names) == row["tiers"]["asked_pages"]
    told = [
        group["tiers"] for group in tiered.document("summary.json")["groups"] if group["phase"] == "after_host_eviction"
    ]
    assert len(told) == 1
    assert sum(told[0][name] for name in names) == told[0]["asked_pages"] > 0
    assert told[0]["ssd_reads_without_restore"] == 0
    assert told[0]["sum_ssd_read_bytes"] == sum(
        row["tiers"]["ssd_read_bytes"] for row in rows_of(tiered, "after_host_eviction")
    )


def test_the_disk_is_proved_and_left_empty(tiered: Measurement) -> None:
    (volume,) = tiered.document("storage.json")["volumes"]
    assert volume["direct"]
    assert all(int(flags, 8) & O_DIRECT for flags in volume["flags"])
    assert 0 < volume["file_bytes"] <= volume["capacity_bytes"] == 1 << 28
    assert volume["findmnt"]["target"]
    assert not (tiered.folder / volume["file"]).exists()
    assert not (tiered.folder / "ssd").exists()


def test_the_manager_was_told_of_every_switch(tiered: Measurement) -> None:
    (command,) = [row["command"] for row in tiered.document("manifest.json")["launches"] if row["part"] == "manager"]
    told = dict(zip(command[2::2], command[3::2], strict=True))
    assert told["--ssd-cache-capacity"] == str(1 << 28)
    assert told["--ssd-write-policy"] == "all"
    assert told["--cache-protected-percent"] == "10"
    assert told["--query-read-batch"] == str(1 << 20)
    assert (told["--query-stop-policy"], told["--query-read-timeout-ms"]) == ("timeout", "120000")


def test_everything_borrowed_was_given_back(tiered: Measurement) -> None:
    assert [(row["checked"], row["drained"]) for row in tiered.rows("drains")] == [(True, True)]
    assert not tiered.rows("failures")
