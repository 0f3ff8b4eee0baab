"""Classes named by texts: in this process, and in the trials of a script."""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
from pathlib import Path

import pytest

import trainkit
from tests.tune import programs
from trainkit import tune
from trainkit.errors import ConfigError


class Outer:
    class Inner:
        pass


def test_classes_functions_and_nested_classes_are_found():
    assert tune.import_class("collections.OrderedDict") is collections.OrderedDict
    assert tune.import_class("os.path.join") is os.path.join
    assert tune.import_class("json.decoder.JSONDecoder") is json.JSONDecoder
    assert tune.import_class("trainkit.tune.import_class") is tune.import_class
    assert tune.import_class(f"{__name__}.Outer.Inner") is Outer.Inner


def test_a_name_without_a_dot_is_that_of_the_script(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "MyOptimizer", Outer, raising=False)
    assert tune.import_class("MyOptimizer") is Outer
    with pytest.raises(ConfigError, match=r"__main__ .* has no 'MyOptimiser'; similar names: MyOptimizer"):
        tune.import_class("MyOptimiser")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("collections.OrderedDic", ["collections has no 'OrderedDic'", "similar names: OrderedDict"]),
        ("collections.ordereddict", ["similar names: OrderedDict"]),
        ("json.decodr.JSONDecoder", ["json has no 'decodr'", "decoder"]),
        ("jsn.JSONDecoder", ["no module 'jsn'", "json", "installed"]),
        ("collections.OrderedDict.Inner", ["collections.OrderedDict has no 'Inner'"]),
        ("os.path", ["'os.path'", "is a module"]),
        ("sys.maxsize", ["an object of type int"]),
        ("", ["''", "torch.optim.Adam"]),
        (".Adam", ["'.Adam'"]),
        ("torch.optim.", ["'torch.optim.'"]),
        (argparse.Namespace, ["Namespace", "needs a name"]),
    ],
)
def test_a_name_that_leads_nowhere_is_named_with_the_nearest(name, words):
    with pytest.raises(ConfigError) as caught:
        tune.import_class(name)
    for word in words:
        assert word in str(caught.value)


def test_a_space_of_names(fit):
    # seed 000 does this by hand: a text in the space, the class in the trial
    trainkit.init(engine="inline", num_cpus=1)
    try:

        def objective(config):
            made = tune.import_class(config["kind"])()
            tune.report({"name": type(made).__name__})

        names = ["collections.OrderedDict", "collections.Counter"]
        results = fit(objective, {"kind": tune.grid_search(names)})
    finally:
        trainkit.shutdown()
    assert [result.metrics["name"] for result in results] == ["OrderedDict", "Counter"]


SCRIPT = """
from trainkit import tune

class Mentioned:
    pass

class Unmentioned:
    pass

class InMain:
    known = [Mentioned]

def objective(config):
    kinds = (Mentioned,)
    tune.report({"name": tune.import_class(config["kind"]).__name__})

print(tune.import_class("Unmentioned").__name__)
results = tune.Tuner(
    objective,
    param_space={"kind": tune.grid_search(["Mentioned", "Unmentioned"])},
    run_config=tune.RunConfig(storage_path="results", verbose=0),
).fit()
print(results[0].metrics["name"])
print(results[1].error)
"""


@pytest.mark.external
def test_classes_of_a_script_in_its_trials(tmp_path):
    Path(tmp_path, "script.py").write_text(SCRIPT)
    done = programs.run("script.py", cwd=tmp_path)
    here, in_trial, *error = done.stdout.splitlines()
    assert (here, in_trial) == ("Unmentioned", "Mentioned")
    assert "__main__ contains only the names that the trainable mentions" in " ".join(error)
