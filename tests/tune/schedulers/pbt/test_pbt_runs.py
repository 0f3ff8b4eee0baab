"""Population based training on real trials, in this process: lineage, replay, restores, failures, turns."""

from __future__ import annotations

import json
import os
import tempfile
from itertools import groupby
from pathlib import Path

import pytest

from tests.tune.pausing import steps
from trainkit import tune
from trainkit.tune.results.result_grid import ResultGrid
from trainkit.tune.schedulers import PopulationBasedTraining, PopulationBasedTrainingReplay

pytestmark = pytest.mark.usefixtures("inline")

MUTATIONS = {"h0": tune.uniform(0, 1), "h1": tune.uniform(0, 1), "lr": tune.loguniform(0.005, 0.1)}


def moved(theta, config):
    """A step of the toy of the PBT paper."""
    return [
        value - config["lr"] * 2 * scale * config[f"h{k}"] * value
        for k, (value, scale) in enumerate(zip(theta, (0.75, 1.0), strict=True))
    ]


def quality(theta):
    return 1.2 - (0.75 * theta[0] ** 2 + theta[1] ** 2)


class Toy(tune.Trainable):
    def setup(self, config):
        self.theta = [0.9, 0.9]

    def step(self):
        self.theta = moved(self.theta, self.config)
        return {"q": quality(self.theta), "theta": self.theta, "lr_seen": self.config["lr"]}

    def save_checkpoint(self, folder):
        return {"theta": self.theta}

    def load_checkpoint(self, checkpoint):
        self.theta = list(checkpoint["theta"])


def toy(config):
    """The same as a function, which saves at every second report."""
    theta, step = [0.9, 0.9], 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            theta, step = json.loads(Path(folder, "state").read_text())
    while True:
        theta, step = moved(theta, config), step + 1
        report = {"q": quality(theta), "theta": theta, "lr_seen": config["lr"]}
        if step % 2:
            tune.report(report)
        else:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "state").write_text(json.dumps([theta, step]))
                tune.report(report, checkpoint=tune.Checkpoint.from_directory(folder))


def pbt(**arguments) -> PopulationBasedTraining:
    settings = {"perturbation_interval": 4, "hyperparam_mutations": MUTATIONS, **arguments}
    return PopulationBasedTraining("training_iteration", **settings)


@pytest.fixture
def trained(fit):
    def trained(trainable=Toy, *, until=16, samples=4, run=None, space=None, **arguments) -> ResultGrid:
        run = {"stop": {"training_iteration": until}, **(run or {})}
        return fit(
            trainable,
            space,
            metric="q",
            mode="max",
            num_samples=samples,
            scheduler=pbt(**arguments),
            seed=3,
            run=run,
        )

    return trained


def exploits(results: ResultGrid):
    return [
        each for each in results.decisions() if each.get("rule") == "exploit" and each["verdict"] == "PAUSE"
    ]


@pytest.mark.parametrize(("trainable", "synch"), [(Toy, False), (toy, True)])
def test_a_population(trained, trainable, synch):  # row 1.13
    results = trained(trainable, synch=synch)
    assert not results.errors
    assert [str(result.status) for result in results] == ["TERMINATED"] * 4
    assert exploits(results)
    for result in results:
        assert [report["training_iteration"] for report in result.history] == list(range(1, 17))
        for report in result.history:
            assert report["lr_seen"] == report["config"]["lr"]
            for name, domain in MUTATIONS.items():
                assert domain.contains(report["config"][name])
        if len(result.lineage()) > 1:
            *_, before, last = result.lineage()
            donor = next(each for each in results if each.trial_id == before.trial_id)
            held = donor.history[before.last - 1]["theta"]
            after = result.history[last.first]
            assert after["theta"] == moved(held, after["config"])


