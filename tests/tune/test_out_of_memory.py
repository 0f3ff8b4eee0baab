"""Where memory is not enough: what counts as that, and what follows."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.tune.controller.harness import Play, kinds
from trainkit import tune
from trainkit.errors import ActorDiedError, ConfigError, TuneError
from trainkit.tune.controller import events as ev
from trainkit.tune.controller.failures import is_out_of_memory
from trainkit.tune.controller.lifecycle import Retry, what_follows
from trainkit.tune.core.configs import FailureConfig
from trainkit.tune.core.resources import PlacementGroupFactory
from trainkit.tune.core.trial import Failure, Trial
from trainkit.tune.executor.actors import ActorExecutor
from trainkit.tune.store.reader import ExperimentReader

OOM = Failure("OutOfMemoryError", "CUDA out of memory", out_of_memory=True)


# --- what counts as that --------------------------------------------------------------------------


class OutOfMemoryError(RuntimeError):
    """As torch.cuda's, by name."""


def test_all_ways_to_run_out_of_memory_are_known():
    import numpy as np

    with pytest.raises(MemoryError) as numpys:
        np.zeros(10**18, np.uint8)
    enough = [
        MemoryError(),
        numpys.value,
        OutOfMemoryError("CUDA"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        ),
        ActorDiedError("a (pid 1) was ended: memory limit exceeded: it used 1 GiB of the 512 MiB"),
        ActorDiedError(
            "a was killed by SIGKILL; it was probably the OOM killer, as the kernel ran out of memory"
        ),
    ]
    assert [is_out_of_memory(error) for error in enough] == [True] * len(enough)
    others = [
        ValueError("out of memory is not what this is"),
        ActorDiedError("a (pid 1) was killed by SIGKILL"),
        TuneError("CUDA out of memory"),
        KeyError("memory"),
    ]
    assert not any(map(is_out_of_memory, others))


def test_torchs_own_error_is_known():
    torch = pytest.importorskip("torch")
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("no"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**18)
    assert is_out_of_memory(caught.value)


# --- the rules ------------------------------------------------------------------------------------


def trial(**facts) -> Trial:
    return Trial("t", 0, facts.pop("config", {"batch": 64}), name="t", dirname="t", **facts)


def halved(config):
    config["batch"] //= 2
    return config if config["batch"] >= 16 else None


def test_without_a_policy_it_is_a_failure_as_any():
    assert what_follows(trial(), OOM, FailureConfig()) == OOM
    assert what_follows(trial(), OOM, FailureConfig(max_failures=1)).reason == (
        "retry 1 of 1 after OutOfMemoryError"
    )


def test_the_configuration_is_changed_until_it_fits_or_is_given_up():
    policy, one = FailureConfig(out_of_memory=halved), trial()
    retry = what_follows(one, OOM, policy)
    assert retry == Retry(
        "retry with another configuration after OutOfMemoryError: batch=32",
        counts=False,
        config={"batch": 32},
    )
    assert one.config == {"batch": 64}, "the function gets a copy"
    end = what_follows(trial(config={"batch": 16}), OOM, policy)
    assert isinstance(end, Failure) and "returned None" in end.message
    other = Failure("ValueError", "no")
    assert what_follows(one, other, policy) == other


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config, "tried before"),
        (lambda config: {"batch": 128}, "tried before"),
        (lambda config: 7, "not a dictionary"),
        (lambda config: config["size"], "raised KeyError"),
        (lambda config: {"batch": object()}, "cannot be stored"),
    ],
)
def test_a_function_that_leads_nowhere_ends_the_trial(change, words):
    tried = trial(tried=[{"batch": 128}])
    end = what_follows(tried, OOM, FailureConfig(out_of_memory=change, max_failures=3))
    assert isinstance(end, Failure) and words in end.message and end.message.startswith(OOM.message)


def test_a_trial_that_runs_alone_shares_with_nobody():  # row 2.3
    play = Play(num_samples=5, cpus=3, failure=FailureConfig(out_of_memory="retry_alone"), started=3)
    assert [action.trial.index for action in oom(play, 1) if isinstance(action, ev.Start)] == [3]
    play.started(3)
    play.reported(0, {}, done=True)
    play.started(4)
    for index in (2, 3):
        assert not any(isinstance(action, ev.Start) for action in play.reported(index, {}, done=True))
    (*_, start) = play.reported(4, {}, done=True)
    assert (start.trial.index, start.attempt) == (1, 1), "once nothing else runs or waits"
    play.started(1)
    oom(play, 1)  # and is not tried a third time
    assert play.controller.done
    assert play.statuses() == ["TERMINATED", "ERROR", *["TERMINATED"] * 3]
    assert play.trial(1).failures == 1


def oom(play: Play, index: int) -> list[ev.Action]:
    return play.send(ev.Failed(*play._who(index), OOM))


