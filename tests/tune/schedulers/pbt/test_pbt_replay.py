"""Lineage, policy files and the replay of a schedule, by hand."""

from __future__ import annotations

import json

import pytest

from trainkit.errors import ConfigError
from trainkit.tune.core.lineage import Exchange, lineage
from trainkit.tune.core.seeds import scheduler_generator
from trainkit.tune.schedulers import (
    PopulationBasedTrainingReplay,
    Verdict,
    create_scheduler,
)
from trainkit.tune.schedulers.pbt.replay import policy_lines, read_policy

START = {name: {"lr": value} for name, value in (("a", 1), ("b", 2), ("c", 3))}
TAGS = {"a": "0_lr=1", "b": "1_lr=2", "c": "2_lr=3"}

# a takes over c after 5, then b after 10; b takes over a after 20; c was at 8 and 16 as it was asked.
HISTORY = [
    Exchange("a", 5, {"lr": 4}, "c", 4),
    Exchange("a", 10, {"lr": 5}, "b", 8),
    Exchange("c", 12, {"lr": 6}, "a", 10),
    Exchange("b", 20, {"lr": 7}, "a", 18),
]


def line(trial_id: str, last: int) -> list[tuple]:
    stretches = lineage(HISTORY, START, trial_id, last)
    return [(each.trial_id, each.config["lr"], each.first, each.last, each.before) for each in stretches]


def test_it_follows_the_weights_and_not_the_trial():
    assert line("b", 25) == [("b", 2, 0, 8, 0), ("a", 5, 10, 18, 8), ("b", 7, 20, 25, 16)]
    assert line("a", 12) == [("b", 2, 0, 8, 0), ("a", 5, 10, 12, 8)]
    assert line("a", 9) == [("c", 3, 0, 4, 0), ("a", 4, 5, 9, 4)]
    assert line("b", 19) == [("b", 2, 0, 19, 0)]


def test_a_state_that_was_passed_on_at_once():
    """Trial c took over from a, which had trained nothing since it took over from b."""
    assert line("c", 15) == [("b", 2, 0, 8, 0), ("c", 6, 12, 15, 8)]
    assert line("c", 12) == [("b", 2, 0, 8, 0), ("c", 6, 12, 12, 8)]


def test_a_configuration_that_memory_has_changed_is_a_stretch_of_its_own():
    own = [Exchange("a", 3, {"lr": 9})]
    stretches = lineage(own, START, "a", 5)
    assert [(each.config["lr"], each.first, each.last) for each in stretches] == [(1, 0, 3), (9, 3, 5)]


def test_policy_files_hold_the_line_and_nothing_else():
    rows = [json.loads(text) for text in policy_lines(HISTORY, START, TAGS, "b")]
    assert rows == [
        ["0_lr=1", "1_lr=2", 10, 8, {"lr": 2}, {"lr": 5}],
        ["1_lr=2", "0_lr=1", 20, 16, {"lr": 5}, {"lr": 7}],
    ]


RAYS = """\
["0_lr=1", "2_lr=3", 5, 4, {"lr": 3}, {"lr": 4}]
["0_lr=1", "1_lr=2", 10, 8, {"lr": 2}, {"lr": 5}]
["1_lr=2", "0_lr=1", 20, 16, {"lr": 5}, {"lr": 7}]
"""
"""As Ray writes it: the first line is of what trial 0 did before, and was overwritten by the second."""


def test_what_a_trial_did_before_it_was_overwritten_is_not_replayed(tmp_path):
    schedule = read_policy(RAYS, "a file")
    assert schedule.initial == {"lr": 2}
    assert schedule.changes == ((8, {"lr": 5}), (16, {"lr": 7}))
    (tmp_path / "pbt_policy_x.txt").write_text(RAYS)
    by_file = PopulationBasedTrainingReplay(str(tmp_path / "pbt_policy_x.txt"))
    by_folder = PopulationBasedTrainingReplay(tmp_path, trial_id="x")
    assert by_file.schedule == by_folder.schedule == schedule
    assert create_scheduler("pbt_replay", policy_file=tmp_path / "pbt_policy_x.txt").schedule == schedule


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("no json", "line 1"),
        (RAYS + "[1, 2]\n", "line 4"),
        ('["a", "b", 1, "x", {}, {}]\n', "line 1"),
    ],
)
def test_what_is_no_policy_file(tmp_path, text, words):
    path = tmp_path / "pbt_policy_x.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        PopulationBasedTrainingReplay(path)


@pytest.fixture
def replay(tmp_path):
    (tmp_path / "p.txt").write_text(RAYS)
    scheduler = PopulationBasedTrainingReplay(tmp_path / "p.txt")
    scheduler.set_search_properties(None, None, scheduler_generator(0), 1)
    return scheduler


def test_changes_come_when_they_are_due(replay):
    replay.on_trial_add("t", {"lr": 2})
    changed = []
    for t in range(1, 30):
        decision = replay.on_result("t", {"training_iteration": t})
        if decision.verdict is Verdict.PAUSE:
            (donor,) = decision.donors
            changed.append((t, donor.trial_id, donor.config["lr"]))
    assert changed == [(8, "t", 5), (16, "t", 7)]


def test_a_report_that_is_late_or_comes_again(replay):
    replay.on_trial_add("t", {"lr": 2})
    (donor,) = replay.on_result("t", {"training_iteration": 17}).donors
    assert donor.config == {"lr": 7}
    assert replay.on_result("t", {"training_iteration": 9}).verdict is Verdict.CONTINUE
    assert replay.on_result("t", {}).verdict is Verdict.CONTINUE


def test_there_is_one_trial(replay):
    for total in (2, None):
        with pytest.raises(ConfigError, match="one trial"):
            replay.set_search_properties(None, None, scheduler_generator(0), total)
    with pytest.raises(ConfigError, match="lr"):
        replay.on_trial_add("t", {"lr": 9})
