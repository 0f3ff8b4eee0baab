"""REST API of the dashboard: its endpoints, and the functions that answer their requests."""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, get_args

from starlette.responses import Response, StreamingResponse

from trainkit.client import Answer, Experiment
from trainkit.clock import SYSTEM
from trainkit.errors import StoreError
from trainkit.plugins.dashboard import charts, files
from trainkit.plugins.dashboard.endpoints import (
    DOWNLOAD,
    BadRequestError,
    Call,
    Endpoint,
    QueryParameter,
    require_writable,
)
from trainkit.plugins.dashboard.experiments.board import Row, TrialTable
from trainkit.plugins.dashboard.experiments.reading import NotFoundError, RowReader
from trainkit.plugins.dashboard.openapi import TEXT, many, ref, version
from trainkit.plugins.dashboard.texts import last_lines, settings_of, space_of
from trainkit.plugins.plots.figures import thinned
from trainkit.plugins.plots.kinds import KINDS
from trainkit.tune.core.metrics import encode, without_objects
from trainkit.tune.core.stoppers import AUTOMATIC
from trainkit.tune.core.trial import STATES, TrialStatus
from trainkit.tune.results.overview import printed_files, reasons_of
from trainkit.tune.schedulers import load_words
from trainkit.tune.store.commands import asker

MAX_PAGE = 1000
"""Maximum number of trials in a page."""
MAX_EVENTS = 10_000
MAX_CURVES = 1000
"""Maximum number of curves in an answer."""
NOTES = "notes.json"
"""File with the user's notes in an experiment's folder. The file maps "" to the note about the experiment,
and trial ids to the notes about trials."""
MAX_NOTE = 20_000
"""Maximum number of characters of a note."""
_WRITING = threading.Lock()
COMMAND_S = 30.0
"""Seconds to wait until an experiment's process answers a command."""


def folder_of(call: Call) -> Path:
    """Return the folder of the experiment that the request's path names."""
    return call.server.board.folder_of(call.path["name"])


def table_of(call: Call) -> TrialTable:
    """Return the up-to-date table of trials of the experiment that the request's path names."""
    table = call.server.board.table(folder_of(call))
    table.refresh()
    return table


def status(call: Call) -> dict[str, Any]:
    """Return the server's version, folder and mode, the time, and all kinds of charts."""
    return {
        "version": version(),
        "root": str(call.server.board.root),
        "read_only": call.server.read_only,
        "now": SYSTEM.now(),
        "charts": list(KINDS),
    }


def experiments(call: Call) -> list[dict[str, Any]]:
    """Return the summaries of all experiments."""
    return call.server.experiments()


def machines(call: Call) -> list[dict[str, Any]]:
    """Return this machine, under the name "", and the hosts of `--ssh`."""
    return call.server.machines()


def experiment(call: Call) -> dict[str, Any]:
    """Return one experiment: its summary, settings, search space, column names, note and available charts."""
    folder = folder_of(call)
    with RowReader(folder) as reader:
        facts = reader.facts()
        chosen, reported = reader.names()
    settings, space = settings_of(facts), space_of(facts)
    return {
        **call.server.board.summary(folder),
        # The metric and the mode are left out of the settings, because the summary's objectives already
        # contain them.
        "settings": {name: value for name, value in settings.items() if name not in ("metric", "mode")},
        "space": space,
        "columns": {
            "config": list(dict.fromkeys([*space, *chosen])),
            "metrics": [name for name in reported if name not in AUTOMATIC],
            "automatic": [name for name in reported if name in AUTOMATIC],
        },
        "note": note_of(folder, ""),
        "charts": charts.available(folder),
    }


def trials(call: Call) -> dict[str, Any]:
    """Return one page of the list of trials."""
    wanted = call.query
    states = [text for text in (wanted["status"] or "").split(",") if text]
    if unknown := set(states).difference(STATES, TrialStatus):
        raise BadRequestError(f"{min(unknown)[:100]!r} is not a state: choose from {', '.join(STATES)}")
    total, rows = call.server.board.table(folder_of(call)).page(
        offset=wanted["offset"],
        limit=wanted["limit"],
        sort=wanted["sort"],
        descending=wanted["descending"],
        states=states,
        search=wanted["search"],
    )
    return {"total": total, "rows": rows}