def test_in_an_endless_search_it_is_alone_as_soon_as_may_be():
    play = Play(num_samples=-1, cpus=2, failure=FailureConfig(out_of_memory="retry_alone"), started=2)
    assert kinds(oom(play, 0)) == ["Release"], "nothing else starts"
    assert kinds(play.reported(1, {}, done=True)) == ["Release", "Start"]
    play.started(0)
    assert list(play.calls) == ["test_00000"]
    assert kinds(play.reported(0, {}, done=True)) == ["Release", "Start", "Start"]


def test_what_a_changed_configuration_needs_is_asked_anew():
    play = Play(
        num_samples=1,
        cpus=4,
        request_of=lambda config: PlacementGroupFactory([{"CPU": config.get("cpu", 1)}]),
        failure=FailureConfig(
            out_of_memory=lambda config: {"cpu": {1: 4, 4: 5}[config.get("cpu", 1)]}, max_failures=9
        ),
        started=1,
    )
    oom(play, 0)
    assert play.trial(0).request.required_resources == {"CPU": 4}
    play.started(0)
    assert kinds(oom(play, 0)) == ["Release"]
    assert play.trial(0).failure.kind == "InfeasibleError"


# --- in an experiment -----------------------------------------------------------------------------


def fits_at_16(config):
    tune.report({"batch": config["batch"], "step": 1})
    if config["batch"] > 16:
        raise OutOfMemoryError("CUDA out of memory")
    tune.report({"batch": config["batch"], "step": 2})


@pytest.mark.usefixtures("inline")
def test_every_attempt_stays_in_the_history_with_what_it_ran_with(fit, tmp_path):  # row 2.3
    seen = []

    class Look(tune.Callback):
        def on_trial_result(self, iteration, trials, trial, result, **info):
            seen.append((trial.attempt, result["config"]["batch"], result["batch"]))

    run = {"failure_config": FailureConfig(out_of_memory=halved), "callbacks": [Look()]}
    (result,) = fit(fits_at_16, {"batch": 64, "kind": dict}, run=run)
    assert result.status == "TERMINATED"
    assert result.config == {"batch": 16, "kind": dict}
    assert result.metrics["config"]["batch"] == 16
    assert seen == [(0, 64, 64), (1, 32, 32), (2, 16, 16), (2, 16, 16)]
    database = sqlite3.connect(tmp_path / "e" / "experiment.sqlite")
    attempts = database.execute("SELECT attempt, config FROM attempts ORDER BY attempt").fetchall()
    database.close()
    assert [(n, config and json.loads(config)["batch"]) for n, config in attempts] == [
        (0, None),
        (1, 32),
        (2, 16),
    ]
    reread = tune.Tuner.restore(
        tmp_path / "e",
        fits_at_16,
        param_space={"batch": 64, "kind": dict},
        run_config=tune.RunConfig(failure_config=FailureConfig(out_of_memory=halved), callbacks=[Look()]),
    ).get_results()[0]
    assert reread.config == {"batch": 16, "kind": dict}
    assert [report["config"]["batch"] for report in reread.history] == [16, 16]


class Crash(Exception):
    pass


@pytest.fixture
def crash(monkeypatch):
    """Ends the driver before the first start of a trial for which a function is true; gives this up after."""

    def crash(when):
        carry_out = ActorExecutor.carry_out

        def broken(self, actions):
            if any(isinstance(action, ev.Start) and when(action.trial) for action in actions):
                monkeypatch.undo()
                raise Crash
            carry_out(self, actions)

        monkeypatch.setattr(ActorExecutor, "carry_out", broken)

    return crash


@pytest.mark.usefixtures("inline")
def test_a_restore_knows_who_runs_alone(fit, restore, tmp_path, crash):
    def trainable(config):
        return fits_at_16({"batch": config["x"]})

    crash(lambda trial: trial.alone)
    policy = {"failure_config": FailureConfig(out_of_memory="retry_alone")}
    with pytest.raises(Crash):
        fit(trainable, {"x": tune.grid_search([64, 1])}, run=policy)
    with ExperimentReader(tmp_path / "e") as reader:
        assert [trial.alone for trial in reader.trials()] == [True, False]
    grid = restore(trainable)
    assert [result.status for result in grid] == ["ERROR", "TERMINATED"]
    assert len(grid[0].attempts) == 2, "once more, and not again"


@pytest.mark.usefixtures("inline")
def test_a_restore_knows_the_changed_configuration(fit, restore, tmp_path, crash):
    started = []

    def is_third(trial):
        started.append(trial.config["batch"])
        return len(started) == 3

    crash(is_third)
    policy = FailureConfig(out_of_memory=halved)
    with pytest.raises(Crash):
        fit(fits_at_16, {"batch": 64}, run={"failure_config": policy})
    with pytest.raises(ConfigError, match="failure_config"):
        tune.Tuner.restore(tmp_path / "e", fits_at_16)
    with ExperimentReader(tmp_path / "e") as reader:
        (between,) = reader.trials()
    assert (between.config, between.tried) == ({"batch": 16}, [{"batch": 64}, {"batch": 32}])
    (result,) = restore(fits_at_16, run={"failure_config": policy})
    assert started == [64, 32, 16]
    assert (result.status, result.config) == ("TERMINATED", {"batch": 16})
    assert [report["config"]["batch"] for report in result.history] == [16, 16]
