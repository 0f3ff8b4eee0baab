"""Dashboard of several machines: over sshd on this machine, of which each has a home of its own."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.conftest import RUN, eventually
from tests.plugins.cluster.ground import Hosts as Ground
from tests.plugins.cluster.ground import reason_to_skip
from tests.plugins.dashboard import browser
from tests.plugins.dashboard.conftest import Asker, finished, served, told
from tests.plugins.slurm.ground import Slurm, missing
from trainkit.plugins.cluster.machines import Machines
from trainkit.plugins.dashboard import Hosts

pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "needs SSH")


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Three hosts, of which the first two have an experiment; the third is down."""
    folder = tmp_path_factory.mktemp("ground")
    with Ground(folder / "hosts", homes=True) as ground, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", ground.environment()["PATH"])
        for host, name in (("h1", "one"), ("h2", "two")):
            finished(home(ground, host) / "experiments", name, lambda config: {"loss": config["x"]}, x=1.5)
        ground.end("h3")
        yield ground


def home(ground: Ground, host: str) -> Path:
    return ground.folder / host


@contextmanager
def shown(
    root: Path, hosts: str, folder: str | None = "~/experiments", python: str = sys.executable, **more: Any
) -> Iterator[Asker]:
    """Serve this machine and hosts; all hosts have been reached, or can't be."""
    with served(root, hosts=Hosts(Machines.named(hosts), folder, python), **more) as ask:
        assert eventually(lambda: not any("being reached" in each for each in problems(ask).values()), 60)
        yield ask


def problems(ask: Asker) -> dict[str, str]:
    return {each["machine"]: each["problem"] for each in ask.get("/machines")}


def names(ask: Asker) -> dict[str, str]:
    return {each["name"]: each["machine"] for each in ask.get("/experiments")}


def served_there(before: Iterable[psutil.Process] = ()) -> dict[psutil.Process, Path]:
    """Return the dashboards on hosts, with their sockets, that were not there before."""
    lines = {each: each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])}
    return {
        each: Path(line[line.index("--socket") + 1])
        for each, line in lines.items()
        if "--socket" in line and each not in before and each.environ().get(RUN) == os.environ[RUN]
    }


@pytest.fixture(scope="module")
def many(ground: Ground, root: Path) -> Iterator[Asker]:
    """A dashboard of all machines."""
    with shown(root, "h1,h2,h3") as ask:
        yield ask


def test_all_machines_are_on_one_page(ground: Ground, many: Asker) -> None:
    assert names(many) == {"first one": "", "h1/one": "h1", "h2/two": "h2"}
    found = problems(many)
    assert (found[""], found["h1"], found["h2"]) == ("", "", "")
    assert re.fullmatch(r"h3 can't be reached: ssh: .*refused.* \(next attempt in \d+ s\)", found["h3"])

    (row,) = many("GET", "/api/machines/h1/experiments/one/trials?limit=1").json["rows"]
    assert row["config"] == {"x": 1.5}
    trial = f"/api/machines/h1/experiments/one/trials/{row['trial_id']}"
    kept = many("PUT", f"{trial}/note", {"text": "a b"})
    assert (kept.status, many("GET", trial).json["note"]) == (200, "a b")
    export = many("GET", "/api/machines/h2/experiments/two/export?format=csv")
    assert export.headers["Content-Disposition"] == 'attachment; filename="trials.csv"'
    assert export.headers["X-Content-Type-Options"] == "nosniff" and len(export.body.splitlines()) == 2
    assert many("GET", "/api/machines/h1/status").json["root"] == f"{home(ground, 'h1')}/experiments"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/experiments/nonesuch", 404, "has no experiment 'nonesuch'"),
        ("GET", "/experiments/one/trials?limit=x", 400, "limit must be an integer"),
        ("POST", "/experiments/one/stop", 409, "no process runs"),
        ("DELETE", "/experiments/one", 405, "does not support the method DELETE"),
    ],
)
def test_refusals_of_a_host_pass_unchanged(
    many: Asker, method: str, path: str, status: int, words: str
) -> None:
    reply = many(method, f"/api/machines/h1{path}")
    assert (reply.status, words in reply.json["error"]) == (status, True), reply.body