def trial(call: Call) -> dict[str, Any]:
    """Return one trial: its row, decisions, attempts, checkpoints, error, log and note."""
    folder, trial_id = folder_of(call), call.path["trial"]
    row = table_of(call).row(trial_id)
    with RowReader(folder) as reader:
        load_words(reader.facts()["tune_config"]["scheduler"])
        config, _, failure = reader.trial(trial_id)
        decisions = reader.decisions(trial_id)
        return {
            **row,
            "nested": without_objects(config),
            "decisions": [_decision(each) for each in decisions],
            "attempts": [without_objects(asdict(each)) for each in reader.attempts(trial_id)],
            "checkpoints": reader.checkpoints(trial_id),
            "failure": None
            if failure is None
            else dict(zip(("kind", "message", "traceback"), failure, strict=True)),
            "events": reader.events_of(trial_id),
            "note": note_of(folder, trial_id),
        }


def _decision(decision: Mapping[str, Any]) -> dict[str, Any]:
    facts, words = reasons_of(decision)
    return {
        "attempt": decision["attempt"],
        "iteration": decision["iteration"],
        "verdict": decision["verdict"],
        "words": words,
        "facts": without_objects(facts),
    }


def history(call: Call) -> list[Any]:
    """Return the reports of a trial."""
    table_of(call).row(call.path["trial"])
    with RowReader(folder_of(call)) as reader:
        return [without_objects(report) for report in reader.history(call.path["trial"])]


def trial_folder(call: Call) -> Path:
    """Return the folder of a trial, which must lie within the folder of its experiment."""
    folder = folder_of(call)
    with RowReader(folder) as reader:
        return files.inside(folder, reader.trial(call.path["trial"])[1])


def logs(call: Call) -> dict[str, Any]:
    """Return a trial's output, if the experiment keeps it in files."""
    folder = folder_of(call)
    with RowReader(folder) as reader:
        _, dirname, _ = reader.trial(call.path["trial"])
        kept = printed_files(folder, dirname, reader.facts()["run_config"]["log_to_file"])
    return {"files": last_lines(kept, call.query["search"], call.query["lines"])}


def listing(call: Call) -> dict[str, Any]:
    """Return the content of the folder of a trial."""
    return files.listed(trial_folder(call), "")


def file(call: Call) -> Any:
    """Return a file of a trial as a download, or the content of a subfolder."""
    folder, below = trial_folder(call), call.path["path"].strip("/")
    path = files.inside(folder, below)
    if path.is_dir():
        return files.listed(folder, below)
    if not path.is_file():
        raise NotFoundError(f"{below!r} is neither a file nor a folder")
    try:
        opened = path.open("rb")
    except OSError as error:
        raise NotFoundError(f"{below!r} cannot be read: {error.strerror}") from error
    return files.download(opened, path.name, call.request)


def events(call: Call) -> dict[str, Any]:
    """Return the log entries of the experiment and its trials."""
    after = call.query["after"]
    with RowReader(folder_of(call)) as reader:
        found = reader.events_after(after, call.query["limit"])
    return {"events": found, "last": found[-1]["seq"] if found else after}


def export(call: Call) -> Response:
    """Return all trials as one file."""
    table, kind = table_of(call), call.query["format"]
    kinds = {"csv": (_csv, "text/csv; charset=utf-8"), "json": (_json, "application/json")}
    if kind not in kinds:
        raise BadRequestError(f"{kind[:100]!r} is not a format: choose csv or json")
    written, media_type = kinds[kind]
    head = {"Content-Disposition": f'attachment; filename="trials.{kind}"'}
    return StreamingResponse(written(table), media_type=media_type, headers=head)


def _pages(table: TrialTable) -> Iterator[list[Row]]:
    place = 0
    while rows := table.page(offset=place, limit=MAX_PAGE)[1]:
        yield rows
        place += len(rows)


def _json(table: TrialTable) -> Iterator[str]:
    before = "["
    for rows in _pages(table):
        yield before + ",\n".join(map(encode, rows))
        before = ",\n"
    yield "[]" if before == "[" else "]"


def _csv(table: TrialTable) -> Iterator[str]:
    with RowReader(table.folder) as reader:
        config, metrics = reader.names()
    plain = (
        "trial_id index name status state reason reports last best attempt failures started ended error"
    ).split()
    head = [*plain, *(f"config/{name}" for name in config), *(f"metrics/{name}" for name in metrics)]
    yield _lines([head])
    for rows in _pages(table):
        yield _lines(
            [
                *(row[name] for name in plain),
                *(row["config"].get(name) for name in config),
                *(row["metrics"].get(name) for name in metrics),
            ]
            for row in rows
        )


