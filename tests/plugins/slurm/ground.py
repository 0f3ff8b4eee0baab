"""A real Slurm of several nodes on this machine, for tests.

All nodes share this machine: its cores, its /tmp and its loopback address. `sacct` is missing, since it
needs a database server. By hand, for two hours: `python -m tests.plugins.slurm.ground FOLDER [NODES]`.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel")
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin"

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=10
MpiDefault=none
KillWait={kill_wait_s}
MinJobAge=600
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why Slurm can't be started here, for `pytest.mark.skipif`; empty if it can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"{', '.join(absent)} is missing: apt-get install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "only root can start Slurm"


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


class Slurm:
    """Slurm with nodes n1, n2, ... on this machine, from `with` to its end.

    Args:
        folder: empty folder for its files; other users must be able to reach it if they use Slurm.
        nodes: number of nodes.
        cpus: cores that each node offers.
        gpus: GPUs that each node offers, which only Slurm believes in.
        kill_wait_s: seconds between SIGTERM and SIGKILL when a job ends at its limit.

    Attributes:
        conf: the configuration file.
        env: environment in which Slurm's commands, and `trainkit`, find this Slurm.
        nodes: names of the nodes.
    """

    def __init__(
        self, folder: str | Path, nodes: int = 3, *, cpus: int = 2, gpus: int = 0, kill_wait_s: int = 5
    ) -> None:
        self.folder = Path(folder).resolve()
        self.conf = self.folder / "slurm.conf"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        self.env |= {"SLURM_CONF": f"{self.conf}", "PATH": _path()}
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self._cpus, self._gpus, self._kill_wait_s = cpus, gpus, kill_wait_s
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Slurm:
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o755)
        try:
            self._start_munge()
            self._write_conf()
            self._start("slurmctld", "slurmctld", "-D")
            for node in self.nodes:
                self.start_node(node)
            self.wait(lambda: self._idle() == len(self.nodes), "all nodes are idle")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def run(self, *command: str | Path, user: str | None = None, **options: Any) -> str:
        """Run a command, as `user` or as root, which must succeed; return what it printed."""
        if user is not None:
            options |= {"user": user, "group": user, "extra_groups": []}
        options.setdefault("env", self.env)
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, **options)
        if done.returncode:
            raise RuntimeError(f"{words} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def job(self, job_id: str | int) -> dict[str, str]:
        """Return what `scontrol show job` says about a job: JobState, Reason, Restarts, NodeList, ..."""
        words = self.run("scontrol", "show", "job", "-o", str(job_id)).splitlines()[0].split(" ")
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, job_id: str | int, *states: str, seconds: float = 120) -> dict[str, str]:
        """Wait until a job is in one of these states, such as RUNNING or COMPLETED; return its fields."""
        self.wait(lambda: self.job(job_id)["JobState"] in states, f"job {job_id} is {states}", seconds)
        return self.job(job_id)

    def wait(self, condition: Any, words: str, seconds: float = 60) -> None:
        """Wait until `condition()` is true; after `seconds`, raise an error with the logs' ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = [f"{log}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log"))]
                raise TimeoutError(f"not after {seconds} s: {words}\n{self._queue()}\n" + "\n".join(logs))
            time.sleep(0.05)

    def kill_node(self, node: str) -> None:
        """Let a node die: kill its daemon, the keepers of its jobs, and all their processes."""
        # The daemon first: it would report the end of its jobs. A keeper that has just begun is its child.
        daemon = self._daemons.pop(node)
        daemon.send_signal(signal.SIGSTOP)
        started = psutil.Process(daemon.pid).children()
        daemon.kill()
        daemon.wait()
        for keeper in [*started, *self._keepers(node)]:
            _kill_tree(keeper)

    def kill_keepers(self, node: str) -> None:
        """Kill the keepers of a node's jobs, but not the jobs' processes."""
        for keeper in self._keepers(node):
            keeper.kill()

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, at first or after `kill_node`."""
        self._start(node, "slurmd", "-D", "-N", node)

    def mark_down(self, node: str) -> None:
        """Tell the controller that a node is dead, in place of waiting until it notices."""
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=died")

    def stop(self) -> None:
        """End all jobs and all daemons; no process is left."""
        # Nodes first: what a job does at a cancellation would delay the end.
        for node in [name for name in self._daemons if name in self.nodes]:
            self.kill_node(node)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        self.wait(self._end_rest, "no process of a job is left")

    def _end_rest(self) -> bool:
        """Kill keepers of jobs, and processes of jobs whose keeper is dead; return True if there are none."""
        rest = [each for node in self.nodes for each in self._keepers(node)]
        rest += [each for each in psutil.process_iter() if self._is_of_a_job(each)]
        for each in rest:
            _kill_tree(each)
        return not rest

    def _is_of_a_job(self, process: psutil.Process) -> bool:
        variables: dict[str, str] = {}
        with contextlib.suppress(psutil.Error):
            variables = process.environ()
        return "SLURM_JOB_ID" in variables and variables.get("SLURM_CONF") == f"{self.conf}"

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=self.folder
            )

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        paths = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid"}
        paths |= {"log-file": folder / "log", "seed-file": folder / "seed"}
        options = [f"--{name}={path}" for name, path in paths.items()]
        self._start("munged", "munged", "--foreground", "--force", *options)
        self.wait((folder / "socket").is_socket, "munged listens")

    def _write_conf(self) -> None:
        host = socket.gethostname().split(".")[0]
        ports = _free_ports(len(self.nodes) + 1)
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={self._cpus} "
            "RealMemory=4000 State=UNKNOWN" + f" Gres=gpu:{self._gpus}" * bool(self._gpus)
            for node, port in zip(self.nodes, ports[1:], strict=True)
        ]
        if self._gpus:
            lines.insert(0, "GresTypes=gpu")
            for number in range(self._gpus):
                (self.folder / f"gpu{number}").touch()
            files = f"{self.folder}/gpu[0-{self._gpus - 1}]"
            (self.folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={files}\n")
        named = {"host": host, "folder": self.folder, "ports": ports, "nodes": "\n".join(lines)}
        self.conf.write_text(_CONF.format(**named, kill_wait_s=self._kill_wait_s))

    def _idle(self) -> int:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], env=self.env, capture_output=True, text=True, check=False
        )
        return done.stdout.split().count("idle")

    def _queue(self) -> str:
        done = subprocess.run(["squeue"], env=self.env, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def _keepers(self, node: str) -> list[psutil.Process]:
        """Return the processes that keep the jobs of a node, by their open log file."""
        log = f"{self.folder / node}.log"
        named = (each for each in psutil.process_iter() if _name(each) == "slurmstepd")
        return [each for each in named if log in _open_files(each)]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


def _open_files(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return [each.path for each in process.open_files()]
    return []


def _kill_tree(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


def _free_ports(count: int) -> list[int]:
    """Return ports on which nobody listens, below those that the system gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as each, contextlib.suppress(OSError):
            each.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found


if __name__ == "__main__":
    with Slurm(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3) as ground:
        sys.stdout.write(f"export SLURM_CONF={ground.conf}\n")
        sys.stdout.flush()
        time.sleep(7200)
