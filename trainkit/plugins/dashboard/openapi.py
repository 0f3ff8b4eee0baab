"""OpenAPI description of the dashboard: schemas of its answers, and its endpoints."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from trainkit.plugins.dashboard.endpoints import Endpoint, Schema
from trainkit.tune.core.trial import STATES

TEXT: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUTH: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}


def version() -> str:
    """Return the version of the package that contains this module."""
    return str(sys.modules["trainkit"].__version__)


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def many(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def record(fields: dict[str, Schema], *, optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of an object with exactly these fields."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }


def ref(name: str) -> Schema:
    """Return a reference to a schema of `SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


_SUMMARY = {
    "name": TEXT,
    "path": TEXT,
    "metric": or_null(TEXT),
    "mode": or_null(TEXT),
    "objectives": many(record({"metric": TEXT, "mode": or_null(TEXT)})),
    "created": or_null(NUMBER),
    "owner": or_null(WHOLE),
    "running": TRUTH,
    "state": TEXT,
    "ending": TEXT,
    "remaining_s": or_null(NUMBER),
    "total": or_null(WHOLE),
    "trials": WHOLE,
    "counts": {"type": "object", "additionalProperties": WHOLE},
    "best": or_null(record({"trial_id": TEXT, "index": WHOLE, "value": NUMBER, "config": OBJECT})),
    "problem": TEXT,
}
_ROW = {
    "trial_id": TEXT,
    "index": WHOLE,
    "name": TEXT,
    "status": {"type": "string", "enum": ["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]},
    "state": {"type": "string", "enum": list(STATES)},
    "reason": TEXT,
    "config": OBJECT,
    "metrics": OBJECT,
    "reports": WHOLE,
    "last": or_null(NUMBER),
    "best": or_null(NUMBER),
    "attempt": WHOLE,
    "failures": WHOLE,
    "started": or_null(NUMBER),
    "ended": or_null(NUMBER),
    "error": or_null(TEXT),
    "changed": WHOLE,
}

_SESSION = {
    "session_id": TEXT,
    "program": TEXT,
    "node_pid": WHOLE,
    "driver_pid": or_null(WHOLE),
    "age_s": NUMBER,
    "problem": TEXT,
}

SCHEMAS: dict[str, Schema] = {
    "Error": record({"error": TEXT}),
    "Status": record(
        {"version": TEXT, "root": TEXT, "read_only": TRUTH, "now": NUMBER, "charts": many(TEXT)}
    ),
    "Summary": record(_SUMMARY),
    "Experiment": record(
        {
            **_SUMMARY,
            "settings": OBJECT,
            "space": {"type": "object", "additionalProperties": TEXT},
            "columns": record({"config": many(TEXT), "metrics": many(TEXT), "automatic": many(TEXT)}),
            "note": TEXT,
            "charts": many(TEXT),
        }
    ),
    "Row": record(_ROW),
    "Page": record({"total": WHOLE, "rows": many(ref("Row"))}),
    "Event": record(
        {
            "seq": WHOLE,
            "time": NUMBER,
            "kind": TEXT,
            "trial_id": or_null(TEXT),
            "detail": TEXT,
            "by": or_null(TEXT),
        }
    ),
    "Events": record({"events": many(ref("Event")), "last": WHOLE}),
    "Trial": record(
        {
            **_ROW,
            "nested": OBJECT,
            "decisions": many(
                record(
                    {"attempt": WHOLE, "iteration": WHOLE, "verdict": TEXT, "words": TEXT, "facts": OBJECT}
                )
            ),
            "attempts": many(
                record(
                    {
                        "number": WHOLE,
                        "config": OBJECT,
                        "started": NUMBER,
                        "iteration": WHOLE,
                        "reports": WHOLE,
                        "outcome": TEXT,
                        "pid": WHOLE,
                        "hostname": TEXT,
                    }
                )
            ),
            "checkpoints": many(
                record({"number": WHOLE, "dirname": TEXT, "iteration": WHOLE, "score": or_null(NUMBER)})
            ),
            "failure": or_null(record({"kind": TEXT, "message": TEXT, "traceback": TEXT})),
            "events": many(ref("Event")),
            "note": TEXT,
        }
    ),
    "History": many(OBJECT),
    "Logs": record({"files": many(record({"name": TEXT, "size": WHOLE, "lines": many(TEXT), "cut": TRUTH}))}),
    "Files": record(
        {
            "path": TEXT,
            "entries": many(
                record(
                    {
                        "name": TEXT,
                        "path": TEXT,
                        "kind": {"type": "string", "enum": ["file", "folder"]},
                        "size": WHOLE,
                        "modified": NUMBER,
                    }
                )
            ),
        }
    ),
    "Note": record({"text": TEXT}),
    "Figure": record({"data": many(OBJECT), "layout": OBJECT}),
    "SessionHead": record(_SESSION),
    "Session": record(
        {
            **_SESSION,
            **dict.fromkeys(
                ("nodes", "actors", "tasks", "placement_groups", "requests", "objects"), many(OBJECT)
            ),
            "workers": many(
                record(
                    {
                        "pid": WHOLE,
                        "name": TEXT,
                        "kind": TEXT,
                        "cpu_percent": or_null(NUMBER),
                        "rss_bytes": WHOLE,
                        "own_bytes": WHOLE,
                        "shared_bytes": WHOLE,
                        "gpu_bytes": or_null(WHOLE),
                        "threads": WHOLE,
                    }
                )
            ),
            "ranks": many(
                record(
                    {
                        "pid": WHOLE,
                        "rank": WHOLE,
                        "world_size": WHOLE,
                        "trainer": TEXT,
                        "group": TEXT,
                        "counts": TEXT,
                        "batches": WHOLE,
                        "wait_s": or_null(NUMBER),
                        "step_s": NUMBER,
                        **dict.fromkeys(
                            (
                                "batches_per_s",
                                "samples_per_s",
                                "data_wait_percent",
                                "rank_wait_percent",
                                "own_s",
                                "idle_s",
                            ),
                            or_null(NUMBER),
                        ),
                        "straggles": or_null(TRUTH),
                    }
                )
            ),
            "gpus": many(
                record(
                    {
                        "index": WHOLE,
                        "name": TEXT,
                        "used_bytes": or_null(WHOLE),
                        "total_bytes": or_null(WHOLE),
                        "percent": or_null(NUMBER),
                    }
                )
            ),
            "logs": many(TEXT),
        }
    ),
    "Stacks": record({"pid": WHOLE, "text": TEXT}),
    "Answer": record(
        {
            "id": TEXT,
            "verb": TEXT,
            "arguments": OBJECT,
            "by": TEXT,
            "outcome": TEXT,
            "done": TRUTH,
            "seq": WHOLE,
            "time": NUMBER,
        }
    ),
}
"""Schemas by name."""

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
            "200": {"description": "the answer", "content": {media: {"schema": schema}}},
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