def _lines(rows: Iterable[Iterable[Any]]) -> str:
    written = io.StringIO()
    csv.writer(written).writerows(map(_cell, row) for row in rows)
    return written.getvalue()


def _cell(value: Any) -> Any:
    """Return `value` in a form that no spreadsheet program interprets as a formula."""
    text = encode(value) if isinstance(value, (list, dict)) else value
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def chart(call: Call) -> dict[str, Any]:
    """Return a chart as a Plotly figure."""
    return charts.chart(folder_of(call), call.path["kind"], call.others)


def curves(call: Call) -> dict[str, Any]:
    """Return the reported values of chosen trials, by metric and trial, for the comparison of runs."""
    wanted = {name: list(dict.fromkeys(call.query[name].split(","))) for name in ("metrics", "trials")}
    if len(wanted["trials"]) * len(wanted["metrics"]) > MAX_CURVES:
        raise BadRequestError(f"too many curves: ask for at most {MAX_CURVES}, one for each metric and trial")
    with RowReader(folder_of(call)) as reader:
        return {
            metric: {
                trial_id: dict(zip(("x", "y"), zip(*points, strict=True), strict=True))
                for trial_id in wanted["trials"]
                if (points := thinned(reader.curve(trial_id, metric, call.query["x"])))
            }
            for metric in wanted["metrics"]
        }


def note_of(folder: Path, trial_id: str) -> str:
    """Return the note about a trial, or about the experiment if `trial_id` is ''; '' without a note."""
    return str(_notes(folder).get(trial_id, ""))


def write_note(folder: Path, trial_id: str, text: str) -> None:
    """Write a note to a separate file, because only the experiment's process may write its main file.

    Raises:
        StoreError: the note is too long, or the folder can't be written.
    """
    if len(text) > MAX_NOTE:
        raise StoreError(f"the note has {len(text)} characters: shorten it to at most {MAX_NOTE}")
    aside = folder / f".{NOTES}.{uuid.uuid4().hex}.partial"
    with _WRITING:  # Without the lock, one of two notes that are written at the same time could be lost.
        notes = _notes(folder)
        notes[trial_id] = text
        try:
            aside.write_text(json.dumps({name: note for name, note in notes.items() if note}, indent=1))
            aside.rename(folder / NOTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise StoreError(f"{folder / NOTES} cannot be written: {error}") from error


def _notes(folder: Path) -> dict[str, Any]:
    path = folder / NOTES
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}; repair or delete the file") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path} is not a valid file of notes: delete it")
    return found


def note(call: Call) -> dict[str, Any]:
    """Store a note about an experiment or a trial."""
    require_writable(call)
    trial_id, text = call.path.get("trial", ""), call.body["text"]
    if trial_id:
        table_of(call).row(trial_id)
    write_note(folder_of(call), trial_id, text)
    return {"text": text}


def command(verb: str, call: Call) -> dict[str, Any]:
    """Pass a command to the process that runs the experiment; return the answer."""
    require_writable(call)
    folder = folder_of(call)
    if (trial_id := call.body.get("trial")) is not None:
        table_of(call).row(trial_id)
    experiment = Experiment(folder, by=f"{asker()}, by the dashboard", timeout_s=COMMAND_S)
    carry_out: Callable[..., Answer] = getattr(experiment, verb)
    return carry_out(**call.body).as_dict()


_EXPERIMENT = "/api/experiments/{name}"
_TRIAL = f"{_EXPERIMENT}/trials/{{trial}}"

