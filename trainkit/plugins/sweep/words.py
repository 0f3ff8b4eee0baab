"""Command line of a trial: the words of the file's `command` with a configuration's values."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from trainkit.errors import ConfigError

_PLACE = re.compile(r"(?<!\$)\{([\w./-]+)\}")
_ALL = ("${args}", "${args_no_hyphens}")
"""Words that stand for all parameters, as in W&B's sweep files."""

OF_THE_TRIAL = ("trial_dir", "trial_id")
"""Places for a trial's own folder and id, beside those for parameters."""


def words_of(command: object, program: object, *, shell: bool = False) -> list[str]:
    """Return the words of a command, before values are filled in.

    Args:
        command: text, split as a shell does it; or a list of words; or None for W&B's default.
        program: the script of the section `program`, or None.
        shell: True: a text is a single word, which a shell splits.

    Raises:
        ConfigError: both are missing, or the text has an open quote.
    """
    if command is None:
        if not isinstance(program, str):
            raise ConfigError("`command` is missing: give the program's command line, with {name} for values")
        command = ["${interpreter}", "${program}", "${args}"]
    if isinstance(command, str):
        try:
            command = [command] if shell else shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"command: {error}: {command}") from None
    if not isinstance(command, list) or not command:
        raise ConfigError(f"command: {command!r} is neither text nor a list of words")
    return [_program(str(word), program) for word in command if word not in ("${env}", "/usr/bin/env")]


def _program(word: str, program: object) -> str:
    if word == "${interpreter}":
        return sys.executable
    if word == "${program}":
        if not isinstance(program, str):
            raise ConfigError("`program` is missing, but `command` uses ${program}")
        return program
    return word


def check_words(words: Sequence[str], names: Sequence[str]) -> None:
    """Raise an error if a word names a value that is no parameter, or a parameter is used nowhere.

    Raises:
        ConfigError: as described.
    """
    places = [place for word in words for place in _PLACE.findall(word)]
    for place in places:
        if place not in names and place not in OF_THE_TRIAL:
            known = ", ".join(names)
            raise ConfigError(f"command: {{{place}}} is not a parameter: the parameters are {known}")
    if not any(every in word for every in _ALL for word in words):
        unused = [name for name in names if name not in places]
        if unused:
            raise ConfigError(
                f"command: the parameter {unused[0]!r} has no effect: write {{{unused[0]}}} where its value "
                "belongs, or ${args} for all parameters"
            )


def shell_text(text: str, config: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """Return a command for a shell, with quoted values; a parameter without a value is left out."""
    for every in _ALL:
        text = text.replace(every, shlex.join(filled_words([every], config, own)))
    values = {**config, **own}
    return _PLACE.sub(lambda place: shlex.quote(text_of(values.get(place.group(1), ""))), text)


def filled_words(words: Sequence[str], config: Mapping[str, Any], own: Mapping[str, str]) -> list[str]:
    """Return the words with a configuration's values.

    A word with the value of a parameter that the configuration lacks, because its condition does not hold, is
    left out. If the word before it is an option without a value, such as `--momentum`, this word is left out
    too.

    Args:
        words: words of the command.
        config: values of the parameters.
        own: values of `OF_THE_TRIAL`.
    """
    values = {**config, **own}
    result: list[str] = []
    for word in words:
        if word in _ALL:
            dashes = "--" if word == "${args}" else ""
            result += [f"{dashes}{name}={text_of(value)}" for name, value in config.items()]
            continue
        places = _PLACE.findall(word)
        if any(place not in values for place in places):
            if word.startswith("{") and result and _is_option(result[-1]):
                result.pop()
            continue
        result.append(_PLACE.sub(lambda place: text_of(values[place.group(1)]), word))
    return result


def text_of(value: object) -> str:
    """Return a value as a word of a command line: numbers and texts plainly, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value)


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word
