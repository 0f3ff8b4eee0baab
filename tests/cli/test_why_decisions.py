"""`trainkit why TRIAL` and `result.decisions` tell each decision of every rule, in words and as facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import trainkit
from trainkit import tune
from trainkit.cli.main import main
from trainkit.tune import schedulers as sch
from trainkit.tune.schedulers.base import in_words

ITERATION = {"time_attr": "training_iteration"}
LAST = 9
MUTATIONS = {"x": tune.uniform(0, 10)}

SCHEDULERS: dict[str, tuple[Callable[[], sch.TrialScheduler], set[str]]] = {
    "asha": (lambda: sch.ASHAScheduler(max_t=LAST, reduction_factor=3), {"rung", "max_t"}),
    "asha, promotion": (
        lambda: sch.ASHAScheduler(max_t=LAST, reduction_factor=3, type="promotion"),
        {"rung", "max_t"},
    ),
    "hyperband": (lambda: sch.HyperBandScheduler(max_t=LAST), {"rung", "milestone", "max_t"}),
    "learned": (lambda: sch.ASHAScheduler(max_t=LAST, grace_period="learned"), {"learned", "max_t"}),
    "median": (lambda: sch.MedianStoppingRule(**ITERATION, grace_period=1), {"median"}),
    "median, soft": (
        lambda: sch.MedianStoppingRule(**ITERATION, grace_period=1, hard_stop=False, min_time_slice=1),
        {"median", "time slice", "losers last"},
    ),
    "pbt": (
        lambda: sch.PopulationBasedTraining(
            **ITERATION, perturbation_interval=2, hyperparam_mutations=MUTATIONS, log_config=False
        ),
        {"population", "exploit", "turn"},
    ),
    "pbt, synch": (
        lambda: sch.PopulationBasedTraining(
            **ITERATION, perturbation_interval=2, hyperparam_mutations=MUTATIONS, log_config=False, synch=True
        ),
        {"barrier", "exploit", "turn"},
    ),
    "pb2": (
        lambda: sch.PB2(**ITERATION, perturbation_interval=2, hyperparam_bounds={"x": [0, 10]}),
        {"population", "exploit", "turn"},
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_rule_has_words(name):
    make, rules = SCHEDULERS[name]
    results = tune.simulate(
        lambda config, t, rng: {"loss": config["x"] / t + rng.normal(), "done": t == LAST},
        param_space=MUTATIONS,
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=12, scheduler=make()),
        workers=3,
        seed=0,
    )
    seen = set()
    for decision in results.decisions():
        facts = {name: value for name, value in decision.items() if name not in ("trial_id", "attempt")}
        if "rule" in facts:
            seen.add(facts["rule"])
            assert f"rule {facts['rule']}" not in in_words(facts), "as it is listed without words of its own"
    assert rules <= seen
    (stopped,) = {result.reason.partition(":")[0] for result in results if "stopped" in result.reason} or {""}
    assert stopped in ("", f"stopped by {make().label}")


class Climbs(tune.Trainable):
    def step(self):
        return {"loss": self.config["x"] / (self.iteration + 1)}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "nothing").touch()

    def load_checkpoint(self, checkpoint_dir):
        pass


@pytest.fixture(scope="module")
def inline():
    trainkit.init(engine="inline", num_cpus=1)
    yield
    trainkit.shutdown()


def climb(folder: Path, values: list[float], scheduler: sch.TrialScheduler, stop=None, **settings):
    return tune.Tuner(
        Climbs,
        param_space={"x": tune.grid_search(values)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler, **settings),
        run_config=tune.RunConfig(name="e", storage_path=folder, verbose=0, stop=stop),
    ).fit()


@pytest.mark.usefixtures("inline")
def test_why_tells_pauses_and_promotions(tmp_path, capsys):
    results = climb(tmp_path, [3.0, 2.0, 1.0], sch.HyperBandScheduler(max_t=3, reduction_factor=3))
    told = []
    for result in results:
        assert main(["why", str(tmp_path / "e"), result.trial_id]) == 0
        told.append(capsys.readouterr().out)
    assert "stopped: stopped by HyperBand: rung 1 of bracket 0, rank 3 of 3, 1 continues, cutoff 1" in told[0]
    assert "report 1: PAUSE, rung 1 of bracket 0, waits for 2 more trials" in told[0]
    assert "report 1: STOP, rung 1 of bracket 0, rank 3 of 3, 1 continues, cutoff 1" in told[0]
    assert ", rung 1 of bracket 0, rank 1 of 3, 1 continues, cutoff 1" in told[2]
    assert "report 3: STOP, reached max_t=3" in told[2]
    first = results[0].decisions[0]
    assert (first["verdict"], first["rule"], first["rung"], first["awaits"]) == ("PAUSE", "milestone", 1, 2)


@pytest.mark.usefixtures("inline")
def test_why_tells_an_exchange_once_and_in_words(tmp_path, capsys):
    population = sch.PopulationBasedTraining(
        **ITERATION, perturbation_interval=1, hyperparam_mutations={**MUTATIONS, "kind": tune.choice(["a"])},
        quantile_fraction=0.5, log_config=False, resample_probability=0,
    )  # fmt: skip
    results = climb(tmp_path, [1.0, 2.0], population, stop={"training_iteration": 2}, seed=0)
    (exchange,) = results.exchanges()
    exploits = [each for each in results.decisions() if each.get("rule") == "exploit"]
    assert [each["trial_id"] for each in exploits] == [exchange.trial_id], "no stop calls itself an exploit"
    assert {each["trial_id"] for each in results.decisions() if each["verdict"] == "STOP"} == {
        result.trial_id for result in results
    }
    assert main(["why", str(tmp_path / "e"), exchange.trial_id]) == 0
    told = capsys.readouterr().out
    assert f"rearranged: continues from {exchange.donor} after 1 report\n" in told
    assert ", 1 report\n" in told or ", 1 report," in told
    assert "1 reports" not in told and "{" not in told
    assert told.count(f"copies trial {exchange.donor}") == 1
    assert "; x 1 -> " in told and "kind" not in told.partition("copies trial")[2].partition("\n")[0]


@pytest.mark.usefixtures("inline")
def test_a_stop_where_an_exploit_was_due(tmp_path):
    population = sch.PopulationBasedTraining(
        **ITERATION, perturbation_interval=2, hyperparam_mutations=MUTATIONS, quantile_fraction=0.5
    )

    def ends(trial_id, result):
        return result["training_iteration"] == (2 if result["loss"] >= 1.0 else 4)

    results = climb(tmp_path, [1.0, 2.0], population, stop=ends, max_concurrent_trials=1, seed=0)
    (stop,) = [each for each in results.decisions() if "instead_of" in each]
    assert (stop["verdict"], stop["stop"]) == ("STOP", "stopped by RunConfig(stop=function)")
    assert stop["instead_of"]["rule"] == "exploit" and "rule" not in stop and not results.exchanges()
