"""A running dashboard, and who asks it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from playwright.sync_api import Browser

from tests.conftest import session_fixture
from tests.plugins.dashboard.browser import chromium
from trainkit import tune
from trainkit.plugins.dashboard.openapi import description
from trainkit.plugins.dashboard.server import ENDPOINTS, Dashboard
from trainkit.tune.schedulers import ASHAScheduler

DESCRIPTION = description(ENDPOINTS)


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Asker:
    """Asks a dashboard over HTTP, and holds each answer against what the dashboard says of itself."""

    def __init__(self, server: Dashboard | SimpleNamespace) -> None:
        self.server = server
        self.address = (server.server_address[0], server.server_address[1])

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> Reply:
        sent = {"Authorization": f"Bearer {self.server.token}"} if headers is None else headers
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Reply(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, status: int = 200) -> Any:
        """Return the JSON at a path of the API, which has to be as it is described."""
        return self.checked("GET", path, status)

    def checked(self, method: str, path: str, status: int = 200, body: Any = None) -> Any:
        reply = self(method, f"/api{path}", body)
        assert reply.status == status, reply.body[:2000]
        operation = operation_of(method, f"/api{path}".partition("?")[0])
        content = operation["responses"][str(status)]["content"]
        schema = {**content["application/json"]["schema"], "components": DESCRIPTION["components"]}
        jsonschema.validate(reply.json, schema)
        return reply.json


def operation_of(method: str, path: str) -> dict[str, Any]:
    """Return the description of the endpoint at this path; the one with most words in common."""
    parts = path.split("/")

    def agrees(template: str) -> bool:
        names = template.split("/")
        rest = names[-1] == "{path}" and len(parts) >= len(names)
        return (rest or len(names) == len(parts)) and all(
            name == part or name.startswith("{") for name, part in zip(names, parts, strict=False)
        )

    found = [
        each for each in DESCRIPTION["paths"] if agrees(each) and method.lower() in DESCRIPTION["paths"][each]
    ]
    best = min(found, key=lambda each: each.count("{"))
    return dict(DESCRIPTION["paths"][best][method.lower()])


@contextmanager
def served(root: Path, **settings: Any) -> Iterator[Asker]:
    with Dashboard(root, **settings) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Asker(server)
        finally:
            server.shutdown()
            thread.join()


session = session_fixture(num_cpus=2)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium."""
    with chromium() as started:
        yield started


HOSTILE = "<script>alert(1)</script>\x1b[31m\x00\u202e"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished experiment, whose names try to break whoever shows them."""
    folder = tmp_path_factory.mktemp("experiments")

    def trainable(config: dict[str, Any]) -> None:
        print("plain line")
        print(HOSTILE)
        if config["kind"] == "<b>broken</b>":
            raise ValueError("<script>alert(1)</script>")
        for step in range(1, 5):
            tune.report({"eval": {"loss": config["x"] / step}, "nan": float("nan"), HOSTILE: step})

    tune.Tuner(
        trainable,
        param_space={
            "x": tune.grid_search([1.0, 2.0, 3.0]),
            "kind": tune.grid_search(["a", "<b>broken</b>"]),
            "odd": [{(2, 3): 4}],
            HOSTILE: HOSTILE,
        },
        tune_config=tune.TuneConfig(
            metric="eval/loss", mode="min", scheduler=ASHAScheduler(max_t=4, reduction_factor=2), seed=0
        ),
        run_config=tune.RunConfig(storage_path=folder, name="first one", verbose=0, log_to_file=True),
    ).fit()
    return folder


@pytest.fixture(scope="module")
def ask(root: Path) -> Iterator[Asker]:
    with served(root) as asker:
        yield asker


def finished(root: Path, name: str, trainable: Any, log_to_file: Any = False, **space: Any) -> Path:
    """Run an experiment to its end, which minimizes a loss; return its folder."""
    tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=root, name=name, verbose=0, log_to_file=log_to_file),
    ).fit()
    return root / name


def asker_of(address: str) -> Asker:
    """Return who asks a server in another process, by the address that its command prints."""
    parts = urlsplit(address)
    token = parts.query.removeprefix("token=")
    return Asker(SimpleNamespace(server_address=(parts.hostname, parts.port), token=token))


def told(ask: Asker, query: str, until: Callable[[list[Any]], bool]) -> list[Any]:
    """Return what a stream tells, up to what `until` waits for."""
    connection = http.client.HTTPConnection(*ask.address, timeout=60)
    try:
        head = {"Authorization": f"Bearer {ask.server.token}"}
        connection.request("GET", f"/api/stream?{query}", headers=head)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
        heard: list[Any] = []
        while not until(heard):
            line = answer.readline().decode()
            assert line, f"the stream has ended after {heard}"
            if line.startswith("data: "):
                heard.append(json.loads(line.removeprefix("data: ")))
        return heard
    finally:
        connection.close()
