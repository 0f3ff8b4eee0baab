"""OpenAPI description of the dashboard's REST API: its endpoints, and the schemas of their answers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from trainkit.plugins.dashboard.endpoints import Endpoint, Schema
from trainkit.tune.core.trial import STATES, TrialStatus

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUTH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def version() -> str:
    """Return the version of trainkit."""
    return str(sys.modules["trainkit"].__version__)


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(fields: dict[str, Schema]) -> Schema:
    """Return the schema of an object that has exactly the given fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def ref(name: str) -> Schema:
    """Return a schema that refers to the schema `name` in `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def these(schema: Schema, names: str) -> dict[str, Schema]:
    """Return a dictionary that maps each of the space-separated names to `schema`."""
    return dict.fromkeys(names.split(), schema)


_STATUSES = [str(status) for status in TrialStatus]
_SUMMARY = {
    **these(TEXT, "name path machine state ending problem"),
    **these(or_null(TEXT), "metric mode"),
    **these(or_null(NUMBER), "created remaining_s"),
    **these(or_null(WHOLE), "owner total"),
    "objectives": many(record({"metric": TEXT, "mode": or_null(TEXT)})),
    "running": TRUTH,
    "trials": WHOLE,
    "counts": {"type": "object", "additionalProperties": WHOLE},
    "best": or_null(record({"trial_id": TEXT, "index": WHOLE, "value": NUMBER, "config": OBJECT})),
}
_ROW = {
    **these(TEXT, "trial_id name reason"),
    "status": {"type": "string", "enum": _STATUSES},
    "state": {"type": "string", "enum": list(STATES)},
    **these(OBJECT, "config metrics"),
    **these(WHOLE, "index reports attempt failures changed"),
    **these(or_null(NUMBER), "last best started ended"),
    "error": or_null(TEXT),
}
_DECISION = record({**these(WHOLE, "attempt iteration"), **these(TEXT, "verdict words"), "facts": OBJECT})
_ATTEMPT = record(
    {
        **these(WHOLE, "number iteration reports pid"),
        **these(TEXT, "outcome hostname"),
        "config": OBJECT,
        "started": NUMBER,
    }
)
_CHECKPOINT = record({**these(WHOLE, "number iteration"), "dirname": TEXT, "score": or_null(NUMBER)})
_FILE = record(
    {
        **these(TEXT, "name path"),
        "kind": {"type": "string", "enum": ["file", "folder"]},
        "size": WHOLE,
        "modified": NUMBER,
    }
)
_SESSION = {
    **these(TEXT, "session_id program machine problem"),
    "node_pid": WHOLE,
    "driver_pid": or_null(WHOLE),
    "age_s": NUMBER,
}
_WORKER = record(
    {
        **these(TEXT, "name kind"),
        **these(WHOLE, "pid rss_bytes own_bytes shared_bytes threads"),
        "cpu_percent": or_null(NUMBER),
        "gpu_bytes": or_null(WHOLE),
    }
)
_RANK = record(
    {
        **these(WHOLE, "pid rank world_size batches"),
        **these(TEXT, "trainer group counts"),
        "step_s": NUMBER,
        **these(or_null(NUMBER), "wait_s batches_per_s samples_per_s data_wait_percent rank_wait_percent"),
        **these(or_null(NUMBER), "own_s idle_s"),
        "straggles": or_null(TRUTH),
    }
)
_GPU = record(
    {
        "index": WHOLE,
        "name": TEXT,
        **these(or_null(WHOLE), "used_bytes total_bytes"),
        "percent": or_null(NUMBER),
    }
)

SCHEMAS: dict[str, Schema] = {
    "Error": record({"error": TEXT}),
    "Status": record(
        {**these(TEXT, "version root"), "read_only": TRUTH, "now": NUMBER, "charts": many(TEXT)}
    ),
    "Machine": record(these(TEXT, "machine problem")),
    "MachineState": record(
        {
            "hostname": TEXT,
            **these(WHOLE, "cpus used_bytes total_bytes"),
            "load": NUMBER,
            "gpus": many(_GPU),
            "slurm": or_null(
                record(
                    {
                        "problem": TEXT,
                        "jobs": many(record(these(TEXT, "id name state"))),
                        "nodes": many(
                            record(
                                {
                                    **these(TEXT, "name state"),
                                    **these(WHOLE, "cpus used_cpus bytes used_bytes gpus used_gpus"),
                                }
                            )
                        ),
                        "number_of_nodes": WHOLE,
                    }
                )
            ),
        }
    ),
    "Summary": record(_SUMMARY),
    "Experiment": record(
        {
            **_SUMMARY,
            "settings": OBJECT,
            "space": {"type": "object", "additionalProperties": TEXT},
            "columns": record(these(many(TEXT), "config metrics automatic")),
            "note": TEXT,
            "charts": many(TEXT),
        }
    ),
    "Row": record(_ROW),
    "Page": record({"total": WHOLE, "rows": many(ref("Row"))}),
    "Event": record(
        {**these(TEXT, "kind detail"), **these(or_null(TEXT), "trial_id by"), "seq": WHOLE, "time": NUMBER}
    ),
    "Events": record({"events": many(ref("Event")), "last": WHOLE}),
    "Trial": record(
        {
            **_ROW,
            "nested": OBJECT,
            "decisions": many(_DECISION),
            "attempts": many(_ATTEMPT),
            "checkpoints": many(_CHECKPOINT),
            "failure": or_null(record(these(TEXT, "kind message traceback"))),
            "events": many(ref("Event")),
            "note": TEXT,
        }
    ),
    "History": many(OBJECT),
    "Logs": record({"files": many(record({"name": TEXT, "size": WHOLE, "lines": many(TEXT), "cut": TRUTH}))}),
    "Files": record({"path": TEXT, "entries": many(_FILE)}),
    "Note": record({"text": TEXT}),
    "Curves": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": record(these(many(NUMBER), "x y")),
        },
    },
    "Figure": record({"data": many(OBJECT), "layout": OBJECT}),
    "SessionHead": record(_SESSION),
    "Session": record(
        {
            **_SESSION,
            **these(many(OBJECT), "nodes actors tasks placement_groups requests objects"),
            "workers": many(_WORKER),
            "ranks": many(_RANK),
            "gpus": many(_GPU),
            "logs": many(TEXT),
        }
    ),
    "Stacks": record({"pid": WHOLE, "text": TEXT}),
    "Answer": record(
        {
            **these(TEXT, "id verb by outcome"),
            "arguments": OBJECT,
            "done": TRUTH,
            "seq": WHOLE,
            "time": NUMBER,
        }
    ),
}
"""Maps the name of each schema of the API to the schema."""

_NAMES = re.compile(r"\{(\w+)(?::path)?\}")
_REFUSALS = (400, 403, 404, 408, 409, 413, 429)


def description(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 description of these endpoints."""
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = _NAMES.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "trainkit dashboard", "version": version()},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    media = endpoint.answers if isinstance(endpoint.answers, str) else "application/json"
    schema = {"type": "string"} if isinstance(endpoint.answers, str) else endpoint.answers
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _NAMES.findall(endpoint.path)
    ]
    parameters += [
        {"name": each.name, "in": "query", "description": each.meaning, "schema": each.schema}
        for each in endpoint.query
    ]
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "response", "content": {media: {"schema": schema}}},
            **{
                str(status): {
                    "description": HTTPStatus(status).phrase,
                    "content": {"application/json": {"schema": ref("Error")}},
                }
                for status in _REFUSALS
            },
        },
    }
    if endpoint.body is not None:
        body = {
            "type": "object",
            "properties": dict(endpoint.body),
            "required": list(endpoint.required),
            "additionalProperties": False,
        }
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def reference(endpoints: Iterable[Endpoint]) -> str:
    """Return the endpoints as a Markdown table for the documentation."""
    lines = ["| request | answer | parameters and body |", "| --- | --- | --- |"]
    for each in endpoints:
        path = _NAMES.sub(lambda match: match[1].upper(), each.path)
        given = [f"`{one.name}`: {one.meaning}" for one in each.query]
        if each.body:
            given.append("body: " + ", ".join(f"`{name}`" for name in each.body))
        lines.append(f"| `{each.method} {path}` | {each.summary} | {'; '.join(given)} |")
    return "\n".join(lines) + "\n"
