"""Plan of a campaign: pure functions from a seed and a number to the faults of one cycle."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

DRIVER, NODE, TEMPLATE, WORKER, GROUP, JOB = "driver node template worker group job".split()
LOADER, WRITER = "loader", "writer"
FILES, CLOCK, DISK = "files", "clock", "disk"

ENDING = ("kill", "term", "int", "usr1", "usr2")
"""Signals that end a program."""
SIGNALS = (*ENDING, "stop")
"""Signals to processes. "stop" is SIGSTOP, and SIGCONT some time later."""
FAULTS = (*SIGNALS, "full", "cut", "back")
"""All faults: signals, a full disk, a file cut in half between two runs, the clock set back by an hour."""
OTHERS = {DISK: "full", FILES: "cut", CLOCK: "back"}
"""The fault of each target that is not a process."""

STRIKES = 7
"""Largest number of faults in a cycle; the smallest is 3."""
BEGUN = 0.85
"""Share of the faults that wait until the program has acknowledged something in its current run."""
HOLD_S = (0.2, 1.2)
"""Range of the time that a process is stopped or the disk is full, in seconds."""

REQUESTS = ("term", "usr1", "usr2")
"""Signals with which a scheduler of jobs announces the end of a machine."""
REQUESTED = (DRIVER, JOB, DRIVER, JOB, WORKER)
"""Targets of requests: the program, all of its processes, and sometimes one worker.

TERM ends the worker; the worker must ignore the other requests.
"""
PHASES = {"setup": 0.5, "compile": 4.0, "step": 0.5, "validate": 0.2, "save": 0.1}
"""Phases of a program, and the longest time from a phase's begin to a request, in seconds."""
MOST_REQUESTS = 3
"""Largest number of requests in a cycle."""
TIMES = 4
"""A request comes after the first begin of a phase in a run, or after one of the next, before this number."""


@dataclass(frozen=True)
class Strike:
    """A fault at a moment of a program's run.

    Attributes:
        target: what the fault hits: one of the targets above.
        fault: one of `FAULTS`.
        begun: True if the delay begins with the first result that the run acknowledges; False if it begins at
            once.
        delay_s: seconds from there to the fault.
        hold_s: seconds that a stopped process or a full disk stays so.
        draw: number between 0 and 1 that selects one of several processes or files.
        phase: phase of the program that must have begun, instead of `begun`; "" for no such phase.
        times: number of times that this phase must have begun in the run.
    """

    target: str
    fault: str
    begun: bool
    delay_s: float
    hold_s: float
    draw: float
    phase: str = ""
    times: int = 0

    @property
    def ends(self) -> bool:
        """True if the program ends by this fault, and must be started again."""
        return self.target == FILES or (self.target in (DRIVER, GROUP, JOB) and self.fault in ENDING)

    @property
    def ends_worker(self) -> bool:
        """True if the fault ends a single worker, whose steps since the last checkpoint are lost."""
        return self.target == WORKER and self.fault in ("kill", "term")

    @property
    def asks(self) -> bool:
        """True if the fault asks the program to end, in a way that the program could ignore."""
        return self.ends and self.fault in ("int", *REQUESTS)

    def __str__(self) -> str:
        return f"{self.target} {self.fault}{f' in {self.phase}' if self.phase else ''}"


@dataclass(frozen=True)
class Cycle:
    """Faults of one cycle, in which a program is started until it completes.

    Attributes:
        number: number of the cycle in the campaign.
        part: name of the program.
        strikes: faults in the order of time.
    """

    number: int
    part: str
    strikes: tuple[Strike, ...]

    @property
    def disk(self) -> bool:
        """True if the program's folder needs a disk of its own, which can be filled."""
        return any(strike.target == DISK for strike in self.strikes)

    @property
    def requests(self) -> bool:
        """True if all faults are requests to end."""
        return bool(self.strikes) and all(strike.phase for strike in self.strikes)

    @property
    def clock(self) -> bool:
        """True if the program needs a clock that can be set back."""
        return any(strike.target == CLOCK for strike in self.strikes)


def cycle(
    seed: int,
    number: int,
    targets: Mapping[str, Sequence[str]],
    spans: Mapping[str, float],
    phases: Mapping[str, Sequence[str]] | None = None,
) -> Cycle:
    """Return cycle `number` of the campaign with this seed. Each part has every len(targets)-th cycle.

    Args:
        seed: seed of the campaign.
        number: number of the cycle, from 0.
        targets: possible targets by part.
        spans: longest delay of a fault by part, in seconds.
        phases: phases by part, for a cycle of requests to end; None for a cycle of all faults.
    """
    names = list(targets)
    round_number, place = divmod(number, len(names))
    random.Random(f"{seed} round {round_number}").shuffle(names)
    part = names[place]
    rng = random.Random(f"{seed} cycle {number}")
    if phases is not None:
        count = rng.randint(1, MOST_REQUESTS)
        return Cycle(number, part, tuple(_request(rng, phases[part]) for _ in range(count)))
    strikes = tuple(_strike(rng, targets[part], spans[part]) for _ in range(rng.randint(3, STRIKES)))
    return Cycle(number, part, strikes)


def _request(rng: random.Random, phases: Sequence[str]) -> Strike:
    phase = rng.choice(phases)
    times = 1 if phase in ("setup", "compile") else rng.randrange(1, TIMES)
    delay_s = rng.uniform(0, PHASES[phase])
    return Strike(
        rng.choice(REQUESTED), rng.choice(REQUESTS), False, delay_s, 0.0, rng.random(), phase, times
    )


def _strike(rng: random.Random, targets: Sequence[str], span_s: float) -> Strike:
    target = rng.choice(targets)
    fault = OTHERS.get(target) or rng.choice(SIGNALS)
    return Strike(
        target, fault, rng.random() < BEGUN, rng.uniform(0, span_s), rng.uniform(*HOLD_S), rng.random()
    )


def as_json(strike: Strike) -> dict[str, object]:
    """Return a fault as plain data, for the state of a campaign."""
    return asdict(strike)
