"""Parts of the dashboard's server: threads that wait, names of the machine, what is kept of experiments."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from tests.conftest import eventually
from tests.plugins.dashboard.conftest import Asker, served, told
from trainkit import tune
from trainkit.errors import ConfigError
from trainkit.plugins.dashboard import board, reading
from trainkit.plugins.dashboard.access import Access
from trainkit.plugins.dashboard.board import Board, TrialTable
from trainkit.plugins.dashboard.mcp import MAX_TEXT, ReadingTools, _plain
from trainkit.plugins.dashboard.stream import EVERY_S, ExperimentWatch, Since
from trainkit.plugins.dashboard.threads import MAX_BESIDE, MAX_READERS, BusyError, Threads
from trainkit.tune.results.overview import LogReader, experiments_in
from trainkit.tune.results.printed import printed_files
from trainkit.tune.store.schema import FILENAME


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


def test_a_slow_experiment_takes_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of it, and pages, leave threads to who looks at another."""
    for name in ("slow", "other"):
        run = tune.RunConfig(name=name, storage_path=str(tmp_path), verbose=0)
        tune.Tuner(lambda config: tune.report({"loss": 1.0}), run_config=run).fit()
    go_on, held = threading.Event(), list[Path]()
    go_on.set()

    def slowly(method: Callable[..., Any]) -> Callable[..., Any]:
        def slow(table: TrialTable, *args: Any, **options: Any) -> Any:
            if table.folder.name == "slow" and not go_on.is_set():
                held.append(table.folder)
                assert go_on.wait(60)
            return method(table, *args, **options)

        return slow

    for name in ("refresh", "page"):
        monkeypatch.setattr(TrialTable, name, slowly(getattr(TrialTable, name)))
    with served(tmp_path) as ask:
        streams = [opened(ask, "/stream?experiment=slow") for _ in range(6)]
        try:
            for each in streams:
                assert each.getresponse().status == 200
            go_on.clear()
            assert eventually(lambda: held, 60)
            # No two of them ask for the same, which they would share.
            streams += [opened(ask, f"/experiments/slow/trials?limit={place + 1}") for place in range(50)]
            assert eventually(lambda: len(held) == 1 + MAX_READERS, 60)
            assert told(ask, "experiment=other", lambda heard: len(heard) == 1)
            for each in streams[:6]:
                each.close()
            assert told(ask, "experiment=other", lambda heard: len(heard) == 1)
            assert ask.get("/experiments/other/trials")["total"] == 1
            assert len(held) == 1 + MAX_READERS
            go_on.set()
            assert [each.getresponse().status for each in streams[6:]] == [200] * 50
        finally:
            go_on.set()
            for each in streams:
                each.close()


def test_a_session_is_asked_one_question_at_a_time() -> None:
    """The next takes no thread as it waits, so that other sessions are answered."""
    threads, go_on = Threads(), threading.Event()
    begun: list[str] = []

    def question(words: str) -> str:
        begun.append(words)
        assert words == "other" or go_on.wait(60)
        return words

    async def ask() -> None:
        slow = [
            asyncio.create_task(threads.ask(partial(question, f"slow {number}"), "a")) for number in range(20)
        ]
        assert await threads.ask(partial(question, "other"), "b") == "other"
        assert set(begun) <= {"other", "slow 0"}
        go_on.set()
        assert len(await asyncio.gather(*slow)) == 20

    asyncio.run(ask())
    threads.close()
    assert [each for each in begun if each != "other"] == [f"slow {number}" for number in range(20)]


def test_requests_beside_others_leave_threads_to_them() -> None:
    threads, go_on = Threads(), threading.Event()

    def slow() -> bool:
        return go_on.wait(60)

    async def ask() -> None:
        beside = list[asyncio.Task[bool]]()
        for kind in ("traces", "commands"):
            beside += [asyncio.create_task(threads.wait(slow, kind)) for _ in range(MAX_BESIDE)]
            await asyncio.sleep(0)
            with pytest.raises(BusyError, match=f"{kind} are under way already: ask again"):
                await threads.wait(slow, kind)
        for number in range(2 * MAX_BESIDE):
            assert await threads.ask(lambda: "other", f"{number}") == "other"
        go_on.set()
        assert await asyncio.gather(*beside) == [True] * 2 * MAX_BESIDE
        assert await threads.wait(lambda: "other", "traces") == "other"

    asyncio.run(ask())
    threads.close()


