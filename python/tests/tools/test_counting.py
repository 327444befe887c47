"""Tests are counted from their runners' own records, and a stage can never pass by running nothing."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from runner.counting import OUTPUT_LINES_MAX, Count, GoEvents, read_junit
from runner.process import LIMIT_STATUS, end_group, run
from runner.report import Outcome, closing

PACKAGE = "orbitkv/internal/a"


def go_events(*events: tuple[str, str, str]) -> Count:
    """Return what (action, test, output) events of one package are counted as."""
    reader = GoEvents()
    for action, test, output in events:
        event = {"Action": action, "Package": PACKAGE, "Elapsed": 0.1}
        reader.line(json.dumps(event | ({"Test": test} if test else {}) | ({"Output": output} if output else {})))
    return reader.count


def test_go_leaves_are_counted_and_parents_are_not() -> None:
    count = go_events(
        ("run", "TestA", ""),
        ("run", "TestA/one", ""),
        ("pass", "TestA/one", ""),
        ("run", "TestA/two", ""),
        ("pass", "TestA/two", ""),
        ("pass", "TestA", ""),
        ("run", "TestB", ""),
        ("pass", "TestB", ""),
        ("pass", "", ""),
    )
    assert count == Count(passed=3)


def test_go_failure_is_counted_once_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    count = go_events(
        ("run", "TestA", ""),
        ("run", "TestA/one", ""),
        ("output", "TestA/one", "    a_test.go:7: got 1, want 2\n"),
        ("fail", "TestA/one", ""),
        ("fail", "TestA", ""),
        ("fail", "", ""),
    )
    assert count == Count(failed=[f"{PACKAGE} TestA/one"])
    assert "got 1, want 2" in capsys.readouterr().out


def test_long_output_is_shown_from_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [("output", "TestA", f"line {i}\n") for i in range(2 * OUTPUT_LINES_MAX)]
    go_events(("run", "TestA", ""), *lines, ("fail", "TestA", ""), ("fail", "", ""))
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("line ")]
    assert len(shown) == OUTPUT_LINES_MAX
    assert (shown[0], shown[-1]) == ("line 0", f"line {2 * OUTPUT_LINES_MAX - 1}")


def test_go_parent_that_fails_by_itself_is_counted() -> None:
    count = go_events(
        ("run", "TestA", ""),
        ("run", "TestA/one", ""),
        ("pass", "TestA/one", ""),
        ("fail", "TestA", ""),
        ("fail", "", ""),
    )
    assert count == Count(passed=1, failed=[f"{PACKAGE} TestA"])


def test_go_package_that_does_not_build_is_a_failure() -> None:
    assert go_events(("fail", "", "")) == Count(failed=[f"{PACKAGE} (the package itself)"])


def test_go_skip_keeps_its_reason() -> None:
    count = go_events(
        ("run", "TestA", ""),
        ("output", "TestA", "    a_test.go:9: one NUMA node\n"),
        ("output", "TestA", "--- SKIP: TestA (0.00s)\n"),
        ("skip", "TestA", ""),
        ("pass", "", ""),
    )
    assert count == Count(skipped=[(f"{PACKAGE} TestA", "one NUMA node")])


def test_lines_that_are_no_events_are_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    reader = GoEvents()
    reader.line("go: downloading a module")
    reader.line("7")
    assert capsys.readouterr().out == "go: downloading a module\n7\n"
    assert reader.count.total() == 0


def test_junit_is_counted_with_reasons(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        "<testsuites><testsuite><testcase classname='t' name='a'/>"
        "<testcase classname='t' name='b'><failure/></testcase>"
        "<testcase classname='t' name='c'><error/></testcase>"
        "<testcase classname='t' name='d'><skipped message='no other user'/></testcase></testsuite></testsuites>"
    )
    assert read_junit(report) == Count(passed=1, failed=["t::b", "t::c"], skipped=[("t::d", "no other user")])


@pytest.mark.parametrize("text", ["", "<testsuites><testsuite>"])
def test_half_a_report_is_none(tmp_path: Path, text: str) -> None:
    report = tmp_path / "report.xml"
    report.write_text(text)
    assert read_junit(report) is None
    assert read_junit(tmp_path / "absent.xml") is None


def test_closing_line_sums_and_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    good = Outcome("one", "ok", 1.0, Count(passed=3, skipped=[("t::d", "no other user")]))
    assert closing([good])
    assert not closing([good, Outcome("two", "FAILED", 2.0, Count(passed=1, failed=["t::b"]))])
    assert not closing([good, Outcome("two", "not run", 0.0, Count(skipped=[("two", "it needs one")]))])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if " passed, " in line] == [
        "3 passed, 0 failed, 1 skipped",
        "4 passed, 1 failed, 1 skipped",
        "3 passed, 0 failed, 2 skipped",
    ]
    assert lines[-1] == "3 passed, 0 failed, 2 skipped"
    assert "skipped  one: t::d: no other user" in lines


def test_command_has_no_stdin_and_its_status_is_returned(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "import sys; print(repr(sys.stdin.read())); print('two', file=sys.stderr); sys.exit(3)"
    assert run([sys.executable, "-c", code], tmp_path, {}, 60, lines.append) == 3
    assert lines == ["''", "two"]


def test_limit_ends_a_command_that_hangs(tmp_path: Path) -> None:
    hang = "import signal; signal.pause()"
    assert run([sys.executable, "-c", hang], tmp_path, {}, 0.5, lambda _: None) == LIMIT_STATUS


def test_end_of_a_command_takes_its_children_along() -> None:
    child = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(1, b'up\\n'); signal.pause()"
    begin = f"import os, subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}])"
    code = f"{begin}; os.write(1, b'%d\\n' % p.pid)"
    parent = [sys.executable, "-c", f"{code}; p.wait()"]
    with subprocess.Popen(parent, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        told = {process.stdout.readline().strip(), process.stdout.readline().strip()}
        watched = os.pidfd_open(int((told - {"up"}).pop()))
        try:
            end_group(process)
            assert select.select([watched], [], [], 60)[0], "the child outlived its group"
        finally:
            os.close(watched)
