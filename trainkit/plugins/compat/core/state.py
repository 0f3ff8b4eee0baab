"""Lists of a session's actors, tasks, objects, machines and processes, under the names of `ray.util.state`.

Each list consists of rows. A row is a dictionary, and `row.state` equals `row["state"]`. A row has trainkit's
columns, and the columns of Ray that trainkit can fill. Finished tasks and freed objects are not listed,
because trainkit does not record them.
"""

from __future__ import annotations

import fnmatch
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

from trainkit.clock import SYSTEM
from trainkit.errors import ConfigError
from trainkit.runtime.api import get_runtime_context, nodes
from trainkit.runtime.refs import ObjectRef
from trainkit.runtime.session import engine

__all__ = [
    "get_actor",
    "get_log",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_logs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "list_workers",
]

P = ParamSpec("P")

Filter = tuple[str, str, str | bool | int | float]

_LIMIT = 100
_MOST = 10_000
_FOLLOW_S = 0.5


class State(dict[str, Any]):
    """Row of a listing. Each column is also an attribute of the row."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"a row has no column {name!r}, only {', '.join(sorted(self))}") from None

    def asdict(self) -> dict[str, Any]:
        """Return the columns as a plain `dict`."""
        return dict(self)


def list_actors(
    address: str | None = None,
    filters: Sequence[Filter] | None = None,
    limit: int = _LIMIT,
    timeout: float = 30,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[State]:
    """List the session's actors, including dead actors.

    Args:
        address: no effect, because only the session of this program can be listed.
        filters: conditions that must all hold, such as [("state", "=", "ALIVE"), ("name", "!=", "a")].
            Strings are compared without regard to case.
        limit: maximum number of rows to return, at most 10,000.
        timeout: no effect, because the list is available immediately.
        detail: no effect, because every row always has all its columns.
        raise_on_missing_output: no effect, because only rows beyond `limit` can be missing.
        _explain: no effect.

    Raises:
        ConfigError: a filter names an unknown column or has a predicate other than "=" and "!=", or `limit`
            is out of range.
    """
    return _selected("actors", filters, limit)


def _listing(like: Callable[P, list[State]], kind: str, doc: str) -> Callable[P, list[State]]:
    signature = inspect.signature(like)

    @functools.wraps(like)
    def listing(*args: P.args, **kwargs: P.kwargs) -> list[State]:
        given = signature.bind(*args, **kwargs).arguments
        return _selected(kind, given.get("filters"), given.get("limit", _LIMIT))

    listing.__name__ = listing.__qualname__ = f"list_{kind}"
    listing.__doc__ = f"{doc}; the arguments are those of `list_actors`."
    return listing


list_tasks = _listing(list_actors, "tasks", "List the tasks that wait or run")
list_objects = _listing(list_actors, "objects", "List the objects in shared memory, a row for each")
list_nodes = _listing(list_actors, "nodes", "List the machines of the session")
list_placement_groups = _listing(list_actors, "placement_groups", "List the placement groups")
list_workers = _listing(list_actors, "workers", "List the living processes of the session")


def _getting(kind: str, column: str, doc: str) -> Callable[..., State | None]:
    def get(id: str, address: str | None = None, timeout: float = 30, _explain: bool = False) -> State | None:
        return next((row for row in _rows(kind) if row.get(column) == id), None)

    get.__name__ = get.__qualname__ = f"get_{kind.removesuffix('s')}"
    get.__doc__ = f"Return the row of the {doc} with the id `id`; None if it does not exist."
    return get


get_actor = _getting("actors", "actor_id", "actor")
get_node = _getting("nodes", "node_id", "machine")
get_worker = _getting("workers", "worker_id", "process")
get_placement_group = _getting("placement_groups", "placement_group_id", "placement group")


def get_objects(
    id: str, address: str | None = None, timeout: float = 30, _explain: bool = False
) -> list[State]:
    """Return the rows of the object with the id `id`; [] if the object is not in shared memory."""
    return [row for row in _rows("objects") if row["object_id"] == id]


def get_task(
    id: str | ObjectRef[Any], address: str | None = None, timeout: float = 30, _explain: bool = False
) -> State | None:
    """Return the row of a task that this process started; None if the task has ended or was started by a
    different process.

    Args:
        id: id of the task from `get_runtime_context().get_task_id()`, or the reference to its first result.
        address: see `list_actors`.
        timeout: see `list_actors`.
        _explain: see `list_actors`.
    """
    # On Ray, the id of a task's result begins with the id of the task. On other engines, the result and the
    # task have the same id.
    wanted = id.hex() if isinstance(id, ObjectRef) else id
    return next((row for row in _rows("tasks") if row["task_id"] and wanted.startswith(row["task_id"])), None)


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: float = 30,
) -> dict[str, list[str]]:
    """Return the names of the workers' output files, under the keys `"worker_out"` and `"worker_err"`.

    Args:
        address: see `list_actors`.
        node_id: no effect, because all files are on this machine.
        node_ip: no effect, for the same reason as `node_id`.
        glob_filter: pattern for file names, such as "*train*".
        timeout: see `list_actors`.
    """
    found: dict[str, list[str]] = {}
    for path in _log_files():
        if glob_filter is None or fnmatch.fnmatchcase(path.name, glob_filter):
            found.setdefault(f"worker_{_suffix(path)}", []).append(path.name)
    return found


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = -1,
    timeout: float = 30,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str | None = "strict",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Iterator[str]:
    """Yield the text that a worker has printed, in chunks.

    Args:
        address: see `list_actors`.
        node_id: see `list_logs`.
        node_ip: see `list_logs`.
        filename: name of a file that `list_logs` returned. If no file name is given, `actor_id`, `task_id` or
            `pid` selects the worker.
        actor_id: id of the actor that the worker runs.
        task_id: id of the task that the worker runs now.
        pid: process id of the worker.
        follow: True: also yield later output, until the worker ends.
        tail: number of last lines to return; -1 means all lines.
        timeout: see `list_actors`.
        suffix: "out" for standard output, "err" for standard error.
        encoding: text encoding of the output; None means UTF-8.
        errors: name of the error handling, as for `bytes.decode`; None means "strict".
        submission_id: must be None, because trainkit has no submitted jobs.
        attempt_number: no effect.
        _interval: seconds between two reads, if `follow` is True; None means 0.5.
        filter_ansi_code: must be False, because the output is never changed.

    Raises:
        ConfigError: no argument selects a worker, or the worker has no output.
    """
    if submission_id is not None or filter_ansi_code:
        raise ConfigError("get_log() has no submission_id and no filter_ansi_code here")
    if suffix not in ("out", "err"):
        raise ConfigError(f"suffix must be 'out' or 'err', not {suffix!r}")
    if filename is None:
        pid = _pid_of(actor_id, task_id, pid)
    matching = [
        path
        for path in _log_files()
        if (path.name == filename if filename else _pid(path) == pid and _suffix(path) == suffix)
    ]
    if not matching:
        whose = filename or f"the process {pid}"
        raise ConfigError(f"{whose} has no log: it has printed nothing, or belongs to a different session")
    # A rotated file, such as "name.out.1", contains the older output, so it is read first.
    paths = sorted(matching, key=lambda path: not path.name.endswith(".1"))
    return _printed(paths, follow, tail, encoding or "utf-8", errors or "strict", _interval or _FOLLOW_S)


def _printed(
    paths: Sequence[Path], follow: bool, tail: int, encoding: str, errors: str, interval_s: float
) -> Iterator[str]:
    contents = [path.read_bytes() for path in paths]
    position = len(contents[-1])
    data = b"".join(contents)
    if tail >= 0:
        data = b"".join(data.splitlines(keepends=True)[-tail:] if tail else [])
    if data:
        yield data.decode(encoding, errors)
    if not follow:
        return
    newest = paths[-1]
    pid = _pid(newest)
    alive = True
    while alive:
        # The file is read once more after the process has ended, so that its last output is not lost.
        alive = pid in {row["pid"] for row in engine().state("workers")}
        with open(newest, "rb") as file:
            file.seek(position)
            more = file.read()
        position += len(more)
        if more:
            yield more.decode(encoding, errors)
        elif alive:
            SYSTEM.sleep(interval_s)


def get_node_ip_address() -> str:
    """Return the address of this machine."""
    here = get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in nodes() if node["NodeID"] == here)


def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """List the names of the session's living actors.

    Args:
        all_namespaces: True: list the actors of all namespaces, each as {"name": ..., "namespace": ...}.
    """
    rows = [row for row in engine().state("actors") if row["name"] and row["state"] != "DEAD"]
    if all_namespaces:
        return [{"name": row["name"], "namespace": row["namespace"]} for row in rows]
    here = get_runtime_context().namespace
    return [row["name"] for row in rows if row["namespace"] == here]


# --- rows -----------------------------------------------------------------------------------------


class _Columns(NamedTuple):
    """Columns of a listing.

    Attributes:
        own: names of the engine's columns that filters can use, separated by spaces.
        twice: mapping from Ray's name of a column to the engine's name of the same column.
        more: names of further columns of Ray that filters can use, separated by spaces.
        added: function that receives a row and returns its additional columns.
    """

    own: str
    twice: Mapping[str, str] = {}
    more: str = ""
    added: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda row: {}

    def names(self) -> frozenset[str]:
        """Return the names of all columns that filters can use."""
        return frozenset([*self.own.split(), *self.twice, *self.more.split()])


def _of_work(row: Mapping[str, Any], pending: str) -> dict[str, Any]:
    where = get_runtime_context()
    return {
        "state": pending if row["state"] == "PENDING" else row["state"],
        "job_id": where.get_job_id(),
        "node_id": where.get_node_id() if row["pid"] else None,
        "required_resources": row["resources"],
    }


_COLUMNS = {
    "actors": _Columns(
        "actor_id class_name death_cause detached name namespace pid restarts state",
        {"is_detached": "detached", "num_restarts": "restarts", "ray_namespace": "namespace"},
        "job_id node_id",
        lambda row: _of_work(row, "PENDING_CREATION"),
    ),
    "tasks": _Columns(
        "name owner_pid pid state task_id worker_id",
        {"func_or_class_name": "name", "worker_pid": "pid"},
        "job_id node_id type",
        lambda row: {**_of_work(row, "PENDING_NODE_ASSIGNMENT"), "type": "NORMAL_TASK"},
    ),
    "objects": _Columns(
        "object_id size_bytes",
        {"object_size": "size_bytes"},
        "pid",
        lambda row: {"pid": next(iter(row["pids"]), None)},
    ),
    "nodes": _Columns(
        "address alive hostname node_id pid",
        {"node_ip": "address", "node_name": "hostname"},
        "state",
        lambda row: {"state": "ALIVE" if row["alive"] else "DEAD", "resources_total": row["resources"]},
    ),
    "placement_groups": _Columns("name placement_group_id state strategy"),
    "workers": _Columns("ip is_alive name node_id pid worker_id worker_type"),
}


def _rows(kind: str) -> list[State]:
    columns = _COLUMNS[kind]
    return [
        State(row, **{name: row[own] for name, own in columns.twice.items()}, **columns.added(row))
        for row in (nodes() if kind == "nodes" else engine().state(kind))
    ]


def _selected(kind: str, filters: Sequence[Filter] | None, limit: int) -> list[State]:
    if not 0 < limit <= _MOST:
        raise ConfigError(f"limit must be from 1 to {_MOST}, not {limit}")
    conditions = [_checked(condition, _COLUMNS[kind].names()) for condition in filters or ()]
    kept = [row for row in _rows(kind) if all(_meets(row, *condition) for condition in conditions)]
    return kept[:limit]


def _checked(condition: Filter, columns: frozenset[str]) -> Filter:
    try:
        column, predicate, value = condition
    except (TypeError, ValueError):
        raise ConfigError(f"filter {condition!r} must have the form (column, '=' or '!=', value)") from None
    column = column.lower()
    if column not in columns:
        raise ConfigError(
            f"filter {condition!r} has an unknown column: use one of {', '.join(sorted(columns))}"
        )
    if predicate not in ("=", "!="):
        raise ConfigError(f"filter {condition!r} has an unknown predicate: use '=' or '!='")
    return column, predicate, value


def _meets(row: Mapping[str, Any], column: str, predicate: str, wanted: Any) -> bool:
    return column in row and _equal(row[column], wanted) == (predicate == "=")


def _equal(value: Any, wanted: Any) -> bool:
    """Return True if two values are equal as in Ray: case is ignored in strings, and a string may equal a
    number or a boolean.
    """
    if isinstance(wanted, str):
        if isinstance(value, bool):
            return wanted.lower() in (("true", "1") if value else ("false", "0"))
        if isinstance(value, (int, float)):
            return wanted == str(value)
        return isinstance(value, str) and value.lower() == wanted.lower()
    return bool(value == wanted)


# --- logs -----------------------------------------------------------------------------------------


def _log_files() -> list[Path]:
    return [Path(row["path"]) for row in engine().state("logs")]


def _pid_of(actor_id: str | None, task_id: str | None, pid: int | None) -> int:
    if actor_id is not None:
        row = get_actor(actor_id)
    elif task_id is not None:
        row = get_task(task_id)
    elif pid is not None:
        return pid
    else:
        raise ConfigError("get_log() needs a filename, an actor_id, a task_id or a pid")
    if row is None or row["pid"] is None:
        raise ConfigError(f"{actor_id or task_id} has no process whose output can be shown")
    return int(row["pid"])


def _pid(path: Path) -> int:
    return int(path.name.removesuffix(".1").rpartition(".")[0].rpartition("-")[2])


def _suffix(path: Path) -> str:
    return path.name.removesuffix(".1").rpartition(".")[2]
