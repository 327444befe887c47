"""Run the demo inside the engine's environment; `demo/run` gets here.

Every process and folder of the run is owned here: whatever happens, the processes are ended, and the folder is removed
unless something went wrong, in which case it is named.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

from demo.damage import NothingToDamage
from demo.engines import ENGINES
from demo.manager import Manager
from demo.scenario import HEADER, Scenario
from demo.table import render
from harness.http import HTTPFailure
from harness.manager import ManagerFailure
from harness.server import EngineFailure

TICK_S = 10.0
BEGUN = time.monotonic()


def say(text: str) -> None:
    """Tell a person what happens, with the seconds since the start."""
    print(f"demo {time.monotonic() - BEGUN:5.1f} s  {text}", flush=True)


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Say what is being waited for, and again every TICK_S while it lasts."""
    say(what)
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_S):
            say(f"still {what}")

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()


def end_on_signal(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an exit, so that everything that was started is ended on the way out."""
    sys.exit(128 + number)


def run(engine_name: str, plain: bool, folder: Path) -> list[str]:
    """Start everything, run the scenario, print the table; return what was wrong."""
    with ExitStack() as stack:
        manager = None
        if not plain:
            with telling("starting the Cache Manager (orbitkv serve)"):
                manager = Manager(folder)
                stack.callback(manager.stop)
                manager.start()
        engine_class = ENGINES[engine_name]
        with telling(f"starting {engine_class.name} (a minute or more on a small machine)"):
            engine = engine_class(None if manager is None else manager.socket, folder / "engine.log")
        stack.callback(engine.stop)
        scenario = Scenario(engine, manager, say)
        try:
            scenario.run()
        finally:
            if scenario.rows:
                print(f"\n{render(HEADER, [row.cells() for row in scenario.rows])}\n", flush=True)
        say("stopping the engine and the Manager" if manager else "stopping the engine")
    return scenario.failures


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="demo/run", description=__doc__.partition("\n")[0])
    parser.add_argument("--engine", choices=sorted(ENGINES), default="vllm", help="the engine to show (default vllm)")
    parser.add_argument("--plain", action="store_true", help="the same requests on the engine alone, without OrbitKV")
    parser.add_argument(
        "--keep-logs", action="store_true", help="keep the folder with the logs also when all went well"
    )
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_on_signal)
    folder = Path(tempfile.mkdtemp(prefix="orbitkv-demo-"))
    keep = True
    try:
        failures = run(options.engine, options.plain, folder)
        keep = options.keep_logs or bool(failures)
    except (EngineFailure, ManagerFailure, HTTPFailure, NothingToDamage, OSError) as error:
        failures = [str(error)]
    except KeyboardInterrupt:
        failures = ["it was interrupted"]
    finally:
        if keep:
            say(f"the logs are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for failure in failures:
        say(f"FAILED: {failure}")
    if not failures:
        say("all of it held" if options.plain else "all of it held: the prefix was lost, restored and verified")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
