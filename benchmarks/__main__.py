"""All benchmarks, one after another, in one record: `python -m benchmarks [--only NAME] [--to FILE]`.

Each benchmark runs as a separate program. With the sizes chosen here, all take less than half an hour on two
cores. The record contains the machine, versions and commit; `benchmarks.compare` compares two records.
A benchmark that fails, or for which no time is left, is recorded with the reason, and the exit code is 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.interleaved import HERE
from benchmarks.rows import parser

MINUTES = 29.0
REST_S = 5.0
"""Time to read a benchmark's last output after its end, in seconds."""
BENCHMARKS = {
    "runtime": [],
    "anatomy": [],
    "tuning": [],
    "training": [],
    "sklearn_searches": [],
    "pools": [],
    "dashboard": [],
    "decision_cost": [],
    "simulator": ["--only", "cost", "large"],
    "gpu": [],
    "decisions": [],
    "pbt_digits": ["--seeds", "2"],
    "search": ["--small"],
    "resume_time": [],
    "soak": ["--minutes", "1"],
    "kills": ["--kills", "60"],
    "league": ["--minutes", "1"],
}
"""Arguments with which each benchmark takes minutes, by its name."""
AGAINST = {"runtime": ["--beside", "nested"], "tuning": ["--beside", "fresh"]}
"""Arguments for comparisons with another side within half an hour: only rows that have an aim, by name."""
PACKAGES = "trainkit-ml torch numpy scikit-learn joblib cloudpickle optuna hyperopt ray".split()


def machine() -> dict[str, Any]:
    """Return the facts on which figures depend, and which are the same in every run on this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(pages / 1e9),
        "gpus": _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python, the kernel, and the packages on which figures depend."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _said(*command: str) -> str:
    """Return the output of a program; "" if the program fails or is missing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def told(command: Sequence[str], most_s: float) -> dict[str, Any]:
    """Run a benchmark, and show its output; return the JSON of its last line, or {"error": reason}.

    Args:
        command: command of the benchmark.
        most_s: seconds after which the benchmark is killed.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, start_new_session=True
    )
    last, over = "", threading.Event()

    def read() -> None:
        nonlocal last
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if over.is_set():
                    return
                last = line
                if not line.startswith("{"):
                    print(line, end="", flush=True)

    # A daemon thread, because a process outside the benchmark's group may hold the pipe open.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        process.wait(max(0.0, most_s))
    except subprocess.TimeoutExpired:
        # The whole group is killed, because the benchmark may wait for a program that it started.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return {"error": "was ended, as no time was left"}
    except BaseException:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise
    else:
        reader.join(REST_S)
    finally:
        over.set()
    if process.returncode:
        return {"error": f"ended with code {process.returncode}"}
    try:
        found = json.loads(last)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": f"ended with no JSON, but with {last.strip()!r}"}


def write(record: Mapping[str, Any], path: Path) -> None:
    """Write a record, with each list of numbers on one line."""
    text = re.sub(r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()), json.dumps(record, indent=1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def main() -> int:
    """Run the benchmarks and write the record."""
    options = parser(__doc__)
    options.add_argument("--only", choices=BENCHMARKS, action="append", help="may be given again")
    options.add_argument("--against", choices=["ray"], help="measure Ray beside trainkit in a few rows")
    options.add_argument("--minutes", type=float, default=MINUTES, help="for all; default %(default)s")
    options.add_argument("--to", type=Path, help="the record; default results/bench-COMMIT.json")
    given = options.parse_args()
    begun = time.monotonic()
    commit = _said("git", "rev-parse", "HEAD")
    record: dict[str, Any] = {
        "commit": commit,
        "changed_since": _said("git", "status", "--porcelain").splitlines(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "load": {"at_start": round(os.getloadavg()[0], 1)},
        "small": given.small,
        "benchmarks": {},
    }
    load = record["load"]["at_start"]
    if load > 0.5:
        print(f"the load is {load}: times will be longer than on an idle machine")
    path = given.to or HERE.parent / "results" / f"bench-{commit[:10] or 'none'}.json"
    for name in given.only or BENCHMARKS:
        print(f"\n--- {name}", flush=True)
        start = time.monotonic()
        command = [sys.executable, "-m", f"benchmarks.{name}", *BENCHMARKS[name]]
        if given.against and name in AGAINST:
            command += ["--against", given.against, *AGAINST[name]]
        left_s = given.minutes * 60 - (start - begun)
        found = told([*command, "--small"] if given.small else command, left_s)
        record["benchmarks"][name] = found | {"took_s": round(time.monotonic() - start, 1)}
        if "error" in found:
            print(f"{name} {found['error']}", flush=True)
        record["took_s"] = round(time.monotonic() - begun, 1)
        write(record, path)
    print(f"\n{record['took_s'] / 60:.1f} minutes; the record is {path}")
    return int(any("error" in found for found in record["benchmarks"].values()))


if __name__ == "__main__":
    sys.exit(main())
