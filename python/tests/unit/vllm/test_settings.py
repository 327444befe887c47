"""Settings, faults and statistics."""

from __future__ import annotations

import pytest

from orbitkv import _config
from orbitkv.adapter.faults import Fault, parse_fault
from orbitkv.adapter.golden import GoldenResult
from orbitkv.adapter.settings import read_settings
from orbitkv.adapter.stats import OBSERVATIONS_MAX, Stats, merge
from orbitkv.errors import ConfigurationError
from orbitkv.vllm.plans import StepReport


def test_defaults_are_those_of_the_table() -> None:
    settings = read_settings({}, {})
    table = {key.connector: key.default for key in _config.KEYS}
    assert settings.socket is None
    assert str(settings.timeout_ms) == table["orbitkv.timeout_ms"]
    assert str(settings.query_wait_us) == table["orbitkv.query_wait_us"]
    assert str(settings.load_wait_ms) == table["orbitkv.load_wait_ms"]
    assert settings.transfer_backend == table["orbitkv.transfer_backend"]
    assert settings.verify == ""
    assert not settings.fault.on


def test_the_connector_key_wins_over_the_environment() -> None:
    environment = {"ORBITKV_SOCKET": "/from/environment", "ORBITKV_TIMEOUT_MS": "70"}
    settings = read_settings({"orbitkv.socket": "/from/key", "unrelated": 1}, environment)
    assert (settings.socket, settings.timeout_ms) == ("/from/key", 70)
    assert settings.call_seconds == pytest.approx(0.07)


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"orbitkv.sockett": "/x"}, "unknown connector keys orbitkv.sockett"),
        ({"orbitkv.timeout_ms": "soon"}, "whole number of ms"),
        ({"orbitkv.timeout_ms": 0}, "from 10 to"),
        # Who waits for no answer has none in time: three queries would open the breaker by themselves.
        ({"orbitkv.query_wait_us": 0}, "query_wait_us is 0 us; it must be from 100 to"),
        ({"orbitkv.fault_injection": "everything"}, "corrupt-restore"),
        ({"orbitkv.verify": "cpu"}, "verify is 'cpu'; it may be empty, gpu"),
    ],
)
def test_what_cannot_work_is_refused_with_the_remedy(extra: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read_settings(extra, {})


def test_verification_is_read_from_either_place() -> None:
    assert read_settings({"orbitkv.verify": "gpu"}, {}).verify == "gpu"
    assert read_settings({}, {"ORBITKV_VERIFY": "gpu"}).verify == "gpu"


def test_faults_are_read() -> None:
    assert parse_fault("corrupt-restore") == Fault(corrupt_restore=True)
    assert parse_fault("poison-destination") == Fault(poison_destination=True)
    assert parse_fault("skip-layer-wait=2") == Fault(skip_layer=2)


def test_statistics_are_taken_once_and_add_up() -> None:
    stats = Stats()
    stats.count("load_success")
    stats.count("load_success", 2)
    stats.observe("load_blocks", 5)
    stats.gauge("pending_prefetches", 4)
    first = stats.take()
    assert first == {"load_success": 3.0, "load_blocks": [5.0], "pending_prefetches": 4.0}
    assert stats.take() == {}
    both = merge(first, {"load_success": 1.0, "load_blocks": [6.0], "pending_prefetches": 0.0})
    assert both == {"load_success": 4.0, "load_blocks": [5.0, 6.0], "pending_prefetches": 0.0}
    assert first["load_blocks"] == [5.0], "a sum leaves its terms alone"


def test_observations_are_bounded() -> None:
    stats = Stats()
    for _ in range(OBSERVATIONS_MAX + 3):
        stats.observe("load_blocks", 1)
    values = stats.take()
    assert values["observations_dropped"] == 3
    both = merge(values, values)
    assert both["load_blocks"] == [1.0] * OBSERVATIONS_MAX
    assert both["observations_dropped"] == 3 + 3 + OBSERVATIONS_MAX, "what a sum drops counts too"


def test_reports_of_ranks_add_up_and_the_worst_result_counts() -> None:
    one = StepReport({1: 1, 2: 1}, {9: (1, GoldenResult.PASSED)})
    two = StepReport({2: 1}, {9: (1, GoldenResult.MISMATCH)})
    assert one.merge(two) == StepReport({1: 1, 2: 2}, {9: (2, GoldenResult.MISMATCH)})
    assert not StepReport()
    assert one