@pytest.mark.parametrize(("trainable", "synch"), [(Toy, True), (toy, False)])
def test_a_replay_ends_with_the_same_weights(trained, fit, trainable, synch, tmp_path):  # property 25
    results = trained(trainable, synch=synch)
    by_length = sorted(results, key=lambda result: len(result.lineage()))
    assert len(by_length[-1].lineage()) > 1
    for number, result in enumerate(by_length[-2:]):
        sources = [result]
        path = Path(results.experiment_path)
        if (path / f"pbt_policy_{result.trial_id}.txt").exists():
            sources.append(path / f"pbt_policy_{result.trial_id}.txt")
        schedules = [PopulationBasedTrainingReplay(source).schedule for source in sources]
        assert all(schedule == schedules[0] for schedule in schedules)
        length = sum(map(len, result.lineage()))
        (again,) = fit(
            trainable,
            scheduler=PopulationBasedTrainingReplay(sources[-1]),
            run={"stop": {"training_iteration": length}, "name": f"again{number}"},
        )
        assert again.error is None
        assert again.metrics["theta"] == result.metrics["theta"]
        assert again.config == result.config


def test_policy_files_are_rays(trained):
    results = trained(synch=True)
    folder = Path(results.experiment_path)
    rows = [json.loads(line) for line in (folder / "pbt_global.txt").read_text().splitlines()]
    assert len(rows) == len(exploits(results))
    tags = {result.trial_id: result.metrics["experiment_tag"] for result in results}
    for row, decision in zip(rows, exploits(results), strict=True):
        trial, donor, iteration, step, old, new = row
        assert (trial, donor) == (tags[decision["trial_id"]], tags[decision["donor"]])
        assert iteration == step == decision["iteration"]
        assert {name: change["old"] for name, change in decision["changes"].items()} == old
        assert {name: change["new"] for name, change in decision["changes"].items()} == new
    last = rows[-1]
    trial_id = next(trial_id for trial_id, tag in tags.items() if tag == last[0])
    lines = (folder / f"pbt_policy_{trial_id}.txt").read_text().splitlines()
    assert json.loads(lines[-1]) == last


def test_no_files_without_log_config(trained):
    results = trained(synch=True, log_config=False)
    assert exploits(results) and not list(Path(results.experiment_path).glob("pbt_*"))


def test_what_stands_only_in_the_mutations_is_drawn(trained):
    results = trained(until=1, samples=3, space={"other": 1})
    configs = [result.config for result in results]
    assert all(set(config) == {"other", *MUTATIONS} for config in configs)
    assert len({config["lr"] for config in configs}) == 3


@pytest.mark.parametrize(("interval", "warned"), [(10, True), (4, False)])
def test_an_interval_that_no_trial_reaches_is_told(trained, caplog, interval, warned):
    results = trained(samples=2, until=10, perturbation_interval=interval)
    assert ("no trial will be changed" in caplog.text) == warned and not results.errors


class Mortal(Toy):
    def step(self):
        report = super().step()
        if self.iteration == 5 and self.trial_name.endswith("1"):
            raise RuntimeError("no more")
        if self.iteration == 6 and self.trial_name.endswith("2"):
            report["done"] = True
        return report


@pytest.mark.parametrize(("synch", "retries"), [(False, 1), (True, 0)])
def test_members_that_fail_or_end_hold_nobody(trained, synch, retries):  # property 24
    failures = tune.FailureConfig(max_failures=retries)
    results = trained(Mortal, synch=synch, run={"failure_config": failures}, until=12)
    assert [str(result.status) for result in results] == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert [result.metrics["training_iteration"] for result in results][::3] == [12, 12]


def saves_late(config):
    """Only the members that begin well save, so that the others have nothing of their own to go on from."""
    for step, saved in steps():
        tune.report({"q": config["lr"], "step": step}, checkpoint=saved if config["good"] else None)


def test_a_member_that_has_not_saved_goes_on_from_its_donor(trained):
    space = {"good": tune.grid_search([True, False]), "lr": tune.sample_from(lambda spec: 0.01 + spec.good)}
    mutations = {"lr": tune.uniform(0, 2)}
    results = trained(
        saves_late,
        samples=1,
        space=space,
        until=6,
        perturbation_interval=2,
        quantile_fraction=0.5,
        hyperparam_mutations=mutations,
    )
    assert not results.errors
    late = results[1]
    assert late.config["good"] and len(late.lineage()) == 2
    assert [report["training_iteration"] for report in late.history] == [1, 2, 3, 4, 5, 6]


def never_saves(config):
    while True:
        tune.report({"q": config["lr"]})


