"""A scheduler of one's own or of another package: what is refused, who is at fault, and restores by name."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.packages import install_from_page
from trainkit import tune
from trainkit.cli.main import main
from trainkit.errors import ConfigError
from trainkit.plugins.testing.scheduler import SchedulerSuite
from trainkit.tune.schedulers import (
    SCHEDULERS,
    Decision,
    Donor,
    FIFOScheduler,
    ResourceChangingScheduler,
    TrialScheduler,
    Verdict,
)

pytestmark = pytest.mark.usefixtures("inline")


def trainable(config):
    for step in range(1, 5):
        tune.report({"loss": 1 / step})


# --- Ray's ----------------------------------------------------------------------------------------


def rays_result(self, controller, trial, result):
    return "STOP"


def rays_add(self, tune_controller, trial):
    pass


def rays_complete(self, trial_runner, trial, result):
    pass


def rays_choice(self, controller):
    return None


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("on_trial_result", rays_result, r"never calls: define decide\(self, trial_id, time, score\)"),
        ("on_trial_remove", rays_add, r"trainkit never calls: define on_trial_complete\(self, trial_id\)"),
        ("on_trial_add", rays_add, r"a tune_controller: define on_trial_add\(self, trial_id, config"),
        ("on_trial_error", rays_add, r"define on_trial_error\(self, trial_id\).*ids of trials"),
        ("on_trial_complete", rays_complete, r"define on_trial_complete\(self, trial_id\).*unlike Ray's"),
        ("choose_trial_to_run", rays_choice, r"define choose_trial_to_run\(self, pending, paused=\(\), \*, "),
    ],
)
def test_methods_of_rays_schedulers_are_refused(name, method, words):
    with pytest.raises(ConfigError, match=rf"Mine\.{name}\(.*{words}"):
        type("Mine", (FIFOScheduler,), {name: method})


def test_what_can_not_be_called_is_refused():
    with pytest.raises(ConfigError, match=r"Mine\.decide\(self, trial_id\) does not accept trainkit's calls"):
        type("Mine", (FIFOScheduler,), {"decide": lambda self, trial_id: None})
    with pytest.raises(ConfigError, match="define verdicts"):
        type("Mine", (FIFOScheduler,), {"verdicts": lambda self, trial_id: []})


def test_a_method_of_ones_own_may_have_rays_name():
    class Mine(FIFOScheduler):
        def decide(self, trial_id, time, score):
            return self.on_trial_result(trial_id)

        def on_trial_result(self, trial_id):
            return Decision(Verdict.STOP if trial_id else Verdict.CONTINUE)

        def on_trial_add(self, *told, **more):
            self.told = told

    class Heir(Mine):
        def on_no_more_trials(self):
            pass

    assert Heir().decide("a", 1.0, None).verdict is Verdict.STOP


# --- what goes wrong as it runs -------------------------------------------------------------------


class Own(FIFOScheduler):
    pass


def own(**methods):
    return type("Own", (Own,), methods)()


def nothing(self, trial_id, time, score):
    return {}[trial_id]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("STOP", "returned 'STOP' for trial .*: return a Decision of trainkit.tune.schedulers, such as"),
        (None, "returned None for trial .*: return a Decision"),
        (Verdict.STOP, "return a Decision"),
        (Decision("STOP"), "the verdict must be Verdict.CONTINUE or Verdict.PAUSE or Verdict.STOP"),
        (Decision(Verdict.RESUME), "the verdict must be"),
        (Decision(Verdict.STOP, "bad"), "the reason must be a dictionary"),
        (Decision(Verdict.STOP, {"n": np.int64(3)}), r"'n' is .*3.*, a numpy\.int64, .* cannot store"),
        (Decision(Verdict.STOP, {"far": np.zeros(2)}), "trial .*: a fact cannot be stored: 'far' is array"),
        (Decision(Verdict.STOP, {("at", 1): 3}), r"stored: key \('at', 1\) is a tuple, which"),
        (Decision(Verdict.CONTINUE, {"seen": {1}}), r"stored: 'seen' is \{1\}, a set, which"),
        (Decision(Verdict.PAUSE, donors=("a",)), "donors must be Donor objects"),
        (Decision(Verdict.PAUSE, donors=(Donor("a", None),)), "donors must be Donor objects"),
        (Decision(Verdict.CONTINUE, donors=(Donor("a", {}),)), "need Verdict.PAUSE"),
        (Decision(Verdict.PAUSE, request={"cpu": 2}), "the request must be a tune.PlacementGroupFactory"),
    ],
)
def test_what_is_no_decision_is_the_schedulers(fit, returned, words):
    scheduler = own(decide=lambda self, trial_id, time, score: returned)
    with pytest.raises(ConfigError, match=rf"the scheduler's Own\.decide\(\) .*{words}"):
        fit(trainable, scheduler=scheduler)


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("decide", nothing, r"decide\(\) raised KeyError for a report of trial"),
        ("on_result", lambda self, trial_id, result: 1 / 0, r"on_result\(\) raised ZeroDivisionError"),
        ("on_trial_add", lambda self, trial_id, config: 1 / 0, r"on_trial_add\(\) raised .* for trial"),
        ("on_trial_complete", lambda self, trial_id: 1 / 0, r"on_trial_complete\(\) raised"),
        ("verdicts", lambda self: None, r"verdicts\(\) returned None: return a list of pairs"),
        ("verdicts", lambda self: ["ab", "cd"], r"verdicts\(\) returned 'ab' in its list: return pairs"),
        ("verdicts", lambda self: [("a", "STOP")], r"verdicts\(\) returned 'STOP' for trial 'a': ret"),
        ("verdicts", lambda self: [("a", Decision(Verdict.STOP))], "on an unknown trial 'a'"),
        ("take_space", lambda self, space: 1 / 0, r"take_space\(\) raised ZeroDivisionError: "),
        ("completed_space", lambda self, space: 1 / 0, r"completed_space\(\) raised ZeroDivisionError"),
        ("arguments", property(lambda self: self.nowhere), "arguments raised AttributeError"),
        ("arguments", property(lambda self: None), "arguments is None: return a dictionary"),
    ],
)
def test_who_raises_is_named(fit, name, method, words):
    with pytest.raises(ConfigError, match=rf"[Oo]wn\.{words}|decided {words}"):
        fit(trainable, scheduler=own(**{name: method}))


def test_a_choice_of_nobody_is_the_schedulers(fit):
    class Chooser(Own):
        def choose_trial_to_run(self, pending, paused=(), *, new=False):
            return "nobody"

    def failing(config):
        raise ValueError("once more")

    with pytest.raises(ConfigError, match=r"Chooser\.choose_trial_to_run\(\) returned 'nobody': return one"):
        fit(failing, scheduler=Chooser(), run={"failure_config": tune.FailureConfig(max_failures=1)})


def saving(config):
    """Whether it saves, its configuration says."""
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state").touch()
            tune.report({"loss": 1.0}, checkpoint=tune.Checkpoint(folder) if config["saves"] else None)


class Takes(Own):
    """Once, the second trial takes over the state of `donor`, by its place or by a name."""

    def __init__(self, donor, *, by_verdict=False):
        super().__init__()
        self.donor, self.by_verdict = donor, by_verdict
        self.ids, self.waiting, self.once = [], [], True

    def on_trial_add(self, trial_id, config):
        self.ids.append(trial_id)

    def decide(self, trial_id, time, score):
        if not (self.once and len(self.ids) > 1 and trial_id == self.ids[1]):
            return super().decide(trial_id, time, score)
        self.once = False
        donor = self.ids[self.donor] if isinstance(self.donor, int) else self.donor
        taking = Decision(Verdict.PAUSE, {"rule": "mine"}, donors=(Donor(donor, {"saves": True, "x": 1}),))
        if self.by_verdict:
            self.waiting.append((trial_id, taking))
        return Decision(Verdict.PAUSE, {"rule": "waits"}) if self.by_verdict else taking

    def verdicts(self):
        waiting, self.waiting = self.waiting, []
        return waiting


@pytest.mark.parametrize("by_verdict", [False, True])
def test_a_donor_that_is_no_trial_is_the_schedulers(fit, restore, by_verdict):
    space = {"saves": True, "x": tune.grid_search([0, 0])}
    with pytest.raises(ConfigError, match=r"Takes lets trial .* copy an unknown trial 'nobody'"):
        fit(saving, space, scheduler=Takes("nobody", by_verdict=by_verdict), max_concurrent_trials=2)
    grid = restore(saving, scheduler=Takes(0, by_verdict=by_verdict))
    assert [str(result.status) for result in grid] == ["TERMINATED"] * 2, "nothing was lost by it"


def test_a_constructor_that_forgets_its_base_is_told_so():
    class Forgetful(TrialScheduler):
        def __init__(self):
            self.own = 1

        def decide(self, trial_id, time, score):
            return self.CONTINUE

    with pytest.raises(ConfigError, match=r"must begin with super\(\)\.__init__\(\)"):
        tune.TuneConfig(scheduler=Forgetful())
    with pytest.raises(ConfigError, match=r"Forgetful\.__init__\(\) must begin with"):
        ResourceChangingScheduler(Forgetful())


def test_who_is_wrapped_is_named(fit):
    with pytest.raises(ConfigError, match=r"Own\.decide\(\) raised KeyError"):
        fit(trainable, scheduler=ResourceChangingScheduler(own(decide=nothing)))


class Planned(Own):
    """Refuses another number of trials than it began with."""

    def resize(self, total_samples):
        raise RuntimeError("planned for another number")


def test_a_restore_whose_number_is_refused_leaves_that_of_before(fit, restore):
    fit(trainable, scheduler=Planned(), metric="loss", num_samples=2)
    with pytest.raises(ConfigError, match=r"Planned\.resize\(\) .*planned for another number"):
        restore(trainable, num_samples=4, scheduler=Planned())
    assert len(restore(trainable, num_samples=1, scheduler=Planned())) == 2  # the default, as it was


# --- what a suite finds ---------------------------------------------------------------------------


class Forgets(TrialScheduler):
    """Keeps no attribute of its argument's name, and gives facts that no file holds."""

    def __init__(self, limit=1):
        super().__init__()
        self._limit = limit

    def decide(self, trial_id, time, score):
        return Decision(Verdict.STOP, {"rule": "limit", "at": np.int64(self._limit)})


