"""Pool of jobs of a session: its settings, and the thread that observes Ray and Slurm, and acts."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, did_you_mean, message_of
from trainkit.plugins.cluster.machines import Machines
from trainkit.plugins.job_pool import cluster, slurm
from trainkit.plugins.job_pool.rules import Job, Limits, Plan, Stage, wanted
from trainkit.plugins.ray.machines import Spread
from trainkit.plugins.slurm.settings import KINDS, settings_of
from trainkit.plugins.slurm.submit import seconds_of
from trainkit.resources import normalize
from trainkit.runtime import session

_TICK_S, _POLL_S = 1.0, 5.0
"""Seconds between two looks at Ray, and between two questions to Slurm, whose controller all users share."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0

_DEFAULTS = {"max_jobs": 1, "cpus": 1, "idle_s": 60, "signal_before": 120, "python": sys.executable}
_NOT_HERE = ("nodes", "max_requeues")
"""Settings of `trainkit submit` that a pool ignores: its jobs have one node, and are not requeued."""

_logger = logging.getLogger(__name__)


def _settings_from(address: str) -> dict[str, Any]:
    """Return the settings of a pool.

    Args:
        address: "slurm://NAME?KEY=VALUE&...", with the name of a cluster that has settings, and settings that
            override them. Both may be missing.

    Raises:
        ConfigError: the cluster or a setting is unknown, or a value is wrong.
    """
    parts = urlsplit(address)
    chosen: dict[str, Any] = {**_DEFAULTS, **settings_of(parts.netloc or None, Path.cwd())}
    known = [name for name in KINDS if name not in (*_NOT_HERE, "modules", "before", "options")]
    for name, text in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise ConfigError(
                f"{address} has no setting {name!r}.{did_you_mean(name, known)} Settings: {', '.join(known)}"
            )
        if KINDS[name] is int and not text.isdecimal():
            raise ConfigError(f"{address}: {name} must be a whole number, not {text!r}")
        chosen[name] = int(text) if KINDS[name] is int else text
    if zero := [name for name in ("max_jobs", "cpus") if chosen[name] < 1]:
        raise ConfigError(f"{address}: {zero[0]} must be at least 1, because no call could run")
    return {name: value for name, value in chosen.items() if name not in _NOT_HERE}


def _limits_of(settings: Mapping[str, Any], each: Mapping[str, float]) -> Limits:
    """Return the limits of a pool.

    Args:
        settings: settings of the pool.
        each: resources of each job.

    Raises:
        ConfigError: the limits contradict each other.
    """
    limit, before_s = settings.get("time"), settings["signal_before"]
    time_s = (seconds_of(str(limit)) if limit is not None else None) or math.inf
    if time_s <= 2 * before_s:
        raise ConfigError(
            f"time={limit} leaves too little time: a job takes no calls in the {before_s} s before its end: "
            "give a larger time, or a smaller signal_before"
        )
    total_s = settings.get("max_hours", math.inf) * 3600
    if total_s < time_s:
        raise ConfigError(f"max_hours={total_s / 3600:g} is less than the time={limit} of one job: give both")
    return Limits(settings["max_jobs"], each, settings["idle_s"], before_s, time_s, total_s)


def _resources_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `ray.init` that describe the node of a job.

    Ray would count the memory of the whole machine, so its parts of a job's memory are the ones that Ray
    takes of a machine's memory.
    """
    if not (gpus := str(settings.get("gpus", 0)).rpartition(":")[2]).isdecimal():
        raise ConfigError(f"gpus={settings['gpus']}: give a number, or a kind and a number, such as a100:2")
    found: dict[str, Any] = {"num_cpus": settings["cpus"], "num_gpus": int(gpus)}
    if (memory := settings.get("mem")) is not None:
        bytes_ = _bytes(str(memory))
        found |= {"object_store_memory": bytes_ * 3 // 10, "_memory": bytes_ * 7 // 10}
    return found


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "M")
    if not number.strip("0").isdecimal() or unit not in "KMGT":
        raise ConfigError(f"mem={text}: give MB, or a number with K, M, G or T, such as 16G")
    return int(number) << 10 * ("KMGT".index(unit) + 1)


@dataclass
class _Known:
    """Job of the pool, as last seen in Slurm's queue."""

    submitted: float
    seen: slurm.Seen = field(default_factory=slurm.Seen)
    has_joined: bool = False
    is_cancelled: bool = False


