"""The dashboard: what it shows of finished, running and damaged experiments, to whom, and what it stops."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import trainkit
from tests.conftest import eventually
from trainkit import tune
from trainkit.dashboard import pages
from trainkit.dashboard.pages import Curve, picture
from trainkit.dashboard.reading import View, experiments
from trainkit.dashboard.server import Dashboard
from trainkit.errors import DashboardError
from trainkit.tune.schedulers import ASHAScheduler


class Text(HTMLParser):
    """What a page says, its tags left out; and the tags that are never closed."""

    VOID = frozenset({"meta", "link", "input", "line", "circle", "polyline", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.feed(page)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID or (tag in ("circle", "polyline") and not self._closed_itself()):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def _closed_itself(self) -> bool:
        return (self.get_starttag_text() or "").endswith("/>")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


class Browser:
    """Asks a server as a browser does: with the cookie that it was given."""

    def __init__(self, server: Dashboard) -> None:
        self.address = ("127.0.0.1", server.server_address[1])
        self.base = f"http://127.0.0.1:{server.server_address[1]}"
        self.token = server.token
        self._open = urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open
        self._ask(server.address)

    def _ask(self, url: str, body: bytes | None = None) -> str:
        try:
            with self._open(url, body) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()  # it is an answer, and holds the connection
            raise

    def page(self, path: str) -> Text:
        return Text(self._ask(self.base + path))

    def json(self, path: str) -> Any:
        return json.loads(self._ask(f"{self.base}/api{path}"))

    def post(self, path: str, **form: str) -> str:
        return self._ask(self.base + path, urlencode(form).encode())


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    trainkit.init(num_cpus=2)
    yield
    trainkit.shutdown()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished experiment, whose names try to break the pages."""
    folder = tmp_path_factory.mktemp("experiments")

    def trainable(config: dict[str, Any]) -> None:
        if config["kind"] == "<b>broken</b>":
            raise ValueError("<script>alert(1)</script>")
        for step in range(1, 5):
            tune.report({"eval": {"loss": config["x"] / step}, "nan": float("nan")})

    tune.Tuner(
        trainable,
        param_space={
            "x": tune.grid_search([1.0, 2.0, 3.0]),
            "kind": tune.grid_search(["a", "<b>broken</b>"]),
            "odd": [{(2, 3): 4}],
        },
        tune_config=tune.TuneConfig(
            metric="eval/loss", mode="min", scheduler=ASHAScheduler(max_t=4, reduction_factor=2), seed=0
        ),
        run_config=tune.RunConfig(storage_path=folder, name="first one", verbose=0),
    ).fit()
    return folder


@pytest.fixture
def browser(root: Path) -> Iterator[Browser]:
    with Dashboard(root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Browser(server)
        finally:
            server.shutdown()
            thread.join()


def test_the_list_and_the_pages_behind_its_links(browser: Browser) -> None:
    page = browser.page("/")
    assert "first one" in page.text and "3 TERMINATED" in page.text and "3 ERROR" in page.text
    experiment = browser.page("/" + next(link for link in page.links if "first" in link))
    assert "Learning curves" in experiment.text and "best eval/loss" in experiment.text
    assert "alert(1)" in experiment.text and "<b>broken</b>" in experiment.text  # as text, not as tags
    trials = [link for link in experiment.links if "/trials/" in link]
    assert len(trials) == 6
    first, second = (browser.page(f"/experiments/{link}") for link in trials[:2])
    assert "Last report" in first.text and "Decisions" in first.text and "cutoff" in first.text
    assert "ValueError: <script>alert(1)</script>" in second.text
    assert any(link == "/style.css" for link in page.links)


def test_the_same_as_json(browser: Browser) -> None:
    (seen,) = browser.json("/experiments")
    assert (seen["metric"], seen["counts"]) == ("eval/loss", {"TERMINATED": 3, "ERROR": 3})
    assert seen["owner"] is None and seen["state"].startswith("ended: ")
    rows = browser.json("/experiments/first%20one")["trials"]
    assert next(row["best"] for row in rows if row["status"] == "TERMINATED") == 0.25
    detail = browser.json(f"/experiments/first%20one/trials/{rows[0]['trial_id']}")
    assert [report["eval"]["loss"] for report in detail["history"]] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]
    assert detail["history"][0]["nan"] == "NaN"
    assert detail["history"][0]["config"]["odd"] == [{"(2, 3)": 4}]


