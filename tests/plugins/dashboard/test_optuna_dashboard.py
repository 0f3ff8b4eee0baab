"""Optuna's own dashboard over experiments: what it shows, and what it refuses."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import run_python
from trainkit import tune

pytest.importorskip("optuna_dashboard")

from tests.plugins.dashboard.browser import CHROMIUM, chromium
from tests.plugins.dashboard.conftest import Asker
from trainkit.errors import DashboardError
from trainkit.plugins.dashboard.optuna import OptunaDashboard

SOON_S = 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments, of one objective and of two, and one without a metric."""
    folder = tmp_path_factory.mktemp("experiments")
    for name, metric, mode in (
        ("one", "loss", "min"),
        ("two", ["loss", "size"], ["min", "max"]),
        ("none", None, None),
    ):
        tune.Tuner(
            lambda config: {"loss": config["x"] ** 2, "size": config["n"]},
            param_space={"x": tune.uniform(-1, 1), "n": tune.randint(1, 5)},
            tune_config=tune.TuneConfig(metric=metric, mode=mode, num_samples=6, seed=1),
            run_config=tune.RunConfig(storage_path=folder, name=name, verbose=0),
        ).fit()
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[OptunaDashboard]:
    with OptunaDashboard(root) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def ask(server: OptunaDashboard) -> Asker:
    address = ("127.0.0.1", server.server_port)
    return Asker(SimpleNamespace(server_address=address, token=server.token))


def test_it_shows_every_experiment(server: OptunaDashboard, ask: Asker):
    page = ask("GET", "/dashboard")
    assert page.status == 200 and page.body.count(b"<script") == 2
    studies = {study["study_name"]: study for study in ask("GET", "/api/studies").json["study_summaries"]}
    assert set(studies) == {"one", "two"}
    assert set(server.storage.left_out) == {"none"}
    details = ask("GET", f"/api/studies/{studies['one']['study_id']}").json
    assert [trial["state"] for trial in details["trials"]] == ["Complete"] * 6
    results = tune.ResultGrid.from_path(
        server.storage.get_study_user_attrs(studies["one"]["study_id"])["folder"]
    )
    assert [trial["values"] for trial in details["trials"]] == [[each.metrics["loss"]] for each in results]
    assert len(details["best_trials"]) == 1
    several = ask("GET", f"/api/studies/{studies['two']['study_id']}").json
    assert several["directions"] == ["minimize", "maximize"]
    assert several["objective_names"] == ["loss", "size"]
    assert len(several["best_trials"]) == len(
        tune.ResultGrid.from_path(Path(results.experiment_path).with_name("two")).pareto_front()
    )


@pytest.mark.parametrize(
    ("path", "method", "headers"),
    [
        ("/api/studies", "GET", {}),
        ("/api/studies?token=wrong", "GET", {}),
        ("/csv/0", "GET", {"Cookie": "trainkit-optuna=wrong"}),
        ("/api/studies", "GET", {"Authorization": "Bearer wrong"}),
        ("/api/studies", "POST", {}),
        ("/dashboard", "GET", {"Host": "evil.example:80"}),
        ("/dashboard", "GET", {"Host": "localhost:evil.example"}),
    ],
)
def test_who_was_not_shown_the_address_is_refused(ask: Asker, path: str, method: str, headers: Any):
    reply = ask(method, path, headers=headers)
    assert reply.status == 403
    assert set(reply.json) == {"reason"}
    assert "Set-Cookie" not in reply.headers


def test_another_name_for_this_machine_is_refused_with_the_token_too(ask: Asker):
    own = {"Authorization": f"Bearer {ask.server.token}", "Host": "evil.example"}
    reply = ask("GET", "/api/studies", headers=own)
    assert reply.status == 403 and b"127.0.0.1 and localhost" in reply.body


def test_what_would_write_is_refused_in_words(ask: Asker, root: Path):
    before = (root / "one" / "experiment.sqlite").read_bytes()
    for method, path in (
        ("POST", "/api/studies"),
        ("DELETE", "/api/studies/0"),
        ("PUT", "/api/studies/0/note"),
        ("POST", "/api/trials/0/tell"),
        ("POST", "/api/trials/0/user-attrs"),
    ):
        reply = ask(method, path, {})
        assert reply.status == 405
        assert "read-only" in reply.json["reason"]
    assert (root / "one" / "experiment.sqlite").read_bytes() == before


def test_the_page_holds_nothing_and_gives_no_cookie(server: OptunaDashboard, ask: Asker):
    """A cookie would go to the servers of other users at other ports of this machine."""
    for path in (server.address.partition(f":{server.server_port}")[2], "/static/bundle.js"):
        reply = ask("GET", path, headers={})
        assert reply.status == 200 and server.token.encode() not in reply.body
        assert "Set-Cookie" not in reply.headers
    assert ask("GET", "/static/optuna.js", headers={}).status == 200


def test_another_page_of_optunas_than_is_known_is_told_of(root: Path, monkeypatch, tmp_path: Path):
    import optuna_dashboard

    (tmp_path / "index.html").write_text("<script src='/static/other.js'></script>")
    monkeypatch.setattr(optuna_dashboard, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(DashboardError, match=r"install optuna-dashboard 0\.21"):
        OptunaDashboard(root)


@pytest.mark.external
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_its_page_sends_the_token_from_its_tab_alone(server: OptunaDashboard):
    """Over a reload too, and for a download; another tab that was not shown the address sees nothing."""
    with chromium() as browser:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.address)
        page.get_by_role("link", name="one").click()
        page.wait_for_url("**/dashboard/studies/*")
        page.reload()
        page.get_by_role("link", name="Smart Selection").click()
        with page.expect_download() as begun:
            page.get_by_text("Download CSV File").click()
        rows = begun.value.path().read_text().splitlines()
        assert len(rows) == 7 and rows[0].startswith("Number,State,loss,Param n,Param x")
        assert "token" not in page.url
        assert context.cookies() == []
        other = context.new_page()
        with other.expect_response("**/api/studies") as answered:
            other.goto(f"http://127.0.0.1:{server.server_port}/dashboard")
        assert answered.value.status == 403


WITHOUT_STARLETTE = """
import sys
sys.modules["starlette"] = sys.modules["uvicorn"] = sys.modules["plotly"] = None
from trainkit.cli.main import main
sys.exit(main(["dashboard", *sys.argv[1:]]))
"""


@pytest.mark.external
def test_optunas_pages_need_no_package_of_the_other_dashboard(tmp_path: Path):
    """Each server needs its own packages alone, and says which where they are missing."""

    def said(*options: str) -> str:
        return run_python("-c", WITHOUT_STARLETTE, tmp_path, *options, code=1, timeout=SOON_S).stderr

    assert "trainkit-ml[dashboard]" in said()
    assert "port 70000 cannot be used" in said("--optuna", "--port", "70000")


@pytest.mark.external
def test_the_command_serves_it_until_it_is_interrupted(root: Path):
    """It only reads, whether that is asked for or not."""
    command = [sys.executable, "-m", "trainkit", "dashboard", str(root), "--optuna", "--read-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert "none is left out: none has no metric" in lines[0]
        match = re.search(r"open http://127\.0\.0\.1:(\d+)(/dashboard\?token=\S+)", lines[1])
        assert match is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=SOON_S)
        connection.request("GET", match[2])
        assert connection.getresponse().status == 200
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 0