class JobPool(Spread):
    """Ray on a pool of Slurm's jobs, from `with` to its end.

    Args:
        address: address of the session, such as "slurm://?max_jobs=3".
        arguments: arguments of `ray.init`. Resources and labels are given to each job.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(self, address: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(Machines(()), arguments)
        self._settings = _settings_from(address)
        self._each = _resources_of(self._settings) | self._each
        amounts = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "_memory"}
        each = {name: self._each[key] for name, key in amounts.items() if key in self._each}
        each |= self._each.get("resources", {})
        self._limits = _limits_of(self._settings, normalize(each, what=address))
        self._jobs: dict[str, _Known] = {}
        self._spent_s, self._failures = 0.0, 0
        self._not_before = self._poll_at = -math.inf
        self._over = threading.Event()

    @contextlib.contextmanager
    def join(self, address: str) -> Iterator[None]:
        """Submit jobs that join the head at `address`, until the end of the `with` block.

        Raises:
            TrainkitError: Slurm would never run the jobs; the text has Slurm's words.
        """
        asked = {**self._each, "address": address, "is_kept": False}
        token = os.environ.get("RAY_AUTH_TOKEN") or Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
        self._slurm = slurm.SlurmJobs(self._settings, asked, token)
        with contextlib.closing(self._slurm):
            self._slurm.check()
            cluster.announce(self._limits.max_jobs, self._limits.each, slurm.node_of(""))
            thread = threading.Thread(target=self._run, name="trainkit-job-pool", daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._over.set()
                thread.join()

    def _run(self) -> None:
        while not self._over.wait(_TICK_S):
            try:
                self._step(SYSTEM.monotonic())
            except Exception as error:  # without this thread, all calls would wait forever
                self._pause(SYSTEM.monotonic(), f"the pool of jobs can't go on now: {message_of(error)}")

    def _step(self, now: float) -> None:
        if now >= self._poll_at:
            self._poll_at = now + _POLL_S
            self._take(self._slurm.seen(), now)
        nodes, waiting = cluster.look()
        found = {job: nodes[name] for job in self._jobs if (name := slurm.node_of(job)) in nodes}
        jobs = [self._job(job, found.get(job), now) for job in self._jobs]
        if ending := {found[job.id].id for job in jobs if job.stage is Stage.DRAINING}:
            session.leaving.update(cluster.actors_on(ending))
        # Ray's program stays when its node has ended.
        self._cancel(job.id for job in jobs if job.stage is Stage.ENDING)
        self._act(wanted(jobs, waiting, self._limits, self._spent_s), found, now)

    def _take(self, seen: Mapping[str, slurm.Seen], now: float) -> None:
        """Take over what Slurm says, and notice the jobs that have ended."""
        for job, its in seen.items():
            # Slurm may have taken a job although `sbatch` has failed, because the answer was lost.
            self._jobs.setdefault(job, _Known(now)).seen = its
        for job in self._jobs.keys() - seen:
            known = self._jobs.pop(job)
            self._spent_s += known.seen.ran_s
            if not known.has_joined and not known.is_cancelled:
                said = self._slurm.last_words(job) or "it has written nothing"
                self._pause(now, f"job {job} of the pool has ended before Ray has started on it:\n{said}")

    def _pause(self, now: float, text: str) -> None:
        """Warn, and submit nothing for a while, which is longer after each failure in a row."""
        if now < self._not_before:  # nothing was tried since the last warning
            _logger.info("%s", text)
            return
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures, 20))
        self._failures += 1
        self._not_before = now + pause_s
        _logger.warning("%s\nno further job of the pool is submitted for %.0f s", text, pause_s)

    def _job(self, job: str, node: cluster.Node | None, now: float) -> Job:
        known = self._jobs[job]
        stage = Stage.COMING if node is None else Stage.DRAINING if node.is_draining else Stage.JOINED
        if known.is_cancelled or (node is not None and not node.is_alive):
            stage = Stage.ENDING
        if stage is Stage.JOINED and not known.has_joined:
            known.has_joined, self._failures = True, 0
        common = Job(job, stage, known.seen.runs, now - known.submitted, known.seen.end - now)
        return common if node is None else replace(common, free=node.free, idle_s=node.idle_s)

    def _act(self, plan: Plan, nodes: Mapping[str, cluster.Node], now: float) -> None:
        for job in plan.drain:
            left_s = max(0.0, self._jobs[job].seen.end - now)
            cluster.drain(nodes[job], f"time limit of job {job}", end=SYSTEM.now() + left_s)
        self._cancel(plan.cancel)
        self._cancel(job for job in plan.release if cluster.drain(nodes[job], f"job {job} is idle"))
        for _ in range(plan.submit if now >= self._not_before else 0):
            self._jobs[self._slurm.submit()] = _Known(now)

    def _cancel(self, jobs: Iterable[str]) -> None:
        new = [job for job in jobs if not self._jobs[job].is_cancelled]
        self._slurm.cancel(new)
        for job in new:
            self._jobs[job].is_cancelled = True