def test_without_quantiles_nothing_need_be_saved(trained):  # property 22
    results = trained(never_saves, samples=2, quantile_fraction=0, until=6)
    assert not results.errors and not list(Path(results.experiment_path).glob("*/checkpoint_*"))


# --- a restore in the middle ------------------------------------------------------------------------


class Interrupted(Toy):
    """Interrupts the experiment once, at a report of one of its trials."""

    at = 0

    def step(self):
        report = super().step()
        if self.iteration == self.at and self.trial_name.endswith("2"):
            type(self).at = 0
            os.kill(os.getpid(), 2)
        return report


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("at", [4, 8])
def test_a_restore_goes_on_with_the_same_decisions(trained, restore, tmp_path, synch, at):
    whole = trained(synch=synch, run={"name": "whole"})
    Interrupted.at = at
    trained(Interrupted, synch=synch, run={"name": "cut"})
    assert Interrupted.at == 0
    results = restore(Interrupted, "cut")
    assert [str(result.status) for result in results] == ["TERMINATED"] * 4
    if synch:  # where the order of reports decides nothing
        assert [result.config for result in results] == [result.config for result in whole]
        assert [result.metrics["theta"] for result in results] == [
            result.metrics["theta"] for result in whole
        ]
    for result in results:
        assert [report["training_iteration"] for report in result.history] == list(range(1, 17))
    files = {path.name: path.read_text() for path in (tmp_path / "cut").glob("pbt_*")}
    for result in results:
        assert (len(result.lineage()) > 1) == (f"pbt_policy_{result.trial_id}.txt" in files)


# --- what is kept -----------------------------------------------------------------------------------


class Lossy(Toy):
    def step(self):
        report = super().step()
        return {**report, "loss": 2 - report["q"]}


def test_a_state_taken_over_displaces_no_better_checkpoint(trained):
    """No report goes with it, so it ranks last, and is kept only while it is what the trial goes on from."""
    best = {"checkpoint_score_attribute": "loss", "checkpoint_score_order": "min", "num_to_keep": 2}
    results = trained(
        Lossy,
        synch=True,
        perturbation_interval=2,
        until=11,
        run={"checkpoint_config": tune.CheckpointConfig(checkpoint_frequency=1, **best)},
    )
    assert exploits(results)
    for result in results:
        losses = sorted(report["loss"] for report in result.history)
        assert sorted(report["loss"] for _, report in result.best_checkpoints) == losses[:2]


# --- values that text doesn't hold ------------------------------------------------------------------


class Kinds(Interrupted):
    at = -1

    def step(self):
        report = super().step()
        return {**report, "kind": self.config["kind"].__name__, "q": report["q"] + len(report["theta"])}


@pytest.mark.parametrize("mutated", [True, False])
def test_objects_are_taken_over_too(trained, restore, mutated):
    kinds, run = (
        [int, float, str, list],
        {"samples": 6, "space": {"kind": tune.choice([int, float, str, list])}},
    )
    mutations = {**MUTATIONS, **({"kind": kinds} if mutated else {})}
    how = {"synch": True, "perturbation_interval": 2, "hyperparam_mutations": mutations}
    whole = trained(Kinds, run={"name": "whole"}, **run, **how)
    Kinds.at = 8
    trained(Kinds, run={"name": "cut"}, **run, **how)
    assert Kinds.at == 0
    Kinds.at = -1
    results = restore(Kinds, "cut", param_space=run["space"], metric="q", mode="max", scheduler=pbt(**how))
    assert not results.errors and exploits(results)
    assert [result.config for result in results] == [result.config for result in whole]


def test_numbers_of_numpy(trained):
    numpy = pytest.importorskip("numpy")
    sizes = [numpy.int64(16), numpy.int64(32), numpy.int64(64)]
    results = trained(hyperparam_mutations={**MUTATIONS, "size": sizes}, synch=True)
    changes = [each["changes"]["size"] for each in exploits(results)]
    assert changes and {type(change[key]) for change in changes for key in ("old", "new")} == {int}
    rows = (Path(results.experiment_path) / "pbt_global.txt").read_text().splitlines()
    assert all(json.loads(row)[5]["size"] in (16, 32, 64) for row in rows)


