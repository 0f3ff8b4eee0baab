"""The tuner's errors in the words of who searches: his arguments, where the tuner names its own settings."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainkit.errors import (
    ConfigError,
    InfeasibleError,
    MetricError,
    SerializationError,
    StorageError,
    StoreError,
    TaskError,
    TrialError,
)

_ARGUMENTS = {
    "name": "name",
    "num_samples": "n_trials",
    "scheduler": "early_stopping",
    "search_alg": "search_optimization",
    "stop": "stopper",
    "storage_path": "local_dir",
}
"""By the tuner's setting, the argument of a search that decides it."""

OF_A_CANDIDATE = (
    " What a candidate asks for is said by sk_n_jobs, use_gpu, and tune_params={'resources_per_trial': ...}"
)
_TOLD = (ConfigError, MetricError, SerializationError, StorageError, StoreError, TrialError)
_OF_A_SETTING = re.compile(r"\b(?:TuneConfig|RunConfig|FailureConfig)\((\w+)=[^()]*\)")
_AT_THE_START = re.compile(rf"^({'|'.join(_ARGUMENTS)})=")
_RESTORE = r"Tuner\.restore\([^()]*\)\.fit\(\)"
_OR_RESTORE = re.compile(rf"go on with it by {_RESTORE}, or ")
_THEN_RESTORE = re.compile(rf"go on by {_RESTORE}")


def arguments_of(space: str, refit: object, tune_params: Mapping[str, Any] | None) -> dict[str, str]:
    """Return, by the tuner's setting, what a search calls that which decides it.

    Args:
        space: name of the argument that is the space.
        refit: of the search, which says what is optimised.
        tune_params: of `fit`; what is in them is called there as the tuner calls it.
    """
    known = {**_ARGUMENTS, "param_space": space, "metric": f"the score that refit={refit!r:.100} goes by"}
    return {setting: argument for setting, argument in known.items() if setting not in (tune_params or ())}


def reworded(text: str, arguments: Mapping[str, str]) -> str:
    """Return what the tuner says with the names that its user knows.

    Args:
        text: such as "RunConfig(stop=...) waits for 'accuracy'".
        arguments: by the tuner's setting, what the user gave; a setting that isn't here is one that he can
            give in `tune_params`.
    """

    def name_of(setting: re.Match[str]) -> str:
        return arguments.get(setting[1], f"tune_params={{{setting[1]!r}: ...}}")

    text = _AT_THE_START.sub(lambda found: f"{arguments.get(found[1], found[1])}=", text)
    text = re.sub(r"\bparam_space\b", arguments.get("param_space", "param_space"), text)
    text = _THEN_RESTORE.sub("fit again", _OR_RESTORE.sub("", text))
    return _OF_A_SETTING.sub(name_of, text)


def reword(error: BaseException | None, arguments: Mapping[str, str]) -> None:
    """Change the text of an error of the tuner's own; what user code raised stays as it is.

    Args:
        error: perhaps one; None: there is none.
        arguments: as for `reworded`.
    """
    if isinstance(error, _TOLD) and not isinstance(error, TaskError):
        more = OF_A_CANDIDATE if isinstance(error, InfeasibleError) else ""
        error.args = (reworded(str(error), arguments) + more,)


@contextlib.contextmanager
def in_words_of(arguments: Mapping[str, str]) -> Iterator[None]:
    """Have the tuner's errors in this block name the user's arguments.

    Args:
        arguments: as for `reworded`.
    """
    try:
        yield
    except Exception as error:
        reword(error, arguments)
        raise