def test_hosts_are_shown_to_the_owner_of_the_token_only(many: Asker) -> None:
    refused = many("GET", "/api/machines/h1/experiments", headers={"Authorization": "Bearer wrong"})
    assert refused.status == 403
    for path in ("h9/experiments", "h9", "h1", "", "%2F"):
        assert many("GET", f"/api/machines/{path}").status == 404
    lost = many("GET", "/api/machines/h3/experiments")
    assert lost.status == 502 and "h3 can't be reached" in lost.json["error"]


def test_a_read_only_dashboard_writes_on_no_host(ground: Ground, tmp_path: Path) -> None:
    with shown(tmp_path, "h1", read_only=True) as ask:
        reply = ask("PUT", "/api/machines/h1/experiments/one/note", {"text": "no"})
        assert reply.status == 403 and "read-only" in reply.json["error"]


def test_an_experiment_in_a_shared_folder_is_shown_once(ground: Ground, root: Path) -> None:
    with shown(root, "h1,h2", str(root)) as ask:
        assert names(ask) == {"first one": ""}


def test_the_list_changes_by_itself(ground: Ground, tmp_path: Path) -> None:
    folder = home(ground, "h1") / "experiments" / "later"
    with shown(tmp_path, "h1") as ask:

        def until(heard: list[Any]) -> bool:
            if heard and not folder.exists():
                finished(folder.parent, folder.name, lambda config: {"loss": 1})
            return bool(heard) and "h1/later" in [each["name"] for each in heard[-1]["experiments"]]

        assert told(ask, "", until)[-1]["machines"][1] == {"machine": "h1", "problem": ""}
    shutil.rmtree(folder)