READING = (
    Endpoint("/api/status", "Version, folder and read-only mode of the server.", status, ref("Status")),
    Endpoint(
        "/api/machines",
        "This machine, and the hosts of `--ssh`: reasons why they show nothing.",
        machines,
        many(ref("Machine")),
    ),
    Endpoint(
        "/api/experiments", "All experiments in the folder, and on hosts.", experiments, many(ref("Summary"))
    ),
    Endpoint(_EXPERIMENT, "One experiment: settings, search space, columns.", experiment, ref("Experiment")),
    Endpoint(
        f"{_EXPERIMENT}/trials",
        "One page of the list of trials.",
        trials,
        ref("Page"),
        (
            QueryParameter("offset", "number of trials before the page", "integer", 0),
            QueryParameter("limit", "maximum number of trials on the page", "integer", 100, MAX_PAGE),
            QueryParameter("sort", "sort by a row's field, `config/NAME` or `metrics/NAME`", default="index"),
            QueryParameter("descending", "largest first, but trials without a value last", "boolean", False),
            QueryParameter("status", "trials in these states or statuses, separated by commas", default=""),
            QueryParameter(
                "search",
                "only trials with this text in their name, status, reason, configuration, report or error",
                default="",
            ),
        ),
    ),
    Endpoint(_TRIAL, "Decisions, attempts, checkpoints, error and log of one trial.", trial, ref("Trial")),
    Endpoint(f"{_TRIAL}/history", "The reports of a trial.", history, ref("History")),
    Endpoint(f"{_TRIAL}/logs", "Printed output of a trial.", logs, ref("Logs"), (files.SEARCH, files.LINES)),
    Endpoint(f"{_TRIAL}/files", "Content of a trial's folder.", listing, ref("Files")),
    Endpoint(f"{_TRIAL}/files/{{path:path}}", "A file or subfolder of a trial's folder.", file, DOWNLOAD),
    Endpoint(
        f"{_EXPERIMENT}/events",
        "Log entries of the experiment and its trials.",
        events,
        ref("Events"),
        (
            QueryParameter("after", "only entries with a larger `seq`", "integer", 0),
            QueryParameter("limit", "maximum number of entries", "integer", 1000, MAX_EVENTS),
        ),
    ),
    Endpoint(
        f"{_EXPERIMENT}/export",
        "All trials as one file.",
        export,
        DOWNLOAD,
        (QueryParameter("format", "format of the file: csv or json", default="csv"),),
    ),
    Endpoint(
        f"{_EXPERIMENT}/charts/{{kind}}",
        "A chart as a Plotly figure; further parameters are options of the chart.",
        chart,
        ref("Figure"),
        takes_any=True,
    ),
    Endpoint(
        f"{_EXPERIMENT}/curves",
        "Reported values of chosen trials; of a long curve, some points are left out.",
        curves,
        ref("Curves"),
        (
            QueryParameter("metrics", "names of metrics, separated by commas", default=""),
            QueryParameter("trials", "ids of trials, separated by commas", default=""),
            QueryParameter("x", "name of the reported value on the x axis", default="training_iteration"),
        ),
    ),
    *(
        Endpoint(
            f"{path}/note",
            f"Save a note about the {subject}.",
            note,
            ref("Note"),
            body={"text": TEXT},
            required=("text",),
            method="PUT",
        )
        for path, subject in ((_EXPERIMENT, "experiment"), (_TRIAL, "trial"))
    ),
)
"""Endpoints that read experiments, and the endpoints that store notes."""

VERBS = {
    "stop": "Stop the experiment, or one of its trials.",
    "pause": "Pause the experiment, or one of its trials.",
    "resume": "Resume the paused experiment or trial.",
    "prioritise": "Run a trial before the others.",
    "add": "Add a configuration to try next.",
    "set": "Change the number of samples, the time budget or the number of concurrent trials.",
}
"""Maps each method that steers an experiment to a summary of the method."""

_JSON_TYPES: dict[Any, str] = {str: "string", int: "integer", float: "number", type(None): "null"}


def _parameters_of(verb: str) -> dict[str, inspect.Parameter]:
    _, *found = inspect.signature(getattr(Experiment, verb), eval_str=True).parameters.values()
    return {each.name: each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found}


def _schema_of(kind: Any) -> dict[str, Any]:
    names = [
        _JSON_TYPES.get(each, "object")
        for each in (get_args(kind) if isinstance(kind, UnionType) else [kind])
    ]
    return {"type": names if len(names) > 1 else names[0]}


STEERING = tuple(
    Endpoint(
        f"{_EXPERIMENT}/{verb}",
        summary,
        partial(command, verb),
        ref("Answer"),
        body={name: _schema_of(each.annotation) for name, each in _parameters_of(verb).items()},
        required=[name for name, each in _parameters_of(verb).items() if each.default is each.empty],
        waits=True,
        method="POST",
    )
    for verb, summary in VERBS.items()
)
"""Endpoints that steer an experiment.

Each of these endpoints answers after the experiment's process has run the command.
"""
