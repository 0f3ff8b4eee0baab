"""Workers that stop at the same step, though they do not ask at the same time."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from trainkit.train.workers.pausing import StopVote


def test_a_worker_that_runs_ahead_stops_at_the_same_question(tmp_path: Path) -> None:
    first, second = (StopVote(tmp_path / "page", 2) for _ in range(2))
    assert [second.answer(False), second.answer(False), second.answer(False)] == [False] * 3
    assert [first.answer(False), first.answer(True)] == [False, False]
    assert [second.answer(True), first.answer(True), first.answer(True)] == [True, False, True]


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_questions_gives_one_answer(tmp_path: Path, seed: int) -> None:
    drawn = random.Random(seed)
    votes = [StopVote(tmp_path / "page", 3) for _ in range(3)]
    answers: list[list[bool]] = [[], [], []]
    turns = [rank for rank in range(3) for _ in range(40)]
    drawn.shuffle(turns)
    known = drawn.randrange(60)
    for turn, rank in enumerate(turns):
        answers[rank].append(votes[rank].answer(turn >= known + drawn.randrange(5)))
    assert answers[0] == answers[1] == answers[2]
    assert True in answers[0] and answers[0] == sorted(answers[0])


def test_a_single_worker_stops_at_once(tmp_path: Path) -> None:
    vote = StopVote(tmp_path / "page", 1)
    assert [vote.answer(False), vote.answer(True), vote.answer(False)] == [False, True, True]


def test_a_forked_process_has_no_vote(tmp_path: Path) -> None:
    vote, other = (StopVote(tmp_path / "page", 2) for _ in range(2))
    if not (child := os.fork()):
        os._exit(int(vote.answer(True)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert not any(other.answer(False) for _ in range(9))
