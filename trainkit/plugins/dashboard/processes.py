"""Data on a machine and the user's running sessions for the dashboard: processors, memory, GPUs, jobs of
Slurm, processes, tasks, waiting requests, and output.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.responses import Response

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError, NodeDiedError, TrainkitError
from trainkit.plugins.compat.core import metrics
from trainkit.plugins.dashboard import files
from trainkit.plugins.dashboard.endpoints import (
    DOWNLOAD,
    Call,
    Endpoint,
    QueryParameter,
    require_writable,
)
from trainkit.plugins.dashboard.experiments.reading import NotFoundError
from trainkit.plugins.dashboard.openapi import NUMBER, WHOLE, many, ref
from trainkit.plugins.dashboard.texts import last_lines
from trainkit.plugins.profile import ranks
from trainkit.plugins.slurm.jobs import call as slurm
from trainkit.plugins.slurm.jobs import states_of, submitted
from trainkit.plugins.slurm.reasons import state_words
from trainkit.runtime.local.system import boot, process
from trainkit.runtime.local.wire import sessions as local_sessions
from trainkit.runtime.local.wire.sessions import KINDS, Session, SessionState, state_of

MAX_TRACE_S = 300.0
"""Maximum duration of a trace in seconds."""
METRICS = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of Prometheus' text format."""
MAX_LOGS = 20
"""Maximum number of log files that are read for one request; the most recently changed files are chosen."""
MAX_JOBS = 50
"""Maximum number of jobs that have ended to show; the latest are chosen."""
MAX_NODES = 1000
"""Maximum number of Slurm's nodes to show."""
_QUEUE = {
    "id": "%i",
    "JobState": "%T",
    "Reason": "%r",
    "NodeList": "%N",
    "EndTime": "%e",
    "TimeLimit": "%l",
    "name": "%j",
}
_TICKS = os.sysconf("SC_CLK_TCK")

Row = dict[str, Any]


class ProcessorMeter:
    """Meter of the CPU use of processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Maps each pid to the process's start time, its CPU time in seconds, and the time of the measurement.
        self._last: dict[int, tuple[int, float, float]] = {}

    def percent(self, pid: int) -> float | None:
        """Return a process's CPU use since the last call, in percent of one CPU; None at the first call."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            return None
        start, used, now = int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS, SYSTEM.monotonic()
        with self._lock:
            before = self._last.get(pid)
            if before is None or before[0] != start:
                for ended in [each for each in self._last if not process.exists(each)]:
                    del self._last[ended]
                self._last[pid] = (start, used, now)
                return None
            # The kernel counts CPU time in hundredths of a second, so shorter intervals are too imprecise.
            if now - before[2] >= 0.2:
                self._last[pid] = (start, used, now)
            return round(100 * (used - before[1]) / max(now - before[2], 1e-3), 1)


_METER = ProcessorMeter()


def sessions() -> list[Row]:
    """Return a row for each running session of the user, newest first."""
    return [{**SessionState(session=session).plain(), "machine": ""} for session in _living()]


def _living() -> list[Session]:
    return local_sessions.sessions(boot.home())


def _session_of(call: Call) -> Session:
    for session in _living():
        if session.id == call.path["session"]:
            return session
    raise NotFoundError(f"you have no running session {call.path['session']!r}")


def _session(call: Call) -> Row:
    session = _session_of(call)
    state = state_of(session, [*KINDS, "objects", "workers", "logs", "calls"])
    calls = {each["actor_id"]: each["calls"] for each in state.lists.pop("calls")}
    for actor in state.lists["actors"]:
        actor["calls"] = calls.get(actor["actor_id"])
    devices, memory_of = _gpus()
    workers, logs = state.lists.pop("workers"), state.lists.pop("logs")
    node = {"pid": session.node, "name": "node", "worker_type": "NODE"}
    return {
        **state.plain(),
        "machine": "",
        "workers": [_worker(each, memory_of) for each in (node, *workers)],
        "ranks": ranks.rows(each["pid"] for each in workers),
        "gpus": devices,
        "logs": [Path(each["path"]).name for each in logs],
    }


