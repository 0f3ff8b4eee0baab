"""Run all programs under the module named on the command line, and print a line of JSON for each.

    python -m tests.runtime.ray.patterns.run trainkit 30

A program that takes longer than the given seconds is interrupted, and its line says so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import signal
import sys
import threading
import traceback
from typing import Any

from tests.runtime.ray.patterns import PROGRAMS

MODULES = ("tasks", "actors", "faults", "parallel", "placing")

for module in MODULES:
    importlib.import_module(f"tests.runtime.ray.patterns.{module}")


class TooLong(BaseException):
    """The program's time is up; no handler of its own catches this."""


class Printed(io.StringIO):
    """Text that the program itself prints; what a thread of Ray's prints beside it goes to stderr."""

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            return super().write(text)
        return sys.stderr.write(text)


def _interrupt(*_: Any) -> None:
    raise TooLong


def main() -> None:
    name, limit_s, *only = sys.argv[1:]
    ray = importlib.import_module(name)
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, resources={"licence": 1})
    signal.signal(signal.SIGALRM, _interrupt)
    for title in only or PROGRAMS:
        printed = Printed()
        error = None
        signal.alarm(int(limit_s))
        try:
            with contextlib.redirect_stdout(printed):
                PROGRAMS[title](ray)
        except TooLong:
            error = f"did not end within {limit_s} s:\n{traceback.format_exc()}"
        except Exception:
            error = traceback.format_exc()
        finally:
            signal.alarm(0)
        gc.collect()  # what a program leaves in a circle would hold resources of the next
        print(json.dumps({"name": title, "printed": printed.getvalue(), "error": error}), flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
