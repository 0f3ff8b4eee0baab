"""What workers print: in the driver with a prefix, and in files byte by byte."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import trainkit
from tests.conftest import eventually, printed
from tests.runtime.local.talkers import Rank, Talker
from trainkit import settings
from trainkit.runtime.local.node.logs import LineDeduplicator, OutputPipe, SessionLogs, WorkerOutput
from trainkit.runtime.local.wire.messages import output_mark
from trainkit.runtime.session import engine


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINKIT_LOG_DIR", str(tmp_path / "logs"))
    return tmp_path / "logs"


@pytest.fixture
def session(folder: Path) -> Iterator[None]:
    trainkit.init(num_cpus=2)
    yield
    trainkit.shutdown()


def talker(**options: Any) -> Any:
    return trainkit.remote(Talker).options(**options).remote()


def logged(folder: Path, kind: str) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob(f"*/Talker-*.{kind}"))


def test_a_quiet_session_leaves_nothing(session: None, folder: Path) -> None:
    trainkit.get(talker().pid.remote())
    trainkit.shutdown()
    assert not folder.exists()


def test_the_files_hold_all_lines_in_order(session: None, folder: Path) -> None:
    actor = talker()
    pid = trainkit.get(actor.pid.remote())
    trainkit.get(actor.count.remote(3_000))
    trainkit.shutdown()
    (out,) = folder.glob("*/*.out")
    assert out.name == f"Talker-{pid}.out"
    assert out.read_text().splitlines() == [f"line {index}" for index in range(3_000)]
    assert out.with_suffix(".err").read_text().splitlines() == [f"error {index}" for index in range(3_000)]
    assert {path.stat().st_mode & 0o777 for path in (folder, out.parent)} == {0o700}
    assert out.stat().st_mode & 0o777 == 0o600


class Unmade:
    def __init__(self) -> None:
        raise ArithmeticError("not made")


def test_a_failed_constructor_shows_the_users_frames_alone(
    session: None, capfd: pytest.CaptureFixture[str]
) -> None:
    unmade = trainkit.remote(Unmade).remote()
    assert eventually(lambda: "ArithmeticError: not made" in printed(capfd)[1]), unmade
    told = printed(capfd)[1]
    assert "in __init__" in told and "trainkit/runtime" not in told


def test_they_are_written_without_lines_in_the_driver(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainkit.init(num_cpus=1, log_to_driver=False)
    actor = talker()
    trainkit.get(actor.say.remote("kept all the same"))
    trainkit.shutdown()
    assert logged(folder, "out") == b"kept all the same\n"
    assert "kept" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (b"caf\xe9 \xff\xfe\n", "caf� ��"),
        (b"\r 10%|#  |\r 50%|## |\r100%|###|\n", "100%|###|"),
        (b"from Windows\r\n", "from Windows"),
    ],
    ids=["no UTF-8", "progress bar", "CRLF"],
)
def test_bytes_stay_what_they_are(
    session: None, folder: Path, capfd: pytest.CaptureFixture[str], printed: bytes, shown: str
) -> None:
    actor = talker()
    pid = trainkit.get(actor.pid.remote())
    trainkit.get(actor.write.remote(1, printed))
    trainkit.shutdown()
    assert logged(folder, "out") == printed
    assert f"(Talker pid={pid}) {shown}\n" in capfd.readouterr().out


def test_a_worker_that_dies_while_printing_names_its_files(
    session: None, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    actor = talker()
    with pytest.raises(trainkit.errors.ActorDiedError) as raised:
        trainkit.get(actor.die_in_the_middle.remote())
    out, err = (path for path in sorted(folder.glob("*/*"), key=lambda path: path.suffix == ".err"))
    assert out.read_bytes() == b"whole line\nhalf a li"
    assert err.read_bytes() == b"why it ended\n"
    assert "why it ended" in str(raised.value)
    assert str(out) in str(raised.value)
    assert str(err) in str(raised.value)
    trainkit.shutdown()
    assert "half a li\n" in capfd.readouterr().out


def test_a_name_is_no_path(session: None, folder: Path) -> None:
    trainkit.get(talker(label="../../up and away").say.remote("here"))
    trainkit.shutdown()
    assert [path.read_bytes() for path in folder.glob("*/*.out")] == [b"here\n"]


def test_a_folder_that_cannot_be_made_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRAINKIT_LOG_DIR", str(tmp_path / "file" / "logs"))
    trainkit.init(num_cpus=1)
    actor = talker()
    trainkit.get([actor.say.remote("still shown") for _ in range(3)])
    trainkit.shutdown()
    shown = capfd.readouterr()
    assert shown.out.count("still shown") == 3
    assert shown.err.count("is no longer written to files") == 1


@dataclass
class Printer:
    name: str = "Talker"
    serial: int = 2
    pid: int | None = 7


def test_what_is_printed_before_the_pid_is_known_comes_first(folder: Path) -> None:
    worker = Printer(pid=None)
    logs = SessionLogs("0123456789abcdef")
    logs.write(worker, "out", b"first ")
    assert not folder.exists()
    worker.pid = 7
    logs.write(worker, "out", b"second")
    assert logged(folder, "out") == b"first second"


def test_output_from_before_the_pid_is_known_is_written_without_further_output(folder: Path) -> None:
    worker = Printer(pid=None)
    output = WorkerOutput(SessionLogs("0123456789abcdef"), False, lambda *_: None, lambda *_: None)
    output.keep(worker, "out", b"all")
    worker.pid = 7
    output.keep(worker, "out", b"")
    assert logged(folder, "out") == b"all"


def test_a_large_file_is_put_aside(folder: Path) -> None:
    logs = SessionLogs("0123456789abcdef", most_bytes=100)
    for number in range(35):
        logs.write(Printer(), "out", f"{number:09}\n".encode())
    (current,) = folder.glob("*/Talker-7.out")
    (aside,) = folder.glob("*/Talker-7.out.1")
    note, *lines = current.read_text().splitlines()
    assert note == f"[trainkit: the previous {aside.stat().st_size} B are in Talker-7.out.1]"
    assert int(lines[-1]) == 34
    assert int(aside.read_text().splitlines()[-1]) == int(lines[0]) - 1


def test_the_newest_ten_sessions_are_kept(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine").mkdir()
    for number in range(14):
        (folder / f"20200101-0000{number:02}-01234567").mkdir()
    SessionLogs("89abcdef").write(Printer(), "out", b"new")
    left = sorted(path.name for path in folder.iterdir())
    assert left[:9] == [f"20200101-0000{number:02}-01234567" for number in range(5, 14)]
    assert left[9].endswith("-89abcdef")
    assert left[10:] == ["mine"], "what is no session's is not touched"


def test_where_they_are_kept_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRAINKIT_LOG_DIR")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = settings.log_dir()
    assert found.name == "logs"
    assert found.parent.parent == tmp_path
    assert found.parent.name.startswith("trainkit-")


def test_an_actor_is_shown_by_its_repr(session: None, capfd: pytest.CaptureFixture[str]) -> None:
    plain = [trainkit.remote(Rank).remote(rank) for rank in range(2)]
    labelled = trainkit.remote(Rank).options(label="worker").remote(2)
    pids = trainkit.get([actor.pid.remote() for actor in (*plain, labelled)])
    trainkit.get([actor.say.remote("hello") for actor in (*plain, labelled)])
    trainkit.shutdown()
    names = ["Rank(rank=0)", "Rank(rank=1)", "worker"]
    expected = [f"({name} pid={pid}) hello" for name, pid in zip(names, pids, strict=True)]
    assert sorted(capfd.readouterr().out.splitlines()) == sorted(expected)


def first() -> int:
    print("one")
    return os.getpid()


def second(captured: str = "") -> int:
    print("half", end="", flush=True)
    print(" and half")
    print("an error", file=sys.stderr)
    if captured:
        kept, file = os.dup(1), os.open(captured, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
        print("captured")
        os.dup2(kept, 1)
    os.system("echo of another program")
    return os.getpid()


def partial() -> int:
    print("no end", end="")
    return os.getpid()


def test_what_a_task_prints_is_shown_under_its_own_name(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainkit.init(num_cpus=1)
    one, two = trainkit.remote(first), trainkit.remote(second)
    pids = trainkit.get([one.remote()])
    pids += trainkit.get([two.remote(str(tmp_path / "captured"))])
    pids += trainkit.get([one.options(name="named").remote()])
    pids += trainkit.get([one.remote()])
    for _ in range(2):
        pids += trainkit.get([trainkit.remote(partial).remote()])
    pids += trainkit.get([one.remote()])
    pids += trainkit.get([trainkit.remote(partial).remote()])
    trainkit.shutdown()
    (pid,) = set(pids)
    out, err = capfd.readouterr()
    assert [line for line in out.splitlines() if f"pid={pid}" in line] == [
        f"(first pid={pid}) one",
        f"(second pid={pid}) half and half",
        f"(second pid={pid}) of another program",
        f"(named pid={pid}) one",
        f"(first pid={pid}) one",
        *[f"(partial pid={pid}) no end"] * 2,
        f"(first pid={pid}) one",
        f"(partial pid={pid}) no end",
    ]
    assert f"(second pid={pid}) an error\n" in err
    (file,) = folder.glob("*/*.out")
    printed = "one\nhalf and half\nof another program\none\none\n"
    assert file.read_text() == printed + "no endno endone\nno end"
    assert (tmp_path / "captured").read_text() == "captured\n"


@pytest.mark.parametrize("size", [1, 7])
def test_marks_are_taken_out_wherever_a_read_ends(size: int) -> None:
    printed = (
        b"plain\n" + output_mark("f") + b"a\x1d\nb" + output_mark("") + b"c\n" + output_mark("g") + b"d\x1d"
    )
    found: list[tuple[str | None, list[str]]] = []
    kept: list[bytes] = []
    ours, theirs = os.pipe()
    pipe = OutputPipe(ours, lambda lines, name: found.append((name, lines)), kept.append)
    for start in range(0, len(printed), size):
        os.write(theirs, printed[start : start + size])
        pipe.read()
    os.close(theirs)
    pipe.drain()
    pipe.close()
    lines = [(name, line) for name, some in found for line in some]
    assert lines == [(None, "plain"), ("f", "a\x1d"), ("f", "b"), ("", "c"), ("g", "d\x1d")]
    assert b"".join(kept) == b"plain\na\x1d\nbc\nd\x1d"


def test_lines_of_several_workers_are_shown_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRAINKIT_DEDUP_LOGS")
    for turned_off in (False, True):
        if turned_off:
            monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
        trainkit.init(num_cpus=4)
        actors = [talker() for _ in range(3)]
        pids = trainkit.get([actor.pid.remote() for actor in actors])
        node = engine().state("nodes")[0]["pid"]
        os.kill(node, signal.SIGSTOP)  # until all have printed: it counts what comes within a second
        trainkit.get(
            [actor.say.remote("loaded", f"rank {rank}", "", "") for rank, actor in enumerate(actors)]
        )
        os.kill(node, signal.SIGCONT)
        assert eventually(lambda: printed(capfd)[0].count("rank") == 3)
        trainkit.shutdown()
        lines = sorted(capfd.readouterr().out.splitlines())
        ranks = sorted(line.partition(") ")[2] for line in lines if "rank" in line)
        assert ranks == ["rank 0", "rank 1", "rank 2"]
        assert len([line for line in lines if line.endswith(") ")]) == 6
        loaded = [line.partition(") ") for line in lines if "loaded" in line]
        words = ["loaded"] * 3 if turned_off else ["loaded", "loaded [repeated 2x by other workers]"]
        assert sorted(text for _, _, text in loaded) == words
        who = {who for who, _, _ in loaded}
        assert len(who) == len(words) and who <= {f"(Talker pid={pid}" for pid in pids}


def test_what_is_repeated_is_counted_and_told_in_time() -> None:
    folding = LineDeduplicator()
    first = folding.fresh(2, "a", 12, False, ["same", "own", ""], 0.0)
    assert first == ["same", "own", ""]
    assert folding.fresh(2, "a", 12, False, ["same"], 1.0) == ["same"]
    assert folding.fresh(3, "b", 13, False, ["same", "other", ""], 2.0) == ["other", ""]
    assert folding.fresh(4, "c", 14, True, ["same"], 3.0) == ["same"], "standard error is another matter"
    assert folding.fresh(4, "c", 14, False, ["same"], 4.0) == []
    assert folding.due(4.9) == []
    (repeated,) = folding.due(5.0)
    assert (repeated.name, repeated.pid, repeated.text) == ("c", 14, "same [repeated 2x by other workers]")
    assert folding.fresh(5, "d", 15, False, ["same", "rare", "end"], 5.1) == ["same", "rare", "end"]
    assert folding.fresh(6, "e", 16, False, ["rare"], 5.2) == []
    assert folding.due(6.1) == []
    (alone,) = folding.due(6.2)
    assert (alone.name, alone.text) == ("e", "rare"), "repeated once: shown plainly, and soon"
    assert folding.fresh(7, "f", 17, False, ["end"], 6.3) == []
    assert folding.last_of(16) == []
    assert [known.text for known in folding.last_of(17)] == ["end"], "shown when that worker has ended"
    assert folding.last_of(17) == []
    many = [f"line {index}" for index in range(3_000)]
    assert folding.fresh(6, "e", 16, False, many, 6.0) == many
    assert folding.fresh(7, "f", 17, False, many[-10:], 6.0) == many[-10:], "so many are not remembered"
    assert folding.due(100.0) == []
    assert not folding
