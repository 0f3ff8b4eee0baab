"""What a paused trial is to a searcher: ended for now, running once it goes on; and the same in a restore."""

from __future__ import annotations

import math

import optuna
import pytest
import torch
from optuna import samplers

from tests.tune.pausing import Stepping, history
from trainkit import tune
from trainkit.plugins.testing.searcher import TREE, Row, Search, loss_of
from trainkit.tune.schedulers import ASHAScheduler, Decision, HyperBandForBOHB, HyperBandScheduler, Verdict
from trainkit.tune.search import BayesOptSearch, HyperOptSearch, OptunaSearch, Repeater, TuneBOHB
from trainkit.tune.search.optuna.study import MARK

pytestmark = [
    pytest.mark.usefixtures("inline"),
    pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
optuna.logging.set_verbosity(optuna.logging.ERROR)
torch.set_num_threads(1)

PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}


def of_optuna(sampler):
    return lambda **given: OptunaSearch(sampler=None if sampler is None else sampler(), **given)


def tpe(**given):
    return samplers.TPESampler(n_startup_trials=3, **given)


PRUNES = {
    "default": lambda **given: OptunaSearch(**given),
    "tpe": of_optuna(lambda: tpe(multivariate=True, group=True)),
    "fixed": of_optuna(lambda: samplers.PartialFixedSampler({"x": 3}, tpe())),
}
"""Optuna's that learn from pruned trials, and are made afresh for each suggestion."""
COUNTS = {
    "hyperopt": lambda **given: HyperOptSearch(n_initial_points=3, **given),
    "bayesopt": lambda **given: BayesOptSearch(random_search_steps=5, **given),
}
"""Those to which a trial is what it reported last."""
WAITS = {
    "gp": of_optuna(lambda: samplers.GPSampler(n_startup_trials=5, warn_independent_sampling=False)),
    "cma": of_optuna(lambda: samplers.CmaEsSampler(popsize=4, warn_independent_sampling=False)),
    "nsga2": of_optuna(lambda: samplers.NSGAIISampler(population_size=4)),
}
"""To which a paused trial runs, until it has ended."""
BOHB = {"bohb": lambda: TuneBOHB(bohb_config={"min_points_in_model": 3})}
ALL = PRUNES | COUNTS | WAITS | BOHB

NOT_PROMOTED = Decision(Verdict.STOP, {"rule": "rung", "rung": 1})
AT_THE_END = Decision(Verdict.STOP, {"rule": "max_t", "max_t": 2})


def begun(name, reports=12) -> Search:
    """With so many trials that have reported: most once, some twice, one NaN; none has ended."""
    search = Search(Row(name, ALL[name]), PLANE, num_samples=60)
    for n in range(reports):
        trial_id, config = f"t_{n:05d}", search.next()
        for step in (1, 2, 3)[: 1 + (n % 4 == 0)]:
            loss = math.nan if n == 7 else loss_of(config) + 1 / step
            search.searcher.on_trial_result(trial_id, {"loss": loss, "training_iteration": step})
    return search


def end(search: Search, trial_id: str, decision: Decision = NOT_PROMOTED) -> None:
    n = int(trial_id[2:])
    loss = math.nan if n == 7 else loss_of(search.configs[trial_id]) + 1 / (1 + (n % 4 == 0))
    search.searcher.on_trial_decision(trial_id, {}, decision)
    search.searcher.on_trial_complete(trial_id, {"loss": loss, "training_iteration": 1 + (n % 4 == 0)})


def after(search: Search, number: int = 3) -> list[dict]:
    return [search.next() for _ in range(number)]


@pytest.mark.parametrize("name", [*PRUNES, *COUNTS])
def test_while_trials_are_paused_they_teach_what_they_would_have_if_stopped(name):
    paused, stopped, running = begun(name), begun(name), begun(name)
    for trial_id in list(paused.configs)[:10]:
        paused.searcher.on_pause(trial_id)
        end(stopped, trial_id)
    told = after(paused)
    assert told == after(stopped)
    assert told != after(running)


