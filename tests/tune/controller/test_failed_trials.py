"""max_failed_trials: a broken sweep ends early, and says once what is broken."""

from __future__ import annotations

import pytest

from tests.tune.controller.harness import Play
from trainkit import tune
from trainkit.errors import TuneError
from trainkit.tune.controller.failures import grouped
from trainkit.tune.core.configs import FailureConfig
from trainkit.tune.core.trial import Failure

pytestmark = pytest.mark.usefixtures("inline")


def broken(config):
    raise ValueError(f"no luck with {config['x']}")


def test_so_many_failed_trials_end_the_experiment(fit, tmp_path):  # row 2.14
    run = {"failure_config": FailureConfig(max_failed_trials=3)}
    with pytest.raises(TuneError) as caught:
        fit(broken, {"x": tune.uniform(0, 1)}, num_samples=50, max_concurrent_trials=1, run=run)
    text = str(caught.value)
    assert "3 of 3 trials have failed" in text
    assert text.count("Traceback") == 1
    assert "3 x ValueError: no luck with" in text and "(and 2 other messages)" in text
    assert "in broken" in text
    assert "`trainkit show" in text
    assert f"Tuner.restore({str(tmp_path / 'e')!r}, trainable).get_results()" in text
    grid = tune.Tuner.restore(tmp_path / "e", broken).get_results()
    assert (len(grid), grid.num_errors) == (3, 3)


def test_a_retry_that_succeeds_is_no_failed_trial():
    play = Play(num_samples=4, cpus=1, failure=FailureConfig(max_failures=1, max_failed_trials=1), started=1)
    play.failed(0)
    assert not play.controller.ending
    play.ends(0)
    play.started(1)
    play.failed(1)
    play.started(1)
    play.failed(1)
    assert play.controller.ending == "too many failed trials"
    assert play.controller.done


def test_what_runs_beside_the_last_failure_is_gone_on_with_by_a_restore():
    play = Play(num_samples=4, cpus=2, failure=FailureConfig(max_failed_trials=1), started=2)
    play.failed(0)
    play.reported(1, {"loss": 1})
    play.finished(1)
    play.controller.close(play.time)
    assert play.statuses() == ["ERROR", "PENDING"]


def trace(line: int) -> str:
    return f'Traceback\n  File "a.py", line {line}, in f\n    raise ValueError\nValueError: no'


def test_errors_are_grouped_by_class_and_place():
    failed = [
        ("t0", Failure("ValueError", "no 1", trace(3))),
        ("t1", Failure("KeyError", "'a'", trace(4))),
        ("t2", Failure("ValueError", "no 2", trace(3))),
        ("t3", Failure("ValueError", "no 3", trace(9))),
        ("t4", Failure("ActorDiedError", "t4 (pid 17) was killed")),
        ("t5", Failure("ActorDiedError", "t5 (pid 99) was killed")),
    ]
    text = grouped(failed)
    assert text.count("Traceback") == 3
    first, second = (
        text.index("2 x ValueError: no 1 (and 1 other messages)\n  in t0, t2"),
        text.index("t4, t5"),
    )
    assert first < second < text.index("1 x KeyError") < text.index("1 x ValueError: no 3")
    many = grouped([(f"t{n}", Failure("ValueError", "no")) for n in range(12)])
    assert many == f"12 x ValueError: no\n  in {', '.join(f't{n}' for n in range(10))}, ..."