def test_an_argument_that_is_not_kept_is_named(fit, tmp_path, monkeypatch):
    with pytest.raises(AssertionError, match=r"Forgets has no attributes for its arguments \['limit'\]"):
        SchedulerSuite().test_it_is_made_again_from_its_arguments(Forgets)
    monkeypatch.setattr(Forgets, "decide", lambda *asked: Decision(Verdict.CONTINUE))
    fit(trainable, scheduler=Forgets(), metric="loss")
    with pytest.raises(ConfigError, match=r"scheduler=Forgets.*reason: no installed package .*named Forgets"):
        tune.Tuner.restore(tmp_path / "e", trainable)
    monkeypatch.setitem(SCHEDULERS._own, "Forgets", f"{__name__}:Forgets")
    with pytest.raises(ConfigError, match="Forgets does not keep its argument 'limit'"):
        tune.Tuner.restore(tmp_path / "e", trainable)


def test_a_suite_finds_facts_that_no_file_holds():
    with pytest.raises(ConfigError, match=r"Forgets\.decide\(\) .* stored: 'at'"):
        SchedulerSuite().test_the_same_seed_gives_the_same_log(Forgets)


@pytest.fixture
def limit(tmp_path, monkeypatch):
    install_from_page("docs/extending/add-a-scheduler.md", tmp_path, monkeypatch)


