"""A subclass is as free as with Ray: its constructor, attributes, methods and signatures are its own.

Classes are drawn, and run under trainkit; some of them under Ray, with the same outcome.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.tune import subclasses
from trainkit import tune
from trainkit.tune.callbacks.reporters import TableReporter

pytestmark = pytest.mark.usefixtures("inline")

NAMED = {
    "setup": "stop num_samples",
    "on_step_begin": "iteration trials",
    "on_step_end": "iteration trials",
    "on_trial_start": "iteration trials trial",
    "on_trial_result": "iteration trials trial result",
    "on_trial_complete": "iteration trials trial",
    "on_experiment_end": "trials",
}
"""Hooks of callbacks, with the names that Ray gives them."""

LOGGED = {
    "log_trial_start": ["self, trial", "self, t", "self, *given"],
    "log_trial_result": ["self, iteration, trial, result", "self, i, t, result", "self, *given"],
    "log_trial_end": ["self, trial, failed=False", "self, t, **info", "self, trial, failed"],
}
SEARCHED = {
    "suggest": ["self, trial_id", "self, t", "self, *given"],
    "set_search_properties": ["self, metric, mode, config, **info", "self, m, o, c, **info"],
    "on_trial_result": ["self, trial_id, result", "self, t, result", "self, trial_id, result, **info"],
    "on_trial_complete": [
        "self, trial_id, result, **info",
        "self, trial_id, result=None, error=False",
        "self, trial_id, error, result",
        "self, **info",
        "self, *, error, **info",
    ],
}
STOPPED = {"__call__": ["self, trial_id, result", "self, t, result"], "stop_all": ["self"]}
REPORTED = {
    "should_report": ["self, trials, done=False", "self, t, done"],
    "report": ["self, trials, done, *given", "self, t, d, *given"],
}
TRAINED = {"step": ["self"], "save_checkpoint": ["self, folder"], "setup": ["self, config", "self, c"]}

OUR_OWN = set("on_trial_change log_trial_results is_drawn on_trial_decision on_pause on_unpause".split())
"""Hooks that the documentation tells of, beside Ray's."""

RAYS = {
    tune.LoggerCallback: "",
    tune.search.Searcher: "metric mode suggest save restore FINISHED set_search_properties on_trial_result "
    "on_trial_complete add_evaluated_point add_evaluated_trials set_max_concurrency",
    tune.Stopper: "stop_all",
    TableReporter: "setup should_report report add_metric_column add_parameter_column",
}


def free(base: type) -> list[str]:
    """Return the public names of a base class that Ray's has not, and some that nobody has."""
    ours = {name for name in dir(base) if not name.startswith(("_", "on_", "log_"))}
    rays = {*RAYS[base].split(), "setup", "get_state", "set_state"}
    return sorted((ours - rays - OUR_OWN) | {"folder", "flush", "rewrite", "length", "seed", "trials"})


def one_of_each(methods: dict[str, list[str]], least: str) -> st.SearchStrategy[dict[str, str]]:
    """Draw signatures of some of the methods; of those in `least` always."""
    drawn = {name: st.sampled_from(forms) for name, forms in methods.items()}
    needed = least.split()
    return st.fixed_dictionaries(
        {name: drawn[name] for name in needed},
        optional={name: form for name, form in drawn.items() if name not in needed},
    )


@st.composite
def by_names(draw: st.DrawFn) -> dict[str, str]:
    """Draw hooks of a callback, each with some of the names that it is given, in any order."""
    hooks = draw(st.lists(st.sampled_from(sorted(NAMED)), min_size=1, unique=True))
    forms = {}
    for hook in hooks:
        names = draw(st.permutations(NAMED[hook].split()))
        taken = names[: draw(st.integers(0, len(names)))]
        forms[hook] = ", ".join(["self", *taken, "**info"])
    if "setup" in forms and draw(st.booleans()):
        forms["setup"] = "self"
    return forms