@pytest.mark.parametrize("name", ["default", "tpe", "fixed"])
def test_with_enough_complete_trials_a_paused_one_runs_to_tpe(name):
    """TPE would take all complete ones for good beside many that are paused, and not tell them apart."""
    enough = 10 if name == "default" else 3
    few, few_running, many, many_running = begun(name, 30), begun(name, 30), begun(name, 30), begun(name, 30)
    for number, searches in ((enough - 1, (few, few_running)), (enough, (many, many_running))):
        for search in searches:
            with_a_number = [trial_id for trial_id in search.configs if trial_id != "t_00007"]  # it has NaN
            for trial_id in with_a_number[:number]:
                end(search, trial_id, AT_THE_END)
    for search in (few, many):
        for trial_id in list(search.configs)[12:]:
            search.searcher.on_pause(trial_id)
    assert after(few) != after(few_running)
    assert after(many) == after(many_running)


@pytest.mark.parametrize("name", [*PRUNES, *COUNTS])
def test_a_paused_trial_that_goes_on_runs_again(name):
    resumed, running = begun(name), begun(name)
    for search in (resumed, running):  # a model needs trials that have ended
        for trial_id in list(search.configs)[:4]:
            end(search, trial_id)
    for trial_id in list(resumed.configs)[4:10]:
        resumed.searcher.on_pause(trial_id)
    for trial_id in list(resumed.configs)[4:10]:
        resumed.searcher.on_unpause(trial_id)
    assert after(resumed) == after(running)


@pytest.mark.parametrize("name", WAITS)
def test_to_other_samplers_a_paused_trial_runs(name):
    paused, running = begun(name), begun(name)
    for search in (paused, running):
        for trial_id in list(search.configs)[:5]:
            end(search, trial_id, AT_THE_END)
    for trial_id in list(paused.configs)[5:10]:
        paused.searcher.on_pause(trial_id)
    assert after(paused, 2) == after(running, 2)


@pytest.mark.parametrize("name", [*PRUNES, *COUNTS])
def test_a_paused_trial_that_never_reported_teaches_nothing(name):
    paused, running = begun(name, 0), begun(name, 0)
    for search in (paused, running):
        after(search, 6)
    for trial_id in list(paused.configs):
        paused.searcher.on_pause(trial_id)
    assert after(paused) == after(running)


def test_a_paused_trial_that_is_begun_anew_is_complete_at_its_end():
    """As `resume_config` may have it: it reports, and nobody has said that it goes on."""
    storage = optuna.storages.InMemoryStorage()
    search = Search(Row("default", lambda: OptunaSearch(storage=storage)), PLANE)
    search.next()
    search.searcher.on_trial_result("t_00000", {"loss": 2.0, "training_iteration": 1})
    search.searcher.on_pause("t_00000")
    search.searcher.on_trial_result("t_00000", {"loss": 1.0, "training_iteration": 2})
    search.searcher.on_trial_complete("t_00000", {"loss": 1.0, "training_iteration": 2})
    (trial,) = optuna.load_study(study_name="optuna", storage=storage).trials
    assert (trial.state.name, trial.value) == ("COMPLETE", 1.0)


@pytest.mark.parametrize("name", ["tpe", "hyperopt"])
def test_what_is_asked_beforehand_is_what_comes(name):
    search = begun(name)
    for trial_id in list(search.configs)[:9]:
        search.searcher.on_pause(trial_id)
    twin = search.searcher.rehearsal()
    twin.on_unpause("t_00001")  # of which the other must hear nothing
    assert search.searcher.rehearsal().suggest("next") == search.searcher.suggest("next")


