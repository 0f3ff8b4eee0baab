"""Drawn subclasses of the tuner's base classes, run under Ray or trainkit: what was called with what.

python -m tests.tune.subclasses ray < specs.json
"""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

HEARD: list[Any] = []

BODIES = {
    "suggest": "return {'x': 1}",
    "set_search_properties": "return True",
    "__call__": "return result['a'] >= 2",
    "stop_all": "return False",
    "should_report": "return True",
    "step": "self.mine = [*getattr(self, 'mine', []), 1]; return told(self.mine)",
    "save_checkpoint": "return {'a': 1}",
}
"""By method, what it does; others do nothing."""

SEEN = {
    "trial_id",
    "result",
    "error",
    "trial",
    "trials",
    "iteration",
    "done",
    "failed",
    "metric",
    "mode",
    "config",
}
"""Arguments that are compared; others are each library's own."""

OFTEN = frozenset(
    "on_step_begin on_step_end should_report report stop_all suggest set_search_properties".split()
)
"""Methods that each library calls as often as it likes."""


def heard(owner: Any, method: str, given: dict[str, Any], names: list[str]) -> None:
    """Note a call: its arguments by name, and whether the object's own attributes are as it set them."""
    given = {**given, **given.pop("info", {})}
    given.pop("self", None)
    told = sorted(name for name, value in given.items() if name in SEEN and value is not None)
    value = given.get("result")
    about = value.get("a") if isinstance(value, dict) else None
    kept = [_value(getattr(owner, name, "gone")) == f"my {name}" for name in names]
    HEARD.append([method, told, about, kept])


def _value(own: Any) -> Any:
    return own() if callable(own) else own


def told(steps: list[int]) -> dict[str, Any]:
    """Return the metrics of a step, with the calls that this process has heard."""
    return {"a": len(steps), "done": len(steps) == 3, "heard": json.dumps(HEARD)}


def made(base: type, spec: dict[str, Any]) -> Any:
    """Return a subclass of `base` with drawn methods and attributes."""
    names, init = spec["attributes"], spec["init"]
    lines = ["class Mine(base):", "    pass"]
    if spec["where"] == "class":
        lines += [f"    {name} = {f'my {name}'!r}" for name in names]
    elif spec["where"] == "methods":
        lines += [f"    def {name}(self): return {f'my {name}'!r}" for name in names]
    if init is not None:
        lines += [f"    def __init__({init[0]}):", f"        {init[1]}"]
        lines += [f"        self.{name} = {f'my {name}'!r}" for name in names if spec["where"] == "object"]
    for method, signature in spec["methods"].items():
        lines += [
            f"    def {method}({signature}):",
            f"        heard(self, {method!r}, dict(locals()), {names!r})",
        ]
        lines += [f"        {BODIES.get(method, 'pass')}"]
    space = {"base": base, "heard": heard, "told": told, "__name__": __name__}
    exec("\n".join(lines), space)  # a class of drawn methods
    return space["Mine"]


def outcome(library: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Run an experiment of two reports with an object of the class that `spec` draws."""
    if library == "ray":
        from ray import tune
        from ray.tune import search
        from ray.tune.logger import LoggerCallback
        from ray.tune.progress_reporter import TuneReporterBase
        from ray.tune.schedulers import FIFOScheduler
        from ray.tune.stopper import Stopper
    else:
        from trainkit import tune
        from trainkit.tune import search
        from trainkit.tune.logger import LoggerCallback
        from trainkit.tune.progress_reporter import TuneReporterBase
        from trainkit.tune.schedulers import FIFOScheduler
        from trainkit.tune.stopper import Stopper
    bases: dict[str, Any] = {
        "Callback": tune.Callback,
        "LoggerCallback": LoggerCallback,
        "Searcher": search.Searcher,
        "Stopper": Stopper,
        "TuneReporterBase": TuneReporterBase,
        "FIFOScheduler": FIFOScheduler,
        "Trainable": tune.Trainable,
    }
    cls = made(bases[spec["base"]], spec)
    HEARD.clear()

    def trainable(config: dict[str, Any]) -> None:
        for a in (1, 2, 3):
            tune.report({"a": a})

    run, settings = {}, {}
    try:
        thing = cls() if spec["base"] != "Trainable" else cls
        if spec["base"] in ("Callback", "LoggerCallback"):
            run["callbacks"] = [thing]
        elif spec["base"] == "Searcher":
            settings["search_alg"] = search.ConcurrencyLimiter(thing, 1) if spec["wrapped"] else thing
        elif spec["base"] == "Stopper":
            run["stop"] = thing
        elif spec["base"] == "TuneReporterBase":
            run.update(progress_reporter=thing, verbose=1)
        elif spec["base"] == "FIFOScheduler":
            settings["scheduler"] = thing
        if spec["base"] != "Trainable":
            run.setdefault("stop", {"a": 3})
        grid = tune.Tuner(
            trainable if spec["base"] != "Trainable" else thing,
            tune_config=tune.TuneConfig(metric="a", mode="max", **settings),
            run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), name="e", **{"verbose": 0, **run}),
        ).fit()
        if spec["base"] == "Trainable":
            HEARD[:] = json.loads(grid[0].metrics["heard"])
        ended = [[result.metrics["a"], result.error is None] for result in grid]
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[-300:]}
    calls = [each[:3] for each in HEARD]
    return {
        "ended": ended,
        "calls": [each for each in calls if each[0] not in OFTEN],
        "often": sorted({json.dumps(each[:2]) for each in calls if each[0] in OFTEN}),
        "kept": all(all(each[3]) for each in HEARD),
    }


if __name__ == "__main__":
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    answers = [outcome("ray", spec) for spec in json.load(sys.stdin)]
    print("ANSWERS", json.dumps(answers))