def specs(
    base: str,
    methods: st.SearchStrategy[dict[str, str]],
    names: list[str],
    inits: list[tuple[str, str] | None],
    places: str = "object class methods",
) -> st.SearchStrategy[dict[str, Any]]:
    """Draw what `subclasses.made` makes a class of."""
    drawn = st.fixed_dictionaries(
        {
            "base": st.just(base),
            "methods": methods,
            "attributes": st.lists(st.sampled_from(names), max_size=5, unique=True),
            "where": st.sampled_from(places.split()),
            "init": st.sampled_from(inits),
            "wrapped": st.booleans(),
        }
    )
    return drawn.filter(lambda spec: spec["init"] is not None or spec["where"] != "object")


PLAIN = [None, ("self", "pass"), ("self", "super().__init__()")]
DRAWN = {
    "Callback": specs("Callback", by_names(), free(tune.LoggerCallback), PLAIN),
    "LoggerCallback": specs("LoggerCallback", one_of_each(LOGGED, ""), free(tune.LoggerCallback), PLAIN),
    "Searcher": specs(
        "Searcher",
        one_of_each(SEARCHED, "suggest on_trial_complete"),
        free(tune.search.Searcher),
        [*PLAIN, ("self", "super().__init__(metric='a', mode='max')")],
    ),
    "Stopper": specs("Stopper", one_of_each(STOPPED, "__call__ stop_all"), free(tune.Stopper), PLAIN),
    "TuneReporterBase": specs(
        "TuneReporterBase",
        one_of_each(REPORTED, "report"),
        free(TableReporter),
        [("self", "super().__init__()"), ("self", "super().__init__(metric_columns=['a'])")],
        "object",
    ),
    "FIFOScheduler": specs("FIFOScheduler", st.just({}), ["folder", "trials", "seed"], PLAIN),
    "Trainable": specs(
        "Trainable",
        one_of_each(TRAINED, "step save_checkpoint"),
        ["_meter", "_trial", "take_over", "can_save", "trial", "parameters"],
        [
            None,
            ("self, *args, **kwargs", "super().__init__(*args, **kwargs)"),
            ("self, config, storage=None", "super().__init__(config, storage)"),
            ("self, config=None, storage=None", "super().__init__(config=config, storage=storage)"),
        ],
    ),
}


@pytest.mark.parametrize("base", sorted(DRAWN))
def test_a_subclass_is_as_free_as_with_ray(base):
    @settings(max_examples=examples(60))
    @given(DRAWN[base])
    def holds(spec):
        found = subclasses.outcome("trainkit", spec)
        ending = [[2 if base == "Stopper" else 3, True]]
        assert found.get("ended") == ending, found
        heard = {each[0] for each in found["calls"]} | {json.loads(each)[0] for each in found["often"]}
        assert heard == set(spec["methods"]) - {"save_checkpoint"}  # which comes after the last report
        # What `setup` hears, it hears before the rest of the constructor.
        assert found["kept"] or (base == "Trainable" and "setup" in spec["methods"])

    holds()


@pytest.mark.external
@pytest.mark.slow
def test_the_same_subclasses_have_the_same_outcome_under_ray():
    drawn = random.Random(20)
    chosen = [example(strategy, drawn) for strategy in DRAWN.values()]
    command = [sys.executable, "-m", "tests.tune.subclasses", "ray"]
    root = Path(__file__).parents[2]
    told = subprocess.run(
        command,
        input=json.dumps(chosen),
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "RAY_AIR_NEW_OUTPUT": "0"},
        timeout=900,
        check=False,
    )
    answers = [line for line in told.stdout.splitlines() if line.startswith("ANSWERS ")]
    assert answers, told.stderr[-2000:]
    for spec, rays in zip(chosen, json.loads(answers[0].removeprefix("ANSWERS ")), strict=True):
        # Ray's Searcher needs its constructor, ours doesn't.
        assert subclasses.outcome("trainkit", spec) == rays or "no attribute '_metric'" in rays.get(
            "refused", ""
        ), spec


def example(strategy: st.SearchStrategy[dict[str, Any]], chance: random.Random) -> dict[str, Any]:
    """Return a drawn specification that follows from the seed of `chance` alone."""
    found: list[dict[str, Any]] = []

    @seed(chance.randrange(10**6))
    @settings(max_examples=8, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(strategy)
    def collect(spec: dict[str, Any]) -> None:
        found.append(spec)

    collect()
    return found[-1]