@pytest.mark.parametrize("name", ["default", "hyperopt"])
def test_a_unit_of_several_trials_is_not_paused_with_one_of_them(name):
    def play(paused):
        search = Search(Row("r", lambda: Repeater(ALL[name](), repeat=2), repeat=2), PLANE, num_samples=20)
        for _ in range(14):
            search.next()
        ids = list(search.configs)
        for trial_id in ids[:8]:
            search.finish(trial_id)
        for trial_id in ids[8:] if paused else ():
            search.searcher.on_trial_result(trial_id, {"loss": 1.0, "training_iteration": 1})
            search.searcher.on_pause(trial_id)
        for trial_id in ids[10:] if paused else ():
            search.searcher.on_unpause(trial_id)
        for trial_id in ids[8:12]:
            search.finish(trial_id)
        return after(search, 4)

    assert play(paused=True) == play(paused=False)


# --- whole experiments ----------------------------------------------------------------------------


SCHEDULERS = {
    "promotion": lambda: ASHAScheduler(max_t=4, reduction_factor=2, type="promotion"),
    "hyperband": lambda: HyperBandScheduler(max_t=4, reduction_factor=2),
    "of bohb": lambda: HyperBandForBOHB(max_t=9),
}


def run(fit, folder, scheduler, searcher, space=PLANE, num_samples=9):
    return fit(
        Stepping,
        space,
        metric="loss",
        num_samples=num_samples,
        seed=5,
        max_concurrent_trials=1,
        scheduler=SCHEDULERS[scheduler](),
        search_alg=searcher,
        run={"name": folder},
    )


def leave(fit, at, *of_run):
    """An experiment that is interrupted at the first step of a trial."""
    Stepping.leave_at = (at, 1)
    with pytest.raises(KeyboardInterrupt):
        run(fit, "left", *of_run)
    assert Stepping.leave_at is None


# rows 1.5, 2.9: the same suggestions and decisions, though it was left while trials were paused
@pytest.mark.parametrize(
    ("name", "scheduler", "number", "at"),
    [
        ("default", "promotion", 9, "00007"),
        ("hyperopt", "hyperband", 9, "00007"),
        ("cma", "promotion", 9, "00007"),
        ("nsga2", "hyperband", 9, "00007"),
        ("bohb", "promotion", 14, "00011"),
        ("bohb", "of bohb", 14, "00011"),
    ],
)
def test_a_restore_in_the_middle_goes_on_as_if_nothing_had_happened(
    fit, restore, name, scheduler, number, at
):
    whole = run(fit, "whole", scheduler, ALL[name](), PLANE, number)
    leave(fit, at, scheduler, ALL[name](), PLANE, number)
    grid = restore(Stepping, "left", **({} if name == "bohb" else {"search_alg": ALL[name]()}))
    assert history(grid) == history(whole)
    verdicts = {each["verdict"] for each in grid.decisions()}
    assert {Verdict.PAUSE, Verdict.RESUME} <= verdicts


# row 2.9
@pytest.mark.slow
def test_a_database_holds_each_trial_once_and_a_paused_one_as_running(fit, restore):
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")

    def states(name="optuna"):
        return [trial.state.name for trial in optuna.load_study(study_name=name, storage=storage).trials]

    def search_alg(**given):
        return OptunaSearch(sampler=tpe(multivariate=True, group=True, constant_liar=True), **given)

    space = {"x": tune.uniform(-10, 10), **TREE}
    whole = run(fit, "whole", "promotion", search_alg(), space)
    leave(fit, "00007", "promotion", search_alg(storage=storage), space)
    left = states()
    assert len(left) == 8 and "PRUNED" not in left and left.count("RUNNING") > 2
    grid = restore(Stepping, "left", search_alg=search_alg(storage=storage))
    assert history(grid) == history(whole)
    trials = optuna.load_study(study_name="optuna", storage=storage).trials
    assert [trial.user_attrs[MARK] for trial in trials] == [result.trial_id for result in grid]
    reached = [result.metrics["training_iteration"] for result in grid]
    assert states() == ["COMPLETE" if last == 4 else "PRUNED" for last in reached]
    assert len(set(states())) == 2
