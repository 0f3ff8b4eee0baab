"""Kill a random worker every second while four programs call: `python -m benchmarks.soak --minutes 10`.

Each program has a separate session, with actors that restart, actors that do not, tasks and large arrays.
Every call must return the right value or fail with the documented error, nothing may hang, and nothing may be
left behind. Prints a line every ten seconds, and rows as one line of JSON; the exit code is 1 after any
fault.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import psutil

import trainkit
from benchmarks.rows import Report, Row, parser
from trainkit.errors import ActorDiedError, GetTimeoutError, TrainkitError, WorkerDiedError

DRIVERS = 4
PATIENCE_S = 60.0
MARK = "TRAINKIT_SOAK"
"""Variable in the environment of all processes of a soak, which distinguishes them from other sessions."""


class Adder:
    """Actor without state that returns sums of its arguments."""

    def add(self, left: int, right: int) -> int:
        return left + right

    def total(self, array: Any) -> float:
        return float(array.sum())


def add(left: int, right: int) -> int:
    """Return the sum, as a task."""
    return left + right


def outcome_of(ref: Any, expected: Any, allowed: tuple[type[Exception], ...]) -> str:
    """Return a call's outcome: "right", the name of a documented error, or a description of the fault."""
    try:
        value = trainkit.get(ref, timeout=PATIENCE_S)
    except GetTimeoutError:
        return "WRONG: it hangs"
    except allowed as error:
        return type(error).__name__
    except Exception as error:
        return f"WRONG: {type(error).__name__}: {error}"
    return "right" if value == expected else f"WRONG: {value!r} instead of {expected!r}"


def drive(seconds: float, seed: int) -> Counter[str]:
    """Call for `seconds`; return the number of calls by outcome."""
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    trainkit.init(num_cpus=2)
    plain = trainkit.remote(Adder)
    anew = trainkit.remote(max_restarts=-1, max_task_retries=-1)(Adder)
    task = trainkit.remote(max_retries=-1)(add)
    fragile = trainkit.remote(max_retries=0)(add)
    mortal, immortal = plain.remote(), anew.remote()
    array = np.ones(100_000)
    kept = trainkit.put(array)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        number = rng.randrange(10**6)
        count = rng.choice([1, 1, 10, 200])
        batches = [
            ([mortal.add.remote(number, index) for index in range(count)], (ActorDiedError,)),
            ([immortal.add.remote(number, index) for index in range(count)], ()),
            ([task.remote(number, index) for index in range(count)], ()),
            ([fragile.remote(number, index) for index in range(min(count, 10))], (WorkerDiedError,)),
        ]
        for refs, allowed in batches:
            for index, ref in enumerate(refs):
                outcomes[outcome_of(ref, number + index, allowed)] += 1
        load = kept if rng.random() < 0.5 else array
        outcomes[outcome_of(immortal.total.remote(load), 100_000.0, ())] += 1
        try:
            trainkit.get(mortal.add.remote(0, 0), timeout=PATIENCE_S)
        except ActorDiedError:
            mortal = plain.remote()
    trainkit.shutdown()
    return outcomes


def workers_of(driver: psutil.Process) -> list[int]:
    """Return the pids of the workers of a driver's session, without its node and its templates."""
    try:
        found = driver.children(recursive=True)
        return [process.pid for process in found if process.name().startswith("tk-")]
    except psutil.NoSuchProcess:
        return []


def soak(minutes: float, *, small: bool) -> int:
    """Run the programs and kill workers; return the exit code."""
    environment = {**os.environ, MARK: str(os.getpid())}
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", str(minutes * 60), "--seed"]
    drivers = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, text=True, env=environment)
        for seed in range(DRIVERS)
    ]  # they share this program's stderr, which shows the error of a driver that dies
    processes = [psutil.Process(driver.pid) for driver in drivers]
    rng, kills, start = random.Random(0), 0, time.monotonic()
    while any(driver.poll() is None for driver in drivers):
        time.sleep(1)
        targets = [pid for process in processes for pid in workers_of(process)]
        if targets:
            try:
                os.kill(rng.choice(targets), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                continue
        if kills % 10 == 0:
            print(f"{time.monotonic() - start:.0f} s: {kills} workers killed", flush=True)
    outcomes: Counter[str] = Counter()
    for driver in drivers:
        text = driver.communicate()[0]
        outcomes.update(
            json.loads(text.splitlines()[-1]) if driver.returncode == 0 else {"WRONG: crashed": 1}
        )
    time.sleep(2)
    left = [pid for pid in psutil.pids() if begun_here(pid)]
    wrong = sum(count for outcome, count in outcomes.items() if outcome.startswith("WRONG"))
    for outcome, count in outcomes.items():
        print(f"{count:>12,} {outcome}")
    with Report("soak", small=small) as report:
        report.add(Row("workers killed", better="").measured([kills]))
        report.add(
            Row("calls answered rightly, or with a documented error", better="").measured(
                [outcomes.total() - wrong]
            )
        )
        report.add(Row("calls answered wrongly", exact=True).measured([wrong]))
        report.add(Row("processes left behind", exact=True).measured([len(left)]))
    return int(bool(left) or wrong > 0)


def begun_here(pid: int) -> bool:
    """Return True if a program of this soak started the process, or the process is such a program."""
    try:
        return psutil.Process(pid).environ().get(MARK) == str(os.getpid())
    except psutil.Error:
        return False


def main() -> None:
    """Parse the command line and run."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=10)
    options.add_argument("--seconds", type=float, help="run as one of the programs, for so long")
    options.add_argument("--seed", type=int, default=0)
    arguments = options.parse_args()
    if arguments.seconds is None:
        sys.exit(soak(0.03 if arguments.small else arguments.minutes, small=arguments.small))
    try:
        print(json.dumps(drive(arguments.seconds, arguments.seed)))
    except TrainkitError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
