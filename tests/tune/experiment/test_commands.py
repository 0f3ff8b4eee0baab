"""A running experiment is steered from another process."""

from __future__ import annotations

import contextlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.tune.controller.harness import Play, kinds
from trainkit.client import Experiment
from trainkit.errors import TuneError
from trainkit.tune.controller import events as ev
from trainkit.tune.results.overview import LogReader
from trainkit.tune.store.commands import Inbox, asker, leave_command
from trainkit.tune.store.ownership import Ownership
from trainkit.tune.store.writer import ExperimentStore


def leave(folder: Path, trial_id: str | None, by: str) -> Path:
    return leave_command(folder, "stop", {"trial": trial_id}, by)


@pytest.mark.external
def test_the_owner_finds_what_was_left_and_only_that(tmp_path):
    start = time.time()
    old = leave(tmp_path, "old", "somebody")  # for an owner that has ended
    os.utime(old, (start - 60, start - 60))
    left = leave(tmp_path, "a", "ann")
    inbox = Inbox(tmp_path, start)
    assert inbox.look(start) == [ev.CommandGiven(start, "ann", "stop", {"trial": "a"}, left.stem)]
    leave(tmp_path, None, "bob")
    assert inbox.look(start + 0.1) == [], "it looked just now"
    leave(tmp_path, "b", "cid")
    asked = inbox.look(start + 1)
    assert [(each.by, each.arguments["trial"]) for each in asked] == [("bob", None), ("cid", "b")]
    assert inbox.look(start + 2) == []
    assert list((tmp_path / "commands").iterdir()) == []
    (tmp_path / "commands" / ".half.partial").write_text("{")
    assert inbox.look(start + 3) == []
    assert asker().endswith(f"(pid {os.getpid()})")


def test_what_is_no_wish_is_told_of_and_harms_nobody(tmp_path, caplog):
    inbox = Inbox(tmp_path, 0.0)
    (tmp_path / "commands").mkdir()
    (tmp_path / "commands" / "a.json").write_text("{")
    (tmp_path / "commands" / "b.json").write_text("[1]")
    (tmp_path / "commands" / "c.json").write_text('{"id": 1, "verb": "stop", "by": "x", "arguments": 2}')
    (tmp_path / "commands" / "d.json").write_bytes(b"[" * 100_000)
    (tmp_path / "commands" / "e.json").mkdir()
    text = '{"id": "f", "verb": "stop", "by": "%s", "arguments": {}}'
    (tmp_path / "commands" / "f.json").write_text(text % "\\ud800")  # half a character
    (tmp_path / "commands" / "g.json").write_text(text % "")
    deep = '{"x": ' * 900 + "1" + "}" * 900
    text = f'{{"id": "h", "verb": "add", "by": "x", "arguments": {{"config": {deep}}}}}'
    (tmp_path / "commands" / "h.json").write_text(text)
    left = leave(tmp_path, None, "ann")
    assert [each.id for each in inbox.look(1.0)] == [left.stem], "what can't be read holds up no other"
    assert caplog.text.count("the file is removed") == 7
    assert "cannot be read" in caplog.text
    (tmp_path / "commands" / "e.json").rmdir()
    caplog.clear()
    (tmp_path / "commands").rmdir()
    (tmp_path / "commands").write_text("")
    assert inbox.look(2.0) == []
    assert "cannot be read" in caplog.text


def test_a_command_that_the_history_has_is_not_carried_out_again(tmp_path, caplog):
    """Such as one that a copy of the folder has brought back."""
    since = time.time()
    first, second = leave(tmp_path, "a", "ann"), leave(tmp_path, "b", "ann")
    again = second.read_text()
    inbox = Inbox(tmp_path, since, {first.stem})
    assert [each.id for each in inbox.look(since + 1)] == [second.stem]
    second.write_text(again)
    assert inbox.look(since + 2) == []
    assert caplog.text.count("was already carried out") == 2
    assert not list((tmp_path / "commands").iterdir())


