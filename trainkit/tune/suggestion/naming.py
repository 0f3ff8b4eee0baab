"""What trials and their folders are called, where the user's own functions say so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from trainkit.errors import ConfigError, message_of
from trainkit.tune.trial import Trial

MAX_OWN_DIRNAME = 120
"""Bytes of a folder's name that a user's function makes; longer ones are cut."""

_OURS = "experiment."
"""What the names of the experiment's own files begin with."""


class Namer:
    """Names trials as TuneConfig asks for.

    Args:
        name_of: `trial_name_creator`; None: names stay as they are.
        dirname_of: `trial_dirname_creator`; None: folders stay as they are.
        taken: names of the experiment's folders.
    """

    def __init__(
        self,
        name_of: Callable[[Trial], str] | None = None,
        dirname_of: Callable[[Trial], str] | None = None,
        taken: Iterable[str] = (),
    ) -> None:
        self._name_of = name_of
        self._dirname_of = dirname_of
        # Compared as a file system would that doesn't tell upper case from lower.
        self._taken = {name.casefold() for name in taken} if dirname_of is not None else set()

    def name(self, trial: Trial) -> None:
        """Give `trial` its own name and folder.

        Raises:
            ConfigError: a function raised, or returned something else than a text.
        """
        if self._name_of is not None:
            trial.name = _called("trial_name_creator", self._name_of, trial)
        if self._dirname_of is not None:
            asked = _called("trial_dirname_creator", self._dirname_of, trial)
            trial.dirname = own_dirname(asked, trial.trial_id, self._taken)
            self._taken.add(trial.dirname.casefold())


def own_dirname(asked: str, trial_id: str, taken: Iterable[str]) -> str:
    """Return `asked` as the name of a folder: inside the experiment's, of fair length, and nobody else's.

    What is neither a letter, a digit, nor one of `-_.=,+@` becomes `_`; where that leaves nothing, or the
    name is taken already, the trial's id is put to it. A name that begins as the experiment's own files do
    gets `trial_` before it.
    """
    plain = re.sub(r"[^\w.=,+@-]+", "_", asked).strip(".")
    cut = plain.encode()[:MAX_OWN_DIRNAME].decode(errors="ignore")
    if not cut.strip("_"):
        return f"trial_{trial_id}"
    if cut.casefold().startswith(_OURS):
        cut = f"trial_{cut}"
    return cut if cut.casefold() not in taken else f"{cut}_{trial_id}"


def _called(setting: str, function: Callable[[Trial], Any], trial: Trial) -> str:
    try:
        name = function(trial)
    except Exception as error:
        raise ConfigError(
            f"{setting} raised {type(error).__name__} for trial {trial.trial_id}: {message_of(error)}"
        ) from error
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{setting} returned {name!r} for trial {trial.trial_id}: return a text")
    return " ".join(name.split()) or trial.trial_id
