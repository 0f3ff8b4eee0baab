"""Hydra's override grammar as a search space, and the objective of a sweep."""

from __future__ import annotations

from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.utils import create_config_search_path
from hydra.core.override_parser.overrides_parser import OverridesParser

from trainkit import tune
from trainkit.errors import ConfigError, SpaceError, TuneError
from trainkit.plugins.hydra.objective import read_objective
from trainkit.plugins.hydra.space import SweepSpace, read_space

LOADER = ConfigLoaderImpl(create_config_search_path("pkg://hydra.test_utils.configs"))


def read(*arguments: str, params: dict[str, Any] | None = None, grid: bool = False) -> SweepSpace:
    return read_space(params, arguments, LOADER, grid=grid)


@pytest.mark.parametrize(
    ("value", "domain"),
    [
        ("interval(1e-4,1e-1)", tune.uniform(1e-4, 1e-1)),
        ("interval(1,5)", tune.uniform(1, 5)),
        ("tag(log, interval(1e-4, 1e-1))", tune.loguniform(1e-4, 1e-1)),
        ("int(interval(1,5))", tune.randint(1, 6)),
        ("tag(log, int(interval(1,5)))", tune.lograndint(1, 6)),
        ("range(1,10)", tune.randint(1, 10)),
        ("range(9,0,-1)", tune.randint(1, 10)),
        ("range(16,80,16)", tune.qrandint(16, 64, 16)),
        ("range(1,8,2)", tune.choice([1, 3, 5, 7])),
        ("range(0.5,2.5,0.5)", tune.quniform(0.5, 2.0, 0.5)),
        ("range(0,1,0.1)", tune.quniform(0.0, 0.9, 0.1)),
        ("range(0.25,1.75,0.5)", tune.choice([0.25, 0.75, 1.25])),
        ("a,b", tune.choice(["a", "b"])),
        ("1,2.5,true,null", tune.choice([1, 2.5, True, "null"])),
        ("'a b','c,d'", tune.choice(["'a b'", "'c,d'"])),
        ("choice([1,2],{k:3})", tune.choice(["[1,2]", "{k:3}"])),
        ("sort(3,1,2)", tune.choice([1, 2, 3])),
    ],
)
def test_a_sweep_is_a_domain(value: str, domain: Any):
    assert read(f"x={value}") == ({"x": domain}, [])


def test_glob_lists_the_files_of_a_group():
    assert read("group1=glob(file*)").params == {"group1": tune.choice(["file1", "file2"])}


def test_fixed_overrides_are_part_of_each_job():
    space = read("x=1,2", "+y='a b'", "~group1", "db@backup=mysql")
    assert space.overrides({"x": 2}) == ["x=2", "+y='a b'", "~group1", "db@backup=mysql"]


@pytest.mark.parametrize(
    ("value", "written"),
    [(1e-05, "x=1e-05"), (True, "x=true"), (None, "x=null"), ("'a b'", "x='a b'"), (3, "x=3")],
)
def test_a_value_is_written_in_the_grammar(value: Any, written: str):
    assert read("x=1,2").overrides({"x": value}) == [written]


def test_the_command_line_replaces_params():
    params = {"x": "interval(0,1)", "y": "range(1,3)", "z": [1, 2], "w": 4}
    assert read("x=3", "~y", "w=5,6", params=params) == (
        {"z": tune.choice([1, 2]), "w": tune.choice([5, 6])},
        ["x=3", "~y"],
    )


def test_a_grid_has_all_values():
    space = read("x=1,2", "y=range(0,3)", grid=True)
    assert space.params == {"x": tune.grid_search([1, 2]), "y": tune.grid_search([0, 1, 2])}
    assert space.checks(LOADER) == [["x=1", "y=0"]]


def test_each_choice_of_a_config_group_is_checked():
    space = read("group1=file1,file2", "+group2@there=a,b", "x=1,2", grid=True)
    assert space.checks(LOADER) == [
        ["group1=file1", "+group2@there=a", "x=1"],
        ["group1=file2", "+group2@there=a", "x=1"],
        ["group1=file1", "+group2@there=a", "x=1"],
        ["group1=file1", "+group2@there=b", "x=1"],
    ]


def test_a_list_of_a_file_may_contain_any_value():
    values = [
        "a b",
        "c:d",
        "x=y",
        None,
        "p,q",
        "(",
        "it's",
        "1",
        1,
        True,
        "null",
        "a/b",
        [1, "é"],
        {"k": "v w"},
    ]
    space = read(params={"x": values})
    loaded = [
        OverridesParser.create().parse_override(override).value()
        for choice in space.params["x"].categories
        for override in space.overrides({"x": choice})
    ]
    assert loaded == values


def test_a_grid_refuses_an_interval():
    with pytest.raises(SpaceError, match=r"x=interval\(0,1\): an interval has no list of values"):
        read("x=interval(0,1)", grid=True)


@pytest.mark.parametrize(
    ("given", "metrics", "modes"),
    [
        ((None, None, None), ("objective",), ("min",)),
        ((None, None, "maximize"), ("objective",), ("max",)),
        ((None, ["min", "max"], None), ("objective_0", "objective_1"), ("min", "max")),
        ((None, None, ["minimize", "maximize"]), ("objective_0", "objective_1"), ("min", "max")),
        (("loss", "max", None), ("loss",), ("max",)),
        ((["loss", "size"], "min", None), ("loss", "size"), ("min", "min")),
    ],
)
def test_metric_and_mode_have_the_names_of_trainkit_and_of_optuna(given: Any, metrics: Any, modes: Any):
    objective = read_objective(*given)
    assert (objective.metrics, objective.modes) == (metrics, modes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("a", "min", "minimize"), "both mode and direction"),
        (("a", "least", None), "give min or max"),
        ((["a", "b"], ["min", "max", "min"], None), "2 metrics and 3 modes"),
    ],
)
def test_a_wrong_objective_is_refused(given: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        read_objective(*given)


@pytest.mark.parametrize(
    ("metric", "mode", "returned", "has_reported", "report"),
    [
        (None, None, 3, False, {"objective": 3.0}),
        (None, None, 3, True, {"objective": 3.0}),
        (None, ["min", "max"], (1, 2), False, {"objective_0": 1.0, "objective_1": 2.0}),
        ("loss", None, 3, False, {"loss": 3.0}),
        ("loss", None, 3, True, None),
        ("loss", None, None, True, None),
        ("loss", None, {"loss": 1, "size": 2}, True, {"loss": 1, "size": 2}),
    ],
)
def test_a_returned_value_is_the_last_report(
    metric: Any, mode: Any, returned: Any, has_reported: bool, report: Any
):
    assert read_objective(metric, mode, None).report_of(returned, has_reported=has_reported) == report


@pytest.mark.parametrize(("mode", "returned"), [(None, None), (None, "a"), (["min", "min"], (1, 2, 3))])
def test_a_returned_value_that_is_no_objective_is_refused(mode: Any, returned: Any):
    with pytest.raises(TuneError, match=r"the job returned .* which is not"):
        read_objective(None, mode, None).report_of(returned, has_reported=False)