def test_a_lost_host_is_named_and_comes_back(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainkit.plugins.dashboard.machines.PAUSES_S", (0.1, 0.1))
    with shown(tmp_path, "h1,h2") as ask:
        sockets = served_there().values()
        ground.end("h2")
        assert eventually(lambda: names(ask) == {"h1/one": "h1"}, 60), (names(ask), problems(ask))
        assert "h2" in problems(ask)["h2"]
        ground.begin("h2")
        assert eventually(lambda: names(ask) == {"h1/one": "h1", "h2/two": "h2"}, 60)
    for path in sockets:  # of a dashboard that was killed
        path.unlink(missing_ok=True)


def test_nothing_stays_on_a_host(ground: Ground, tmp_path: Path) -> None:
    before = served_there()
    with shown(tmp_path, "h1") as ask:
        assert names(ask) == {"h1/one": "h1"}
        ((there, path),) = served_there(before).items()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not [
            each for each in there.net_connections() if each.status == psutil.CONN_LISTEN and each.laddr
        ]
    assert not path.exists() and not there.is_running()


def test_a_dashboard_that_is_killed_leaves_no_process_on_a_host(ground: Ground, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainkit", "dashboard", "~/experiments", "--ssh", "h1"]
    before = served_there()
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert eventually(lambda: served_there(before), 60)
    program.kill()
    program.wait()
    assert eventually(lambda: not served_there(before), 60)


@pytest.mark.parametrize(
    ("folder", "python", "words"),
    [
        ("~/experiments", "/nonesuch/python", "/nonesuch/python: "),
        ("~/experiments", shutil.which("python3", path="/usr/bin") or "", "No module named"),
        ("/nonesuch", sys.executable, "/nonesuch is not a folder"),
    ],
)
def test_a_host_without_trainkit_or_experiments_is_named(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, python: str, words: str
) -> None:
    if python != sys.executable:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    with shown(tmp_path, "h1", folder, python) as ask:
        assert words in problems(ask)["h1"] and names(ask) == {}


@pytest.mark.skipif(bool(missing()), reason=missing() or "needs Slurm")
def test_jobs_and_nodes_of_slurm(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINKIT_RESULTS_DIR", str(tmp_path / "results"))
    with Slurm(tmp_path / "slurm", 2, gpus=4) as slurm:
        monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
        monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{slurm.env['PATH']}")
        script = tmp_path / "fails.py"
        script.write_text("raise SystemExit(3)")
        words = [sys.executable, "-m", "trainkit", "submit", "--mem", "1500", str(script)]
        ended = (
            subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[1].rstrip(":")
        )
        slurm.wait_for(ended, "FAILED")
        options = ["--gres=gpu:3", "--job-name=a|b", "--output=/dev/null", "--wrap=sleep 600"]
        runs = slurm.run("sbatch", "--parsable", *options)
        waits = slurm.run("sbatch", "--parsable", "--hold", *options)
        node = slurm.wait_for(runs, "RUNNING")["NodeList"]
        settings = ground.folder / "h2.conf"
        known = f"SetEnv SLURM_CONF={slurm.env['SLURM_CONF']} "
        settings.write_text(settings.read_text().replace("SetEnv ", known))
        ground.end("h2")
        ground.begin("h2")
        with shown(tmp_path, "h1,h2") as ask:
            found = ask.get("/machine")
            assert found["slurm"]["problem"] == "" and found["total_bytes"] > found["used_bytes"] > 0
            states = {each["id"]: (each["name"], each["state"]) for each in found["slurm"]["jobs"]}
            assert states[runs][0] == "a|b" and states[runs][1].startswith(f"runs on {node}")
            assert "is held" in states[waits][1]
            assert states[ended] == ("fails", "has failed with exit code 3")
            nodes = {each["name"]: each for each in found["slurm"]["nodes"]}
            assert {name: (each["used_gpus"], each["gpus"]) for name, each in nodes.items()} == {
                "n1": (0, 4),
                "n2": (0, 4),
                node: (3, 4),
            }
            if browser.CHROMIUM is not None:
                with browser.chromium() as started:
                    seen = opened(started, ask)
                    seen.go("#/machines")
                    cluster = seen.page.get_by_role("region", name="Slurm, seen from this machine, h2")
                    expect(cluster.locator("tr", has_text=node).last).to_contain_text("3 of 4")
                    other = seen.page.get_by_role("region", name="Slurm, seen from h1")
                    expect(other).to_contain_text("squeue failed")
                    assert browser.serious(seen.page) == [] and seen.complaints == []
                    seen.close()
            slurm.run("scancel", runs, waits)
            slurm.wait_for(runs, "CANCELLED")
    with shown(tmp_path, "h1") as ask:  # the controller is gone
        assert "squeue failed" in ask.get("/machine")["slurm"]["problem"]


def opened(started: Browser, ask: Asker) -> browser.Sight:
    return browser.Sight.of(started, f"http://127.0.0.1:{ask.address[1]}/?token={ask.server.token}")


@pytest.mark.skipif(browser.CHROMIUM is None, reason="needs Chromium")
def test_pages_of_a_host_in_a_browser(ground: Ground, tmp_path: Path) -> None:
    folder = home(ground, "h2") / "experiments"
    with browser.alive(folder), shown(tmp_path, "h1,h2,h3") as ask, browser.chromium() as started:
        seen = opened(started, ask)
        page = seen.page
        assert "h3 can't be reached" in page.inner_text(".problem")
        row = page.locator("tr", has_text="live")
        expect(row).to_contain_text("h2")
        row.get_by_role("link", name="live").click()
        expect(page.locator("h1")).to_have_text("h2/live")
        seen.settle()
        page.get_by_role("button", name="Stop").first.click()
        page.locator("dialog").get_by_role("button", name="Stop").click()
        expect(page.locator(".badge", has_text="stopped early").first).to_be_visible(timeout=60_000)
        seen.go("#/compare/h1%2Fone/h2%2Flive")
        expect(page.locator("h1")).to_have_text("2 experiments compared")
        expect(page.get_by_role("link", name="h1/one")).to_be_visible()
        seen.go("#/sessions")
        expect(page.locator("h1")).to_have_text("Sessions")
        assert browser.serious(page) == []
        assert seen.complaints == []
        seen.close()
    shutil.rmtree(folder / "live")
