"""`tune.simulate`: the clock, the workers, what ends an experiment, and what it leaves to look at."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from trainkit import tune
from trainkit.errors import ConfigError, MetricError
from trainkit.tune.schedulers import ASHAScheduler, PopulationBasedTraining

SPACE = {"x": tune.uniform(0, 1)}


def objective(config, training_iteration, rng):
    return {"loss": config["x"] / training_iteration + 0.01 * rng.normal()}


def for_three(config, training_iteration, rng):
    return {"loss": config["x"], "time_this_iter_s": config["cost"], "done": training_iteration == 3}


def search(num_samples=9, **settings):
    return tune.TuneConfig(metric="loss", mode="min", num_samples=num_samples, **settings)


def test_trials_share_the_workers_and_the_time_is_the_clock_s():
    results = tune.simulate(
        for_three, {"x": 1.0, "cost": tune.grid_search([1.0, 2.0, 4.0])}, search(1), workers=2, seed=0
    )
    assert [(span.place, span.started, span.ended) for span in results.timeline] == [
        (("simulated", 0), 0.0, 3.0),
        (("simulated", 1), 0.0, 6.0),
        (("simulated", 0), 3.0, 15.0),
    ]
    assert {span.outcome for span in results.timeline} == {"finished"}
    assert (results.ended_s, results.busy_s, results.work) == (15.0, 21.0, 9)
    last = results[2].metrics
    assert (last["time_this_iter_s"], last["time_total_s"], last["timestamp"]) == (4.0, 12.0, 15.0)
    assert (last["training_iteration"], last["date"], last["done"]) == (3, None, True)


def test_the_log_tells_of_a_report_what_the_trial_sent():
    results = tune.simulate(objective, SPACE, search(1), max_work=1, seed=0)
    _, fields = json.loads(next(line for line in results.log() if "ResultAdded" in line))
    assert list(fields) == ["trial", "attempt", "iteration", "time", "metrics"]
    assert [*fields["metrics"]][:: len(fields["metrics"]) - 1] == ["training_iteration", "loss"]
    assert not {"trial_id", "config", "done"} & set(fields["metrics"])


def test_the_results_are_those_of_a_tuner():
    results = tune.simulate(
        objective, SPACE, search(27, scheduler=ASHAScheduler(max_t=9, reduction_factor=3)), workers=4, seed=1
    )
    assert len(results) == results.num_terminated == 27
    best = results.get_best_result(scope="all")
    assert best.metrics["training_iteration"] == 9 and len(best.history) == 9
    assert list(results.get_dataframe()["trial_id"]) == [result.trial_id for result in results]
    assert {each["rule"] for each in results.decisions()} == {"rung", "max_t"}
    assert best.attempts[0].outcome == "reached max_t=9"
    assert results[:2][1].config == results[1].config
    assert "27 trials" in repr(results) and "path" not in repr(best)
    assert results.hyperparameters()[0].name == "x"
    for kind in ("curves", "rungs"):
        assert results.plot(kind) is not None


def test_a_trial_measures_the_same_whatever_the_scheduler_does():
    stop = tune.RunConfig(stop={"training_iteration": 9})
    plain = tune.simulate(objective, SPACE, search(9, search_alg="random"), seed=3, run_config=stop)
    asha = tune.simulate(
        objective,
        SPACE,
        search(9, scheduler=ASHAScheduler(max_t=9, reduction_factor=3), search_alg="random"),
        workers=5,
        seed=3,
        failures=0.01,
        stragglers=0.5,
    )
    for one, other in zip(plain, asha, strict=True):
        losses = [report["loss"] for report in one.history]
        assert losses[: len(other.history)] == [report["loss"] for report in other.history]


def test_the_horizon_cuts_what_runs():
    results = tune.simulate(objective, SPACE, search(-1), workers=3, horizon_s=2.5, seed=0)
    assert [(span.ended, span.outcome) for span in results.timeline] == [(2.5, "cut")] * 3
    assert [result.reason for result in results] == ["time budget"] * 3
    assert [len(result.history) for result in results] == [2, 2, 2]
    assert (results.ended_s, results.utilisation) == (2.5, 1.0)


def test_work_is_counted_over_all_trials():
    results = tune.simulate(objective, SPACE, search(-1), workers=2, max_work=10, seed=0)
    assert (results.work, results.ended_s) == (10, 5.0)
    assert {result.status for result in results} == {"TERMINATED"}


def test_failed_trials_are_lost_unless_they_are_tried_again():
    script = [(1.5, 0), (3.5, 1)]
    stop = {"training_iteration": 4}

    def statuses(max_failures, **settings):
        run = tune.RunConfig(stop=stop, failure_config=tune.FailureConfig(max_failures=max_failures))
        results = tune.simulate(
            objective, SPACE, search(2), workers=2, failures=script, run_config=run, seed=0, **settings
        )
        return results, [str(result.status) for result in results]

    lost, stands = statuses(0)
    assert stands == ["ERROR", "ERROR"]
    assert [len(result.history) for result in lost] == [1, 3]
    assert "WorkerFailed" in str(lost.errors[0])
    # From the last report, half a second before: trial 0 ends at 1.5 + 3.
    gone_on, stands = statuses(1)
    assert stands == ["TERMINATED", "TERMINATED"]
    assert [span.ended for span in gone_on.timeline] == [1.5, 3.5, 4.5, 4.5]
    assert Counter(span.outcome for span in gone_on.timeline) == {"failed": 2, "finished": 2}
    anew, _ = statuses(1, resume=False)
    assert [span.ended for span in anew.timeline] == [1.5, 3.5, 5.5, 7.5]
    assert [result.attempts[1].iteration for result in anew] == [0, 0]


def test_stragglers_take_longer_by_one_factor_an_attempt():
    results = tune.simulate(
        objective,
        SPACE,
        search(20),
        stragglers=1.0,
        run_config=tune.RunConfig(stop={"training_iteration": 3}),
    )
    for result in results:
        took = {report["time_this_iter_s"] for report in result.history}
        assert len(took) == 1 and took.pop() > 1


def test_a_state_goes_from_report_to_report():
    def counting(config, training_iteration, rng, state):
        total = (state or 0) + config["x"]
        return {"loss": total, "state": total, "done": training_iteration == 4}

    results = tune.simulate(counting, {"x": 2}, search(1), seed=0)
    assert [report["loss"] for report in results[0].history] == [2, 4, 6, 8]
    assert "state" not in results[0].metrics
    retried = tune.simulate(
        counting,
        {"x": 2},
        search(1),
        seed=0,
        failures=[(2.5, 0)],
        run_config=tune.RunConfig(failure_config=tune.FailureConfig(max_failures=1)),
    )
    assert [report["loss"] for report in retried[0].history] == [2, 4, 6, 8]
    assert retried.ended_s == 4.5


def test_what_the_objective_raises_is_its_trial_s_failure():
    def broken(config, training_iteration, rng):
        raise ZeroDivisionError("no luck")

    results = tune.simulate(broken, SPACE, search(2), seed=0, failures=0.1)
    assert results.num_errors == 2 and isinstance(results.errors[0], ZeroDivisionError)
    with pytest.raises(MetricError, match="2 of 2 trials failed and no trial reported"):
        results.get_best_result()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workers": 0}, "workers=0: give a whole number of 1 or more"),
        ({"horizon_s": -1}, "horizon_s=-1"),
        ({"max_work": float("nan")}, "max_work=nan"),
        ({"stragglers": -0.1}, "stragglers=-0.1"),
        ({"failures": 1.0}, "failures=1.0: give a probability"),
        ({"failures": [(1.0, 2, 3)]}, r"pairs \(seconds, number of the trial\)"),
        ({"failures": "often"}, "give a probability"),
        ({"resume": "yes"}, "resume='yes'"),
        ({"seed": -1}, "seed=-1"),
        ({"tune_config": tune.TuneConfig(seed=1), "seed": 2}, "differ; give it in one place"),
        ({"tune_config": tune.TuneConfig(num_samples=-1)}, "num_samples=-1 never ends"),
        ({"run_config": tune.RunConfig(name="x", verbose=0)}, "run_config gives name, verbose"),
        ({"objective": 3}, "objective=3"),
        ({"objective": lambda config: {}}, r"too many positional arguments; its arguments are \(config"),
    ],
)
def test_wrong_arguments_are_named(wrong, words):
    with pytest.raises(ConfigError, match=words):
        tune.simulate(**{"objective": objective, "param_space": SPACE, **wrong})


@pytest.mark.parametrize("cost", [0, -1.0, float("inf"), "long", 1e308])
def test_an_iteration_takes_time(cost):
    with pytest.raises(ConfigError, match="time_this_iter_s="):
        tune.simulate(lambda config, training_iteration, rng: {"time_this_iter_s": cost}, {}, seed=0)


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        (ASHAScheduler(time_attr="epoch", max_t=9), "'epoch', which is the time_attr"),
        (PopulationBasedTraining(hyperparam_mutations=SPACE), "PopulationBasedTraining has judged no trial"),
        (ASHAScheduler(max_t=9), None),
    ],
)
def test_a_scheduler_that_judges_nobody_is_told_of(scheduler, words, caplog):
    tune.simulate(
        for_three, {"x": 1.0, "cost": tune.grid_search([1.0, 2.0])}, search(1, scheduler=scheduler), seed=0
    )
    told = [record.getMessage() for record in caplog.records]
    assert [words in text for text in told] == ([True] if words else [])


def test_a_trial_that_nothing_ends_is_told_of():
    with pytest.raises(ConfigError, match="has no known end: give horizon_s, max_work"):
        tune.simulate(objective, SPACE, search(1), seed=0)


@pytest.mark.parametrize(
    ("failing", "settings"),
    [
        (lambda config, training_iteration, rng: {}["loss"], {"horizon_s": 10}),
        (objective, {"max_work": 10, "failures": [(0.5, trial) for trial in range(2000)]}),
    ],
)
def test_failures_without_end_are_told_of(failing, settings):
    with pytest.raises(ConfigError, match="1000 attempts have failed in a row"):
        tune.simulate(failing, SPACE, search(-1), workers=2000, seed=0, **settings)
