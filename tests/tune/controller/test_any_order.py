"""The controller and its lines of waiting trials under any order of events."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune.controller.harness import Play
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.state import WaitingTrials
from trainkit.tune.core.configs import CheckpointConfig, FailureConfig
from trainkit.tune.core.trial import Failure, Trial, TrialStatus
from trainkit.tune.schedulers import ASHAScheduler

OUT_OF_MEMORY = Failure("MemoryError", "", out_of_memory=True)


def less(config):
    return {"x": config["x"] / 2} if config["x"] > 0.1 else None


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_whatever_happens_the_experiment_ends_with_every_trial_settled(data):
    samples, cpus = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 3))
    play = Play(
        num_samples=samples,
        cpus=cpus,
        metric="m",
        scheduler=ASHAScheduler(max_t=5, reduction_factor=2),
        failure=FailureConfig(
            max_failures=data.draw(st.integers(0, 2)),
            max_failed_trials=data.draw(st.sampled_from([None, None, 2])),
            out_of_memory=data.draw(st.sampled_from([None, "retry_alone", less])),
        ),
        trial_timeout_s=data.draw(st.sampled_from([None, 50])),
        checkpoints=CheckpointConfig(num_to_keep=data.draw(st.sampled_from([None, 1, 2]))),
    )
    saved: dict[int, int] = {}
    for _ in range(400):
        if play.controller.done:
            break
        assert len(play.calls) <= cpus
        alone = [trial for trial in play.controller.trials if trial.trial_id in play.calls and trial.alone]
        assert not alone or len(play.calls) == 1
        if data.draw(st.integers(0, 60)) == 0:
            asked = data.draw(st.sampled_from([*(trial.trial_id for trial in play.controller.trials), None]))
            play.order("stop", trial=asked)
        if data.draw(st.integers(0, 30)) == 0:
            play.tick(20)
        if data.draw(st.integers(0, 40)) == 0:
            failures = sum(trial.failures for trial in play.controller.trials)
            play.lost()
            assert sum(trial.failures for trial in play.controller.trials) == failures
        if not play.calls:
            continue
        trial_id = data.draw(st.sampled_from(sorted(play.calls)))
        index = int(trial_id.split("_")[1])
        match play.calls[trial_id]:
            case "setup":
                act = data.draw(st.sampled_from(["start", "start", "start", "fail", "interrupt"]))
                if act == "start":
                    play.started(index)
                elif act == "fail":
                    play.failed(index)
                elif data.draw(st.integers(0, 20)) == 0:
                    play.interrupt()
            case "advance":
                act = data.draw(st.sampled_from(["report"] * 6 + ["save", "done", "fail", "oom", "finish"]))
                metrics = {"m": data.draw(st.floats(0, 1) | st.just(math.nan))}
                if act == "fail":
                    play.failed(index)
                elif act == "oom":
                    play.send(ev.Failed(*play._who(index), OUT_OF_MEMORY))
                elif act == "finish":
                    play.finished(index)
                else:
                    number = saved.get(index, 0)
                    saved[index] = number + (act == "save")
                    name = f"checkpoint_{number:06d}" if act == "save" else None
                    play.reported(index, metrics, name, done=act == "done")
            case "stop":
                play.finished(index) if data.draw(st.booleans()) else play.tick(100)
    assert play.controller.done
    assert play.calls == {}
    assert len(play.controller.ledger) == 0
    play.controller.close(play.time)
    ending = play.controller.ended_by
    allowed = {"TERMINATED", "ERROR"} | ({"PENDING"} if ending and ending.resumable else set())
    assert set(play.statuses()) <= allowed
    keys = [(r.trial.trial_id, r.attempt, r.iteration) for r in play.recorded(ev.ResultAdded)]
    assert len(keys) == len(set(keys))
    if not play.controller.ending:
        assert len(play.controller.trials) == samples


moves = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60)


def trials(alone=()):
    return [Trial(f"t{index}", index, {}, "", "", alone=index in alone) for index in range(10)]


@given(moves, st.sets(st.integers(0, 9)), st.sampled_from([TrialStatus.PENDING, TrialStatus.PAUSED]))
def test_they_wait_in_the_order_suggested(moves, alone, status):
    everyone = trials(alone)
    for trial in everyone:
        trial.status = TrialStatus.RUNNING
    line, waiting = WaitingTrials(everyone, status), set()
    apart = alone if status is TrialStatus.PENDING else set()
    for index, comes in moves:
        if comes and index not in waiting:
            line.add(everyone[index])
            waiting.add(index)
        elif not comes:
            assert line.remove(everyone[index]) == (index in waiting)
            waiting.discard(index)
        shared = [f"t{index}" for index in sorted(waiting - apart)]
        assert (list(line.sharing), len(line.sharing), line.sharing[:2]) == (shared, len(shared), shared[:2])
        assert [each in line.sharing for each in ("t0", "t1", "")] == [
            each in shared for each in ("t0", "t1", "")
        ]
        assert [line.sharing[0], line.sharing[-1]] == [shared[0], shared[-1]] if shared else True
        assert line.first_alone == (everyone[min(waiting & apart)] if waiting & apart else None)
        assert [trial.index for trial in line] == sorted(waiting)
        assert len(line) == len(waiting)