def test_the_names_of_the_machine_are_known_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look them up may take seconds, in which nobody else would be answered."""
    own = socket.gethostname()
    access = Access("token", "0.0.0.0")
    for name in ("getfqdn", "gethostname"):
        monkeypatch.setattr(socket, name, lambda *_: pytest.fail("looked up while others wait"))
    assert access.knows_host(f"{own}:80") and access.knows_host("192.0.2.7:80")
    assert not access.knows_host("evil.example")


def test_another_address_of_the_loopback_answers_to_its_name(tmp_path: Path) -> None:
    with served(tmp_path, host="127.0.0.2") as ask:
        assert ask.get("/status")["read_only"] is False
        assert ask("GET", "/api/status", headers={"Host": "evil.example"}).status == 403


def finished(root: Path, name: str, trainable: Any, log_to_file: Any = False, **space: Any) -> Path:
    tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(storage_path=root, name=name, verbose=0, log_to_file=log_to_file),
    ).fit()
    return root / name


def large(config: dict[str, Any]) -> dict[str, Any]:
    return {"loss": 1.0, "text": "x" * 3_000_000, **{f"m{number}": "y" * 900 for number in range(400)}}


def test_what_is_kept_of_experiments_is_bounded_in_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [finished(tmp_path, name, large, long="z" * 3_000_000) for name in ("a", "b")]
    seen = Board(tmp_path)
    tables = [seen.table(folder) for folder in folders]
    for table in tables:
        (row,) = table.page()[1]
        assert len(row["metrics"]["text"]) == len(row["config"]["long"]) == reading.MAX_TEXT + 3
        assert row["metrics"]["..."] == "there is more"
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


@pytest.mark.parametrize("fails", [False, True])
def test_who_asks_at_a_time_shares_an_answer_begun_since(fails: bool) -> None:
    threads, made = Threads(), list[asyncio.Event]()

    async def make() -> int:
        place = len(made)
        made.append(asyncio.Event())
        await made[place].wait()
        if fails:
            raise LookupError(place)
        return place

    async def asked() -> int:
        try:
            return await threads.share("chart", make)
        except LookupError as error:
            return int(error.args[0])

    async def ask() -> None:
        first = [asyncio.create_task(asked()) for _ in range(2)]
        while not made:
            await asyncio.sleep(0)
        later = [asyncio.create_task(asked()) for _ in range(4)]
        await asyncio.sleep(0.01)
        assert len(made) == 1, "who has come meanwhile waits until it is made"
        made[0].set()
        assert await asyncio.gather(*first) == [0, 0], "those who ask at one moment share it"
        while len(made) == 1:
            await asyncio.sleep(0)
        later.pop(0).cancel()  # it has the others' answer made
        made[1].set()
        assert await asyncio.gather(*later) == [1, 1, 1]

    asyncio.run(ask())
    threads.close()
    gc.collect()
    assert not threads._answers


def test_an_error_that_nobody_waits_for_is_not_printed() -> None:
    threads, printed = Threads(), list[Any]()

    async def ask() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: printed.append(found))
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def fail() -> None:
            begun.set()
            await go_on.wait()
            raise LookupError

        asked = asyncio.create_task(threads.share("chart", fail))
        await begun.wait()
        asked.cancel()
        go_on.set()
        await asyncio.sleep(0.01)
        gc.collect()

    asyncio.run(ask())
    threads.close()
    assert printed == []


def test_answers_are_shared_by_who_asks_for_one_experiment_only(tmp_path: Path) -> None:
    """Also where a name has characters that would end a path, or that an address leaves out."""
    names = ["run#1", "run#2", "run%231", "ab", "a\tb"]
    for name in names:
        finished(tmp_path, name, printing)

    def asked(name: str) -> set[str]:
        return {ask.get(f"/experiments/{quote(name)}")["name"] for _ in range(20)}

    with served(tmp_path) as ask, ThreadPoolExecutor(10) as users:
        assert list(users.map(asked, names * 2)) == [{name} for name in names * 2]


def test_who_shares_looks_is_told_all_though_others_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "MAX_TABLES", 1)
    folder, other = (finished(tmp_path, name, printing) for name in ("e", "other"))
    seen = Board(tmp_path)
    who_leaves, watch = ExperimentWatch(seen, folder), ExperimentWatch(seen, folder)
    since = Since()
    for number in range(2):  # so that a table that begins anew would be behind
        since, _ = who_leaves(since)
        seen.table(folder).page()
        note(folder, f"before {number}")
    since, _ = who_leaves(since)
    del who_leaves
    seen.table(other)
    gc.collect()
    note(folder, "told")
    change = watch(since)[1]
    assert change is not None
    assert change["more"] or [row["reason"] for row in change["rows"]] == ["told"]


def note(folder: Path, reason: str) -> None:
    """Have the only trial changed, as its owner would."""
    with closing(sqlite3.connect(folder / FILENAME)) as file, file:
        file.execute("UPDATE trials SET reason = ?", (reason,))
        file.execute(
            "INSERT INTO events SELECT max(events.seq) + 1, 1.0, 'noted', trials.trial_id, '' "
            "FROM events, trials"
        )
    time.sleep(EVERY_S)


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
    with pytest.raises(ConfigError, match="nothing that the trial printed"):
        ReadingTools(tmp_path).logs("e", trial.trial_id)


def test_texts_for_agents_are_cut() -> None:
    told = _plain({"a": ["x" * 20_000], "b": {"y" * 20_000: 1}, "c": "short"})
    assert len(told["a"][0]) == MAX_TEXT + 3 and told["c"] == "short"
    assert len(next(iter(told["b"]))) == MAX_TEXT + 3


def test_experiments_of_a_folder_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        finished(tmp_path, name, printing)
    (tmp_path / "c").mkdir()
    assert experiments_in(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert experiments_in(tmp_path / "a") == [tmp_path / "a"]
