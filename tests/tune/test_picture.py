"""How trials and numbers are laid out: in a terminal, as text and as HTML; no experiment is run."""

from __future__ import annotations

import io
import re

import pytest
import rich.console

from trainkit.tune import display
from trainkit.tune.core.trial import STATES, Trial, TrialStatus
from trainkit.tune.display import (
    ExperimentProgress,
    Table,
    progress_table,
)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_long_names_and_reasons_leave_room_for_the_numbers(width):
    progress = ExperimentProgress("loss", "min", 0.0)
    varied = {"x": 0.2923, "net/lr": 0.0004492, "optimizer": "torch.optim.Adam"}
    reason = "stopped by ASHA: " + "rank 2 of 3, " * 9
    trial = Trial("5f3a_00001", 0, {}, name="a", dirname="a", iteration=4, reason=reason)
    trial.evaluated_params = varied
    trial.status = TrialStatus.TERMINATED
    trial.last_result = {"loss": -0.0730871, "time_total_s": 1.25}
    progress.look([trial])
    info = {"time": 9.0, "total_samples": 1, "resources": {}, "resources_used": {}}
    console = rich.console.Console(width=width, file=io.StringIO())
    console.print(progress_table(progress, info, "/somewhere"))
    head, row, _ = console.file.getvalue().splitlines()[-3:]
    assert head.split() == ["trial", "state", "iteration", "loss", "seconds", "parameters", "why"]
    pattern = r"^5f3a_00001 +stopped +4 +-0.0730871 +1.2 +x=0.2923,.*(…|Adam) +stopped.*$"
    assert re.search(pattern, row), row
    assert len(row) <= width


@pytest.mark.parametrize(
    ("status", "reason", "state"),
    [
        ("TERMINATED", "finished", "finished"),
        ("TERMINATED", "reported done=True", "finished"),
        ("TERMINATED", "finished; killed, because it did not end in time", "finished"),
        ("TERMINATED", "training_iteration=9 reached 9", "finished"),
        ("TERMINATED", "eval/a=b=-1.5e-07 reached -inf; killed, because it did not end in time", "finished"),
        ("TERMINATED", "reached max_t=9", "finished"),
        ("TERMINATED", "stopped by ASHA: reached max_t=9", "finished"),  # as older files have it
        ("TERMINATED", "stopped by ASHA: rung 1, rank 9 of 9", "stopped"),
        ("TERMINATED", "stopped by Own: note loss=3 reached 3", "stopped"),
        ("TERMINATED", "stopped by ann@box (pid 1): has reached its end", "stopped"),
        ("TERMINATED", "time budget", "stopped"),
        ("TERMINATED", "not promoted: rung 1", "stopped"),
        ("ERROR", "ValueError: one", "failed"),
        ("PENDING", "interrupted by SIGTERM", "interrupted"),
        ("PENDING", "", "pending"),
        ("RUNNING", "", "running"),
        ("PAUSED", "paused by ASHA", "paused"),
    ],
)
def test_a_trial_that_was_stopped_has_another_state_than_a_finished_one(status, reason, state):
    trial = Trial("a", 0, {}, name="a", dirname="a", tag="", status=TrialStatus(status), reason=reason)
    assert trial.state == state
    assert state in STATES


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        (
            "stopped by HyperBand: rung 1 of bracket 0, rank 9 of 9, 3 continue, cutoff 0.25",
            "rung 1, rank 9/9, 3 continue, cutoff 0.25",
        ),
        (
            "paused by BOHB's HyperBand: rung 9 of bracket 1, waits for 3 more trials",
            "rung 9, waits for",
        ),
        ("stopped by ASHA: reached max_t=9", "reached max_t=9"),
        ("stopped by Plateau: std 0", "stopped by Plateau: std 0"),
        ("stopped by ann@box (pid 1): not run", "stopped by ann@box (pid 1): not run"),
        ("ValueError: one\ntwo", "ValueError: one"),
    ],
)
def test_a_schedulers_reason_is_short_in_the_table_and_whole_beside_it(reason, short):
    assert display.short_reason(reason).startswith(short)
    trial = Trial("a", 0, {}, name="a", dirname="a", tag="0_lr=0.0004492", iteration=4, reason=reason)
    trial.last_result = {"loss": -0.0730871, "time_total_s": 1.25}
    progress = ExperimentProgress("loss", "min", 0.0)
    progress.look([trial])
    info = {"time": 9.0, "total_samples": 1, "resources": {}, "resources_used": {}}
    console = rich.console.Console(width=100, file=io.StringIO())
    console.print(progress_table(progress, info, "/somewhere"))
    assert short in console.file.getvalue().splitlines()[-2]
    assert trial.reason == reason


def test_a_table_is_escaped_in_html_and_aligned_as_text():
    table = Table(["a", "b"], [["1", "<b>"], ["22", ""]], ["<script>"], below="& more", strong=0)
    page = table.html()
    assert "<script>" not in page
    assert "&lt;b&gt;" in page
    assert table.text() == "<script>\na   b\n1   <b>\n22\n& more"


def test_wide_letters_are_two_places_wide_and_a_cell_is_one_line():
    table = Table(["name", "why"], [["漢字", "x\x1b[2J"], ["abcde", "y"]], ["a\nb"])
    assert table.text() == "a b\nname   why\n漢字   x [2J\nabcde  y"
