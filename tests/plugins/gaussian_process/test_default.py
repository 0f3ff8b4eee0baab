"""The searcher of a Tuner for which nothing is named."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from trainkit import tune
from trainkit.tune.schedulers import PopulationBasedTraining
from trainkit.tune.store.schema import FILENAME

PLANE = {"x": tune.uniform(-10, 10), "y": tune.uniform(-10, 10)}
GOAL = {"metric": "loss", "mode": "min", "seed": 4, "max_concurrent_trials": 1}


def objective(config):
    return {"loss": (config["x"] - 3) ** 2 + (config["y"] + 5) ** 2 if "y" in config else config["x"]}


def configs(results):
    return [each.config for each in results]


@pytest.mark.usefixtures("inline")
class TestTuner:
    def test_it_learns_from_the_results(self, fit):
        results = fit(objective, PLANE, **GOAL, num_samples=15)
        assert configs(results)[0] == {"x": 0, "y": 0}
        assert results.get_best_result().metrics["loss"] < 0.5

    @pytest.mark.parametrize(
        ("space", "settings"),
        [
            (PLANE, {}),
            (PLANE, {"metric": "loss", "mode": "min", "num_samples": 1}),
            (PLANE, {"metric": ["loss", "training_iteration"], "mode": ["min", "min"]}),
            ({"x": tune.grid_search([1, 2]), "z": tune.uniform(0, 1)}, {"metric": "loss", "mode": "min"}),
        ],
    )
    def test_draws_as_random_search_where_it_cannot_learn(self, fit, space, settings):
        given = {"seed": 3, "num_samples": 4, **settings}
        plain = fit(objective, space, **given, search_alg="random", run={"name": "random"})
        assert configs(fit(objective, space, **given)) == configs(plain)

    def test_a_population_starts_at_random(self, fit):
        def made(name, **settings):
            scheduler = PopulationBasedTraining(
                perturbation_interval=9, hyperparam_mutations={"x": tune.uniform(-10, 10)}
            )
            return fit(
                objective,
                PLANE,
                **GOAL,
                num_samples=4,
                scheduler=scheduler,
                run={"name": name, "stop": {"training_iteration": 1}},
                **settings,
            )

        assert configs(made("default")) == configs(made("random", search_alg="random"))

    def test_a_restore_repeats_it_at_every_trial(self, fit, restore):
        whole = fit(objective, PLANE, **GOAL, num_samples=9, run={"name": "whole"})
        for number in range(2, 9):
            fit(objective, PLANE, **GOAL, num_samples=number, run={"name": f"part {number}"})
            rest = restore(objective, f"part {number}", num_samples=9)
            assert configs(rest) == configs(whole)

    def test_a_single_trial_is_the_first_of_a_longer_search(self, fit, restore):
        one = fit(objective, PLANE, **GOAL, num_samples=1)
        assert configs(one)[0] != {"x": 0, "y": 0}
        rest = restore(objective, num_samples=15)
        assert configs(rest)[0] == configs(one)[0] and len(rest) == 15
        assert rest.get_best_result().metrics["loss"] < 0.5

    def test_objects_without_a_text_form_are_kept_by_a_longer_search(self, fit, restore):
        class Layer:
            pass

        space = {"x": tune.uniform(0, 1), "layer": tune.choice([Layer(), Layer(), Layer(), Layer()])}
        one = fit(objective, space, **GOAL, num_samples=1)
        rest = restore(objective, num_samples=5, param_space=space)
        assert configs(rest)[0]["x"] == configs(one)[0]["x"] and len(rest) == 5

    def test_experiments_of_earlier_versions_go_on_at_random(self, fit, restore, tmp_path):
        plain = fit(objective, PLANE, **GOAL, num_samples=9, search_alg="random", run={"name": "random"})
        fit(objective, PLANE, **GOAL, num_samples=4, search_alg="random")
        with closing(sqlite3.connect(tmp_path / "e" / FILENAME)) as file, file:
            ((text,),) = file.execute("SELECT value FROM experiment WHERE key = 'tune_config'")
            stored = {**json.loads(text), "search_alg": None}
            file.execute("UPDATE experiment SET value = ? WHERE key = 'tune_config'", [json.dumps(stored)])
        assert configs(restore(objective, num_samples=9)) == configs(plain)


@pytest.mark.process
def test_a_grid_and_a_search_without_a_metric_import_no_numpy():
    text = """
        import sys
        from trainkit.tune.search import create_searcher
        from trainkit.tune.space.search_space import Space
        from trainkit import tune
        for space, metric in ({"x": tune.grid_search([1, 2])}, "loss"), ({"x": tune.uniform(0, 1)}, None):
            searcher = create_searcher("auto")
            searcher.begin(Space.of(space), metric=metric, mode=metric and "min", num_samples=2, seed=0)
        assert "numpy" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", "\n".join(line[8:] for line in text.splitlines())], check=True)