def test_the_table_is_sorted_searched_and_paged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = View.of(root / "first one", 0.0)

    def order(**wish: str) -> list[int]:
        return [row.index for row in pages.selected(seen, pages.TableQuery.of(wish))]

    assert order() == [0, 1, 2, 3, 4, 5]
    assert order(falling="1") == [5, 4, 3, 2, 1, 0]
    assert order(sort="x", falling="1")[:2] == [4, 5]
    assert order(sort="best eval/loss")[0] == 0 and order(sort="best eval/loss")[3:] == [1, 3, 5]
    assert order(search="ALERT(1)") == [1, 3, 5]
    assert order(sort="no such column", page="x") == [0, 1, 2, 3, 4, 5]
    monkeypatch.setattr(pages, "MAX_ROWS", 4)
    first = Text(pages.experiment(seen, [], pages.TableQuery(), "t"))
    assert "next" in first.words and sum("/trials/" in link for link in first.links) == 4
    last = Text(pages.experiment(seen, [], pages.TableQuery(page=9), "t"))
    assert "before" in last.words and sum("/trials/" in link for link in last.links) == 2


def test_it_is_said_where_not_all_curves_are_drawn(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "best trials" not in browser.page("/experiments/first%20one").text
    monkeypatch.setattr("trainkit.dashboard.server.MAX_CURVES", 2)
    assert "Learning curves of the 2 best trials" in browser.page("/experiments/first%20one").text


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/experiments/none", 404),
        ("/experiments/first%20one/trials/none", 404),
        ("/experiments/..%2F..%2Fetc", 404),
        ("/nowhere", 404),
        ("/api/nowhere", 404),
    ],
)
def test_what_is_not_there(browser: Browser, path: str, code: int) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        browser.page(path)
    assert caught.value.code == code
    assert path.startswith("/api") == caught.value.headers["Content-Type"].startswith("application/json")


