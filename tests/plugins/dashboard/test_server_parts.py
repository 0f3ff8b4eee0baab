"""Parts of the dashboard's server: threads that end, downloads, what is kept of experiments."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.conftest import eventually
from tests.plugins.dashboard.conftest import Asker, finished, served
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.dashboard.experiments import board, reading
from trainkit.plugins.dashboard.experiments.board import Board
from trainkit.plugins.dashboard.mcp import MAX_TEXT, Tools, _plain
from trainkit.tune.results.overview import LogReader, printed_files


def threads_of_servers() -> set[str]:
    """Return the kinds of threads that dashboards in this process have."""
    names = (each.name for each in threading.enumerate())
    return {name.rpartition("_")[0] for name in names if name.startswith("trainkit-dashboard-")}


def test_no_thread_outlives_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as ask:
        ask.get("/sessions/none/logs", 404)
        headers = {"Authorization": f"Bearer {ask.server.token}"}
        host, port = ask.server.server_address
        with urlopen(Request(f"http://{host}:{port}/api/stream", headers=headers), timeout=60) as stream:
            assert stream.readline() == b"event: change\n"
            assert eventually(lambda: len(threads_of_servers()) == 2, 60)
        assert threads_of_servers() == {"trainkit-dashboard-waits", "trainkit-dashboard-looks"}
    assert threads_of_servers() == set()


def opened(ask: Asker, path: str, method: str = "GET", body: bytes | None = None) -> HTTPConnection:
    """Ask, and wait for no answer."""
    connection = HTTPConnection(*ask.address, timeout=60)
    connection.request(method, f"/api{path}", body, {"Authorization": f"Bearer {ask.server.token}"})
    return connection


def large(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": 1.0, "text": "x" * 3_000_000, **{f"m{number}": "y" * 900 for number in range(400)}}


@pytest.mark.slow
def test_what_is_kept_of_experiments_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [finished(tmp_path, name, large, long="z" * 3_000_000) for name in ("a", "b")]
    seen = Board(tmp_path)
    tables = [seen.table(folder) for folder in folders]
    for table in tables:
        (row,) = table.page()[1]
        assert len(row["metrics"]["text"]) == len(row["config"]["long"]) == reading.MAX_TEXT + 3
        assert row["metrics"]["..."] == "further values are left out"
        assert 0 < table.size_bytes < 3 * reading.MAX_ROW
    assert len(str(seen.summary(folders[0]))) < 10_000, "it has the best configuration"
    assert seen.table(folders[0]) is tables[0]
    monkeypatch.setattr(board, "MAX_BYTES", tables[0].size_bytes + 1)
    assert seen.table(folders[1]) is tables[1], "the one that is asked for is kept"
    assert seen.table(folders[0]) is tables[0], "who watches it has it still"
    seen.table(folders[1])
    gone = weakref.ref(tables[0])
    tables.clear()
    del table
    gc.collect()
    assert gone() is None


def printing(config: dict[str, Any]) -> dict[str, Any]:
    print("a line")
    Path(tune.get_context().get_trial_dir(), "weights.bin").write_bytes(b"\0" * 100)
    return {"loss": 1.0}


@pytest.mark.slow
def test_answers_are_shared_by_who_asks_for_one_experiment_only(tmp_path: Path) -> None:
    """Also where a name has characters that would end a path, or that an address leaves out."""
    names = ["run#1", "run#2", "run%231", "ab", "a\tb"]
    for name in names:
        finished(tmp_path, name, printing)

    def asked(name: str) -> set[str]:
        return {ask.get(f"/experiments/{quote(name)}")["name"] for _ in range(20)}

    with served(tmp_path) as ask, ThreadPoolExecutor(10) as users:
        assert list(users.map(asked, names * 2)) == [{name} for name in names * 2]


def test_a_file_that_grows_is_sent_as_it_was(tmp_path: Path) -> None:
    finished(tmp_path, "e", printing, True)
    (log,) = tmp_path.glob("e/*/stdout")
    size = (1 << 25) + 1  # more than the connection holds
    with served(tmp_path) as ask:
        (row,) = ask.get("/experiments/e/trials")["rows"]
        os.truncate(log, size)
        connection = opened(ask, f"/experiments/e/trials/{row['trial_id']}/files/stdout")
        reply = connection.getresponse()
        with log.open("ab") as file:
            file.write(b"more")
        assert reply.headers["Content-Length"] == str(size)
        assert len(reply.read()) == size
        connection.close()


def test_a_download_that_was_cut_off_leaves_no_file_open_and_goes_on(tmp_path: Path) -> None:
    (folder,) = finished(tmp_path, "e", printing).glob("printing_*")
    large = folder / "large"
    large.write_bytes(os.urandom(1 << 25))
    content = large.read_bytes()

    def open_files() -> int:
        links = [Path("/proc/self/fd", each) for each in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == str(large) for link in links)

    with served(tmp_path) as ask:
        (row,) = ask.get("/experiments/e/trials")["rows"]
        path = f"/api/experiments/e/trials/{row['trial_id']}/files/large"
        own = {"Authorization": f"Bearer {ask.server.token}"}
        tag = ask("GET", path).headers["ETag"]
        gc.disable()  # it would close what nobody has
        try:
            for _ in range(3):
                gone = HTTPConnection(*ask.address, timeout=60)
                gone.request("GET", path, headers=own)
                gone.getresponse().read(100)
                gone.close()
            assert eventually(lambda: open_files() == 0, 60)
        finally:
            gc.enable()
        rest = ask("GET", path, headers={**own, "Range": f"bytes={1 << 24}-", "If-Range": tag})
        assert (rest.status, rest.body) == (206, content[1 << 24 :])
        assert rest.headers["Content-Range"] == f"bytes {1 << 24}-{(1 << 25) - 1}/{1 << 25}"
        assert ask("GET", path, headers={**own, "Range": "bytes=2-5"}).body == content[2:6]
        for asked, of in (("5-2", tag), (f"{1 << 26}-", tag), ("0-1", '"another"'), ("1-2,4-5", tag)):
            whole = ask("GET", path, headers={**own, "Range": f"bytes={asked}", "If-Range": of})
            assert (whole.status, len(whole.body)) == (200, 1 << 25)


def test_only_what_was_printed_is_a_log(tmp_path: Path) -> None:
    def logs(ask: Asker, name: str) -> list[str]:
        (row,) = ask.get(f"/experiments/{name}/trials")["rows"]
        return [
            each["name"] for each in ask.get(f"/experiments/{name}/trials/{row['trial_id']}/logs")["files"]
        ]

    finished(tmp_path, "none", printing)
    finished(tmp_path, "one", printing, "said.txt")
    finished(tmp_path, "usual", printing, True)
    with served(tmp_path) as ask:
        assert logs(ask, "none") == []
        assert logs(ask, "one") == ["said.txt"]
        assert logs(ask, "usual") == ["stdout", "stderr"]


def test_no_log_is_read_outside_of_the_experiment(tmp_path: Path) -> None:
    """An experiment that somebody has sent may name any folder, and hold any link."""
    folder = finished(tmp_path, "e", printing, True)
    with LogReader(folder) as reader:
        (trial,) = reader.trials()
    (tmp_path / "stdout").write_text("of another")
    assert printed_files(folder, "..", True) == printed_files(folder, str(tmp_path), True) == []
    assert len(printed_files(folder, trial.dirname, True)) == 2
    for name in ("stdout", "stderr"):
        (folder / trial.dirname / name).unlink()
        os.symlink(tmp_path / "stdout", folder / trial.dirname / name)
    assert printed_files(folder, trial.dirname, True) == []
    with pytest.raises(ConfigError, match="has no printed output: set"):
        Tools(tmp_path).logs("e", trial.trial_id)


def test_texts_for_agents_are_cut() -> None:
    told = _plain({"a": ["x" * 20_000], "b": {"y" * 20_000: 1}, "c": "short"})
    assert len(told["a"][0]) == MAX_TEXT + 3 and told["c"] == "short"
    assert len(next(iter(told["b"]))) == MAX_TEXT + 3
