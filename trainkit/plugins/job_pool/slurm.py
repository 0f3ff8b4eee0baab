"""Jobs of Slurm that each run Ray on one node: the batch script, and Slurm's commands."""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, TrainkitError
from trainkit.plugins.slurm.batch import options_of, preparation
from trainkit.plugins.slurm.jobs import call, jobs_folder
from trainkit.plugins.slurm.submit import seconds_of
from trainkit.settings import JOB_END_TIME

_QUEUED = ("PENDING", "CONFIGURING")
_JOB = "@job@"
"""Place of the job's id in its batch script."""
_LAST_LINES = 10
_RECONNECT_S = 20
"""Seconds after which a job ends whose connection to the driver is lost."""

_BODY = """\
unset RAY_AUTH_TOKEN {end_time}
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token} RAY_gcs_rpc_server_reconnect_timeout_s={reconnect_s}
exec {python} -m trainkit.plugins.ray.node {asked}
"""


@dataclass(frozen=True)
class Seen:
    """Job in Slurm's queue.

    Attributes:
        runs: True if the job has left the queue.
        ran_s: seconds that the job has run.
        end: time of its time limit, on the clock that never decreases; infinity if unknown.
    """

    runs: bool = False
    ran_s: float = 0.0
    end: float = math.inf


class SlurmJobs:
    """Jobs of one pool, which end with this program, however it ends.

    Args:
        settings: settings of the pool.
        asked: argument of Ray's program on a node, without the node's name.
        token: token of the Ray cluster.

    Attributes:
        name: name of all jobs of the pool.
    """

    def __init__(self, settings: Mapping[str, Any], asked: Mapping[str, Any], token: str) -> None:
        self.name = f"{settings.get('job_name', 'trainkit')}-pool-{secrets.token_hex(4)}"
        self._folder = jobs_folder() / self.name
        self._folder.mkdir(parents=True, mode=0o700)
        # Anyone with the token can run programs in the jobs, so other users must not read the file.
        (self._folder / "token").touch(mode=0o600)
        (self._folder / "token").write_text(token)
        self._script = self._folder / "script.sh"
        self._script.write_text(self._text(settings, asked))
        # This shell outlives a killed program: its input ends with the program. A line ends it, too, because
        # children that the program has forked keep its input open.
        folder = shlex.quote(str(self._folder))
        end = f"scancel --name={shlex.quote(self.name)}; code=$?; rm -rf {folder}; exit $code"
        self._guard = subprocess.Popen(
            ["sh", "-c", f"trap '' INT TERM HUP USR1 USR2; read line; {end}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

        options = {
            "job-name": self.name,
            "chdir": os.getcwd(),
            "output": f"{self._folder}/".replace("%", "%%") + "output-%j.txt",
            "no-requeue": None,
            "nodes": 1,
            "ntasks-per-node": 1,
            # The values in this program are secret, or tell of its own job.
            "export": f"ALL,RAY_AUTH_TOKEN=,{JOB_END_TIME}=",
        }
        self._sbatch = ["sbatch", "--parsable", *options_of(options, settings), str(self._script)]

    def _text(self, settings: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
        # Slurm may run two jobs on one machine, where their files must not meet.
        where = f"{os.environ.get('RAY_TMPDIR') or '/tmp'}/ray-{os.urandom(4).hex()}-{_JOB}"
        words = json.dumps({**asked, "name": node_of(_JOB), "folder": where, "part": "0"})
        body = _BODY.format(
            end_time=JOB_END_TIME,
            token=shlex.quote(f"{self._folder / 'token'}"),
            reconnect_s=_RECONNECT_S,
            python=shlex.quote(str(settings["python"])),
            asked=shlex.quote(words).replace(_JOB, "'$SLURM_JOB_ID'"),
        )
        return "\n".join(["#!/bin/bash", *preparation(settings), body])

    def check(self) -> None:
        """Raise an error if Slurm would never run such a job."""
        call(self._sbatch[0], "--test-only", *self._sbatch[1:])

    def submit(self) -> str:
        """Submit a job, and return its id."""
        return call(*self._sbatch).split(";")[0]

    def seen(self) -> dict[str, Seen]:
        """Return the jobs that wait, run or are ending, by id."""
        lines = call("squeue", f"--name={self.name}", "--noheader", "--format=%i|%T|%M|%L").splitlines()
        rows, now = (line.split("|") for line in lines), SYSTEM.monotonic()
        return {
            job: Seen(state not in _QUEUED, _seconds(ran), now + _seconds(left))
            for job, state, ran, left in rows
        }

    def cancel(self, jobs: Iterable[str]) -> None:
        """Cancel jobs; jobs that have ended are left out."""
        if words := list(jobs):
            call("scancel", *words)

    def last_words(self, job: str) -> str:
        """Return the last lines of a job's output."""
        path = self._folder / f"output-{job}.txt"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(lines[-_LAST_LINES:])

    def close(self) -> None:
        """Cancel all jobs, and remove the pool's files."""
        self._guard.communicate(b"\n")
        if code := self._guard.returncode:
            raise TrainkitError(f"the jobs named {self.name} remain: scancel ended with {code}, cancel them")


def node_of(job: str) -> str:
    """Return the name of a job's node in Ray."""
    return f"slurm-{job}"


def _seconds(text: str) -> float:
    try:
        seconds = seconds_of(text)
        return math.inf if seconds is None else seconds
    except ConfigError:  # Slurm's words for an unknown time, such as NOT_SET
        return math.inf