def _worker(worker: Row, memory_of: dict[int, int]) -> Row:
    pid = worker["pid"]
    return {
        "pid": pid,
        "name": worker["name"],
        "kind": worker["worker_type"],
        "cpu_percent": _METER.percent(pid),
        "rss_bytes": process.status_bytes(pid, b"VmRSS:"),
        "own_bytes": process.own_pages_bytes(pid),
        "shared_bytes": process.status_bytes(pid, b"RssShmem:"),
        "gpu_bytes": memory_of.get(pid),
        "threads": process.status_number(pid, b"Threads:"),
    }


def _gpus() -> tuple[list[Row], dict[int, int]]:
    """Return the machine's GPUs, and the GPU memory in bytes for each pid; both are empty without NVML."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # the machine has no NVIDIA driver
        return [], {}
    try:
        devices, memory_of = [], dict[int, int]()
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = _reading(pynvml.nvmlDeviceGetMemoryInfo, device)
            use = _reading(pynvml.nvmlDeviceGetUtilizationRates, device)
            devices.append(
                {
                    "index": index,
                    "name": str(pynvml.nvmlDeviceGetName(device)),
                    "used_bytes": memory and int(memory.used),
                    "total_bytes": memory and int(memory.total),
                    "percent": use and float(use.gpu),
                }
            )
            for each in _reading(pynvml.nvmlDeviceGetComputeRunningProcesses, device) or ():
                memory_of[each.pid] = memory_of.get(each.pid, 0) + int(each.usedGpuMemory or 0)
        return devices, memory_of
    finally:
        pynvml.nvmlShutdown()


def _machine(call: Call) -> Row:
    lines = [line.split() for line in Path("/proc/meminfo").read_text().splitlines()]
    memory = {line[0]: 1024 * int(line[1]) for line in lines}
    return {
        "hostname": socket.gethostname(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "used_bytes": memory["MemTotal:"] - memory["MemAvailable:"],
        "total_bytes": memory["MemTotal:"],
        "gpus": _gpus()[0],
        "slurm": None if shutil.which("squeue") is None else _slurm(),
    }


def _slurm() -> Row:
    """Return the user's jobs and the nodes of the cluster, or the reason why Slurm does not answer."""
    try:
        jobs = _jobs()
        lines = slurm("scontrol", "--details", "--oneliner", "show", "node").splitlines()
        nodes = [_node(line) for line in lines if line.startswith("NodeName=")]
    except TrainkitError as error:
        return {"problem": str(error), "jobs": [], "nodes": [], "number_of_nodes": 0}
    return {"problem": "", "jobs": jobs, "nodes": nodes[:MAX_NODES], "number_of_nodes": len(nodes)}


def _jobs() -> list[Row]:
    """Return the user's jobs in the queue, and the jobs of `trainkit submit` that have ended."""
    lines = slurm("squeue", "--me", "--noheader", f"--format={'|'.join(_QUEUE.values())}").splitlines()
    queued = [dict(zip(_QUEUE, line.split("|", len(_QUEUE) - 1), strict=True)) for line in lines]
    rows = [{"id": each["id"], "name": each["name"], "state": state_words(each)} for each in queued]
    known = {row["id"].partition("_")[0] for row in rows}
    ended = [job for job in submitted() if job.id not in known][-MAX_JOBS:]
    for job, tasks in (states_of(ended[::-1]) if ended else {}).items():
        for task, fields in tasks.items():
            name = f"{job.id}_{task}" if task else job.id
            rows.append({"id": name, "name": job.name, "state": state_words(fields)})
    return rows


def _node(line: str) -> Row:
    """Return what a line of Slurm says about a node."""
    fields = dict(re.findall(r"(\w+)=(\S+)", line))

    def gpus(name: str) -> int:
        return sum(map(int, re.findall(r"gpu(?::[^:,(]+)?:(\d+)", fields.get(name, ""))))

    return {
        "name": fields["NodeName"],
        "state": fields["State"].lower(),
        "cpus": int(fields["CPUTot"]),
        "used_cpus": int(fields["CPUAlloc"]),
        "bytes": 2**20 * int(fields["RealMemory"]),
        "used_bytes": 2**20 * int(fields["AllocMem"]),
        "gpus": gpus("Gres"),
        "used_gpus": gpus("GresUsed"),
    }


def _reading(read: Callable[[Any], Any], device: Any) -> Any:
    """Read a value of a GPU; None if unsupported, such as the utilization of a divided GPU (MIG)."""
    import pynvml

    try:
        return read(device)
    except pynvml.NVMLError:
        return None