@pytest.fixture
def climb(tmp_path, monkeypatch):
    install_from_page("docs/extending/add-a-searcher.md", tmp_path, monkeypatch)


def objective(config):
    for _ in range(4):
        tune.report({"loss": config["x"]})


def test_the_scheduler_of_the_page_is_given_by_name_and_made_again(limit, fit, restore, tmp_path, capsys):
    scheduler = tune.create_scheduler("limit", limit=0.5, grace_period=1)
    grid = fit(objective, {"x": tune.grid_search([0.1, 0.9])}, metric="loss", scheduler=scheduler)
    assert [len(result.history) for result in grid] == [4, 2]
    again = restore(objective, num_samples=2)
    assert [len(result.history) for result in again] == [4, 2, 4, 2]
    assert main(["why", str(tmp_path / "e"), "1"]) == 0
    assert "report 2: STOP, worse than 0.5 at 2" in capsys.readouterr().out


def test_the_searcher_of_the_page_is_given_by_name_and_made_again(climb, fit, restore):
    space = {"x": tune.uniform(-10, 10), "kind": tune.choice(["a", "b"])}
    settings = {"metric": "loss", "search_alg": "climb", "max_concurrent_trials": 1, "seed": 0}
    whole = fit(quadratic, space, **settings, num_samples=8, run={"name": "whole"})
    fit(quadratic, space, **settings, num_samples=4)
    again = restore(quadratic, num_samples=8)
    assert [result.config for result in again] == [result.config for result in whole]


def quadratic(config):
    tune.report({"loss": (config["x"] - 3) ** 2})


def test_a_class_of_a_script_does_not_stand_for_one_of_a_package_by_its_name(limit, fit, tmp_path):
    mine = type("LimitScheduler", (tune.schedulers.FIFOScheduler,), {})
    fit(objective, {"x": 1}, scheduler=mine())
    with pytest.raises(ConfigError, match=r"was started with scheduler=.*LimitScheduler.*pass it again"):
        tune.Tuner.restore(tmp_path / "e", objective)