def asked(url: str, body: bytes | None = None, **headers: str) -> int:
    request = urllib.request.Request(
        url, body, {name.replace("_", "-"): text for name, text in headers.items()}
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:  # it is the answer, and holds the connection
            return error.code


def test_nobody_else_sees_or_stops_anything(browser: Browser) -> None:
    page, stop = f"{browser.base}/", f"{browser.base}/api/experiments/first%20one/stop"
    assert asked(page) == asked(f"{page}?token=wrong") == 403
    assert asked(page, Authorization="Bearer wrong") == 403
    assert asked(page, Authorization=f"Bearer {browser.token}") == 200
    # Another site's name that leads to this machine, with everything else right:
    assert asked(page, Authorization=f"Bearer {browser.token}", Host="evil.example:80") == 403
    # A cookie alone changes nothing: another site's form would bring it along.
    with pytest.raises(urllib.error.HTTPError, match="403"):
        browser.post("/experiments/first%20one/stop")
    assert asked(stop, b"token=wrong") == 403
    assert asked(stop, b"x" * 20_000) == 403


def answer_to(browser: Browser, request: str) -> str:
    """What the server says to bytes that no client sends by itself; the first line, or all of a body."""
    with socket.create_connection(browser.address, timeout=60) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as file:
            return file.read().decode()


def test_odd_requests_are_answered(browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    host = "Host: {}:{}".format(*browser.address)
    show = f"{host}\nAuthorization: Bearer {browser.token}\n"
    cookie = f"Cookie: a,b={{1}}; trainkit-{browser.address[1]}={browser.token}; c"
    assert " 200 " in answer_to(browser, f"GET / HTTP/1.1\n{host}\n{cookie}\n\n")  # beside others' odd ones
    assert " 400 " in answer_to(browser, f"GET http://[x HTTP/1.1\n{show}\n")
    for page in ("%C2%B2", "9" * 5000, "-1"):
        assert " 200 " in answer_to(browser, f"GET /experiments/first%20one?page={page} HTTP/1.1\n{show}\n")
    answer = answer_to(
        browser, f"POST /experiments/first%20one/stop HTTP/1.1\n{show}Content-Length: \xb2\n\n"
    )
    assert " 409 " in answer
    head, _, body = answer_to(browser, f"HEAD / HTTP/1.1\n{show}\n").partition("\r\n\r\n")
    assert " 200 " in head and not body
    assert capsys.readouterr().err == ""


def test_a_parameter_may_be_called_as_a_column_is(tmp_path: Path) -> None:
    tune.Tuner(
        lambda config: {"loss": 1.0},
        param_space={"status": tune.grid_search([7, 8]), "trial": "mine"},
        run_config=tune.RunConfig(storage_path=tmp_path, name="e", verbose=0),
    ).fit()
    seen = View.of(tmp_path / "e", 0.0)
    assert {"status", "config/status", "trial", "config/trial"} <= set(pages.columns(seen))
    assert "TERMINATED" in pages.experiment(seen, [], pages.TableQuery(), "")


@pytest.mark.parametrize(
    "values", [(1e20, 1e20), (-1.7e308, 1.7e308), (0.0, 5e-324), (1e-15, 3e-15), (3.0, 3.0)]
)
def test_a_chart_of_any_numbers_has_an_axis(values: tuple[float, float]) -> None:
    svg = picture([Curve("a", list(enumerate(values)))], "iteration", "loss")
    marks = re.findall(r'text-anchor="end">([^<]+)</text><line|text-anchor="end">([^<]+)</text><text', svg)
    texts = [first or second for first, second in marks]
    assert len(texts) >= 2 and len(set(texts)) == len(texts)


def test_what_does_not_run_cannot_be_stopped(browser: Browser) -> None:
    with pytest.raises(urllib.error.HTTPError, match="409"):
        browser.post("/experiments/first%20one/stop", token=browser.token)


def test_a_damaged_experiment_does_not_hide_the_others(browser: Browser, root: Path) -> None:
    broken = root / "broken"
    broken.mkdir()
    try:
        (broken / "experiment.sqlite").write_bytes(b"no database" * 50)
        page = browser.page("/")
        assert "first one" in page.text and "is not an experiment file" in page.text
        with pytest.raises(urllib.error.HTTPError, match="409"):
            browser.page("/experiments/broken")
    finally:
        (broken / "experiment.sqlite").unlink()
        broken.rmdir()


def test_row_2_11_a_trial_of_a_running_program_is_stopped(
    browser: Browser, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "go").mkdir()

    def trainable(config: dict[str, Any]) -> None:
        while not (tmp_path / "go" / str(config["x"])).exists():
            tune.report({"loss": config["x"]})

    grids: list[tune.ResultGrid] = []
    tuner = tune.Tuner(
        trainable,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=tune.RunConfig(storage_path=root, name="running", verbose=0),
    )
    thread = threading.Thread(target=lambda: grids.append(tuner.fit()))
    thread.start()

    def rows() -> list[Any]:
        if not (root / "running" / "experiment.sqlite").exists():
            return []
        return browser.json("/experiments/running")["trials"]

    assert eventually(lambda: [row["status"] for row in rows()] == ["RUNNING"] * 2, 60)
    page = browser.page("/experiments/running")
    assert "runs in process" in page.text and "Stop the experiment" in page.text
    browser.post(f"/experiments/running/trials/{rows()[0]['trial_id']}/stop", token=browser.token)
    assert eventually(lambda: rows()[0]["status"] == "TERMINATED", 60)
    assert re.search("by the dashboard", rows()[0]["reason"])
    assert rows()[1]["status"] == "RUNNING"
    assert (
        asked(f"{browser.base}/api/experiments/running/stop", b"", Authorization=f"Bearer {browser.token}")
        == 202
    )
    thread.join()
    # The experiment can be restored: what was stopped with it waits to be gone on with.
    assert [str(result.status) for result in grids[0]] == ["TERMINATED", "PENDING"]
    assert browser.json("/experiments/running")["owner"] is None


def test_folders_of_experiments(root: Path, tmp_path: Path) -> None:
    assert list(experiments(root / "first one")) == [root / "first one"]
    assert list(experiments(tmp_path)) == []
    with pytest.raises(DashboardError, match="there is no folder"):
        Dashboard(tmp_path / "none")
    with pytest.raises(DashboardError, match="port 70000 cannot be used"):
        Dashboard(tmp_path, 70_000)
    with Dashboard(tmp_path) as server, pytest.raises(DashboardError, match="cannot be used"):
        Dashboard(tmp_path, server.server_address[1])