def _logs(call: Call) -> Row:
    state = _answered(state_of(_session_of(call), ["logs"]))
    paths = {path.name: path for path in (Path(each["path"]) for each in state.lists["logs"])}
    wanted = call.query["worker"]
    if wanted and wanted not in paths:
        raise NotFoundError(f"this session has no log {wanted[:100]!r}")
    chosen = [paths[wanted]] if wanted else [path for path in paths.values() if path.is_file()]
    chosen = sorted(chosen, key=lambda path: path.stat().st_mtime)[-MAX_LOGS:]
    return {"files": last_lines(chosen, call.query["search"], call.query["lines"])}


def _answered(state: SessionState) -> SessionState:
    if state.problem:
        raise NodeDiedError(state.problem)
    return state


def _worker_of(call: Call, session: Session) -> int:
    state = _answered(state_of(session, ["workers"]))
    text = call.path["pid"]
    pid = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
    if pid not in [each["pid"] for each in state.lists["workers"]]:
        raise NotFoundError(f"this session has no worker {text[:100]!r}")
    return pid


def _stacks(call: Call) -> Row:
    pid = _worker_of(call, _session_of(call))
    found = process.stacks(pid)
    if not found:
        raise NotFoundError(f"process {pid} provides no stacks: it is not a worker, or has just ended")
    return {"pid": pid, "text": found}


def _metrics(call: Call) -> Response:
    folder = _session_of(call).folder
    try:
        text = metrics.prometheus_text(folder / metrics.FOLDER)
    except (OSError, ValueError):  # Prometheus' library raises one of these errors if its folder was removed.
        if folder.is_dir():
            raise
        raise NotFoundError(f"the session in {folder} has just ended") from None
    return Response(text, media_type=METRICS)


def _trace(call: Call) -> Response:
    """Record a trace of the next training steps of a rank, and return it; the server keeps no copy."""
    require_writable(call)
    session = _session_of(call)
    pid = _worker_of(call, session)
    timeout_s = call.body.get("timeout_s", ranks.TRACE_S)
    if timeout_s > MAX_TRACE_S:
        raise ConfigError(f"timeout_s={timeout_s} is too long: the maximum is {MAX_TRACE_S:g} seconds")

    def ended() -> bool:
        return call.server.is_ending or call.gone.is_set()

    file = ranks.trace(pid, session.folder, call.body["steps"], timeout_s, ended=ended)
    return files.download(file, f"trace-{pid}.json", call.request)


_SESSION = "/api/sessions/{session}"
SESSIONS = (
    Endpoint(
        "/api/machine",
        "This machine: processors, memory, GPUs, and Slurm's jobs and nodes.",
        _machine,
        ref("MachineState"),
        waits=True,
    ),
    Endpoint(
        "/api/sessions",
        "Your sessions on this machine and on hosts.",
        lambda call: call.server.sessions(),
        many(ref("SessionHead")),
    ),
    Endpoint(
        _SESSION,
        "Processes, actors, tasks, placement groups of one session, and waiting requests with their reasons.",
        _session,
        ref("Session"),
        waits=True,
    ),
    Endpoint(
        f"{_SESSION}/logs",
        "Printed output of a session's workers.",
        _logs,
        ref("Logs"),
        (
            QueryParameter("worker", "one of the session's `logs` (default: the latest)", default=""),
            files.SEARCH,
            files.LINES,
        ),
        waits=True,
    ),
    Endpoint(
        f"{_SESSION}/metrics",
        "The metrics of a session (`trainkit.util.metrics`), in Prometheus' text format.",
        _metrics,
        METRICS,
    ),
    Endpoint(
        f"{_SESSION}/workers/{{pid}}/stacks",
        "Python stacks of a worker's threads.",
        _stacks,
        ref("Stacks"),
        body={},
        waits=True,
        method="POST",
    ),
    Endpoint(
        f"{_SESSION}/workers/{{pid}}/trace",
        "A torch.profiler trace of the next steps of a trainer's rank.",
        _trace,
        DOWNLOAD,
        body={
            "steps": {**WHOLE, "minimum": 1, "maximum": ranks.MAX_STEPS},
            "timeout_s": {**NUMBER, "exclusiveMinimum": 0, "maximum": MAX_TRACE_S},
        },
        required=("steps",),
        waits=True,
        in_turn=False,
        method="POST",
    ),
)
"""Endpoints on this machine and its sessions."""