class Fragile(Toy):
    """Fails at report 6 of the second trial while it may, and interrupts at a report of the third once."""

    fails, interrupts = True, 0

    def step(self):
        report = super().step()
        if type(self).fails and self.iteration == 5 and self.trial_name.endswith("1"):
            raise RuntimeError("no more")
        if self.iteration == type(self).interrupts - 1 and self.trial_name.endswith("2"):
            type(self).interrupts = 0
            os.kill(os.getpid(), 2)
        return report


@pytest.fixture(autouse=True)
def _anew():
    Fragile.fails, Fragile.interrupts = True, 0


def at_intervals(results) -> bool:
    """Whether each member exploited at multiples of the interval only, and once at each."""
    places = [(each["trial_id"], each["iteration"]) for each in exploits(results)]
    return len(set(places)) == len(places) and all(iteration % 4 == 0 for _, iteration in places)


def retrained(stretches):
    """The weights that the stretches of a lineage lead to."""
    theta = [0.9, 0.9]
    for stretch in stretches:
        for _ in range(len(stretch)):
            theta = moved(theta, stretch.config)
    return theta


@pytest.mark.parametrize(("how", "at"), [("resume_errored", 10), ("restart_errored", 0)])
def test_a_member_that_failed_runs_again(trained, restore, tmp_path, at, how):
    Fragile.interrupts = at
    first = trained(Fragile, synch=True)
    before = first.exchanges()
    assert before and first.num_errors == 1
    Fragile.fails = False
    for _ in range(2):
        results = restore(Fragile, **{how: True})
        assert [str(result.status) for result in results] == ["TERMINATED"] * 4
        assert results.exchanges()[: len(before)] == before and at_intervals(results)
        for result in results:
            assert result.metrics["theta"] == retrained(result.lineage())
            policy = tmp_path / "e" / f"pbt_policy_{result.trial_id}.txt"
            assert policy.exists() == (len(result.lineage()) > 1)


def test_a_population_that_is_extended_keeps_its_intervals(trained, restore, tmp_path):
    Fragile.fails = False
    trained(Fragile, synch=True, until=8)
    config = tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0, stop={"training_iteration": 20})
    extended = {"resume_finished": True, "run_config": config}
    Fragile.interrupts = 14
    restore(Fragile, **extended)
    assert Fragile.interrupts == 0
    results = restore(Fragile)
    assert [result.metrics["training_iteration"] for result in results] == [20] * 4
    assert at_intervals(results)
    assert {each["iteration"] for each in results.decisions() if each.get("rule") == "barrier"} == {
        4,
        8,
        12,
        16,
        20,
    }


class Watch(tune.Callback):
    """Notes whose reports come, and presses Ctrl-C twice at so many of them."""

    def __init__(self, until: int = -1) -> None:
        self.until, self.seen = until, []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen.append(trial.index)
        if len(self.seen) == self.until:
            raise KeyboardInterrupt


def restored(tmp_path, watch: Watch):
    stop = {"training_iteration": 40}
    run = tune.RunConfig(name="e", storage_path=tmp_path, verbose=0, stop=stop, callbacks=[watch])
    config = tune.TuneConfig(metric="q", mode="max", num_samples=2, max_concurrent_trials=1)
    return tune.Tuner.restore(tmp_path / "e", Toy, tune_config=config, run_config=run)


@pytest.mark.parametrize("again", [(), (7, 11)])
def test_members_that_ran_at_once_take_turns_on_one_worker(trained, tmp_path, again):
    """Also where that was restored in turn."""
    with pytest.raises(KeyboardInterrupt):
        trained(Toy, samples=2, until=40, run={"callbacks": [Watch(6)]})
    for until in again:
        watch = Watch(until)
        with pytest.raises(KeyboardInterrupt):
            restored(tmp_path, watch).fit()
    watch = Watch()
    results = restored(tmp_path, watch).fit()
    assert [result.metrics["training_iteration"] for result in results] == [40, 40]
    # An interval at a time, and what is run again of one: not one to its end, and then the other.
    assert max(len(list(turn)) for _, turn in groupby(watch.seen)) <= 8
