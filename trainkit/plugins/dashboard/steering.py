"""Commands that steer a running experiment, for the API and for agents: methods of `Experiment`."""

from __future__ import annotations

import inspect

from trainkit.client import Experiment

VERBS = {
    "stop": "Stop the experiment, or one trial of it.",
    "pause": "Hold the experiment, or one trial of it.",
    "resume": "Let what was held go on.",
    "prioritise": "Have a trial run before the others.",
    "add": "Have a configuration tried next.",
    "set": "Raise or lower samples, budget or trials at once.",
}
"""Summary of each steering method, by its name."""


def parameters_of(verb: str) -> dict[str, inspect.Parameter]:
    """Return the parameters of a steering method by name, with their types."""
    _, *found = inspect.signature(getattr(Experiment, verb), eval_str=True).parameters.values()
    return {each.name: each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found}