def taken(inbox: Inbox) -> list[ev.CommandGiven]:
    return inbox.look(time.time())


@pytest.fixture
def owned(tmp_path):
    """An experiment that this very process owns."""
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", {"created": 0.0})) as store:
        yield store


def test_a_command_is_answered_by_what_its_owner_has_committed(owned):
    asked = Experiment(owned.folder, by="ann")
    inbox, play = Inbox(owned.folder, time.time()), Play(num_samples=1)
    with ThreadPoolExecutor(1) as executor:
        asking = executor.submit(asked.stop)
        assert eventually(lambda: (commands := taken(inbox)) and play.send(*commands) is not None)
        owned.commit([record for record in play.records if isinstance(record, ev.Noted)])
        answer = asking.result()
    assert (answer.verb, answer.by, answer.done, answer.arguments) == ("stop", "ann", True, {})
    assert asked.commands() == [answer]
    assert list((owned.folder / "commands").iterdir()) == []
    with LogReader(owned.folder) as reader:
        assert answer.seq in [event.seq for event in reader.events()]


def test_a_command_that_nobody_takes_is_taken_back(owned):
    asked = Experiment(owned.folder, timeout_s=0.2)
    with pytest.raises(TuneError, match=r"has not answered within 0\.2 s: the command was withdrawn"):
        asked.stop()
    assert list((owned.folder / "commands").iterdir()) == []
    assert asked.commands() == []


def test_a_command_that_was_taken_and_not_answered_says_so(owned):
    asked = Experiment(owned.folder, timeout_s=1.0)
    inbox = Inbox(owned.folder, time.time())
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(asked.stop)
        assert eventually(lambda: taken(inbox))
        with pytest.raises(TuneError, match=r"`commands\(\)` will show the answer"):
            answered.result()


def test_the_end_of_the_owner_is_an_error_not_a_wait(owned):
    asked = Experiment(owned.folder)
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(asked.stop)
        assert eventually(lambda: list((owned.folder / "commands").glob("*.json")))
        owned._ownership.close()
        with pytest.raises(TuneError, match="has ended before it handled the command"):
            answered.result()
        assert list((owned.folder / "commands").iterdir()) == [], "nobody who goes on with it finds it"
        with pytest.raises(TuneError, match="no process runs"):
            asked.stop()
    owned._ownership = Ownership(owned.folder)  # to be closed


def test_a_trial_is_stopped_where_it_stands():
    play = Play(num_samples=5, cpus=2, metric="loss", started=1)

    def ask(index: int) -> list[ev.Action]:
        play.time += 0.001
        return play.order("stop", "ann@box (pid 3)", trial=f"test_{index:05d}")

    assert ask(0) == []
    assert kinds(play.reported(0, {"loss": 1.0})) == ["Stop"]
    assert kinds(play.finished(0)) == ["Release", "Start"]
    assert play.trial(0).reason == "stopped by ann@box (pid 3)"
    assert ask(1) == [], "before it was set up"
    assert kinds(play.started(1)) == ["Stop"]
    play.finished(1)
    assert play.statuses()[1] == "TERMINATED", "though it never reported the metric"
    play.started(2)
    ask(2)
    assert kinds(play.tick(play.plan.grace_s)) == ["Kill", "Release", "Start"], "it did not report"
    assert "killed" in play.trial(2).reason
    before = len(play.records)
    ask(2)
    assert [record.kind for record in play.records[before:]] == ["command"], "it has ended"
    assert (play.answers[-1]["done"], "has ended already" in play.answers[-1]["outcome"]) == (False, True)
    play.order("stop", "ann@box (pid 3)")
    assert play.controller.ending == "stopped by ann@box (pid 3)"
    assert [each["done"] for each in play.answers] == [True, True, True, False, True]
    play.order("stop")
    assert "is already ending" in play.answers[-1]["outcome"]
    play.order("dance", trial=["test_00000"])
    assert "'dance' is not a command" in play.answers[-1]["outcome"]
