"""Command line of a trial: the words of the file's `command` with a configuration's values."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from trainkit.errors import ConfigError

_PLACE = re.compile(r"\{(\{[\w./-]+\})\}|(?<!\$)\{([\w./-]+)\}")
"""Matches `{{text}}`, which is written as `{text}`, and `{name}`, the place of a value."""

_ALL = ("${args}", "${args_no_hyphens}")
"""Words that stand for all parameters, as in W&B's sweep files."""

_TOKEN = re.compile(
    rf"(?<![^\s;|&()])#[^\n]*|\\.|['\"]|\$?\(|\)|\$\{{args(?:_no_hyphens)?\}}|{_PLACE.pattern}", re.DOTALL
)
"""Matches what changes bash's quoting, and what is replaced: comments, escapes, quotes, brackets, places."""

_NO_QUOTING = re.compile(r"<<|`|\$'")
"""Matches the parts of bash's grammar in which quotes have another meaning."""

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
    if shell and not isinstance(command, str):
        raise ConfigError("shell: true needs `command` as text: a list of words runs without a shell")
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
    unused = ("${env}", "/usr/bin/env")
    return [_program(str(word), program, shell) for word in command if word not in unused]


def _program(word: str, program: object, shell: bool) -> str:
    if "${program}" in word and not isinstance(program, str):
        raise ConfigError("`program` is missing, but `command` uses ${program}")
    for place, value in (("${interpreter}", sys.executable), ("${program}", str(program))):
        word = word.replace(place, shlex.quote(value) if shell else value)
    return word


def check_words(words: Sequence[str], names: Sequence[str], *, shell: bool = False) -> None:
    """Raise an error if a word names a value that is no parameter, or a parameter is used nowhere.

    Args:
        words: words of the command.
        names: names of the parameters.
        shell: True: a shell splits the words.

    Raises:
        ConfigError: as described.
    """
    places = [name for word in words for name in _names(word)]
    for place in places:
        if place not in names and place not in OF_THE_TRIAL:
            known = ", ".join(names)
            raise ConfigError(
                f"command: {{{place}}} is not a parameter: the parameters are {known}; write {{{{{place}}}}} "
                f"for the text {{{place}}}"
            )
    if not shell and (inner := [word for word in words if word not in _ALL and any(a in word for a in _ALL)]):
        raise ConfigError(f"command: ${{args}} is not a word of its own in {inner[0]!r}: use shell: true")
    if not any(every in word for every in _ALL for word in words):
        unused = [name for name in names if name not in places]
        if unused:
            raise ConfigError(
                f"command: the parameter {unused[0]!r} has no effect: write {{{unused[0]}}} where its value "
                "belongs, or ${args} for all parameters"
            )


def shell_text(text: str, config: Mapping[str, Any], own: Mapping[str, str]) -> str:
    """Return a command for bash, in which no value is more than a part of a word, within quotes too.

    A value that needs quotes is a variable, set in a line before the text: bash never runs a variable's value
    as a command, not even where this function mistakes the quotes around its place. A parameter without a
    value is left out, as by `filled_words`.

    Raises:
        ConfigError: a value needs quotes, but the command has a here-document, backquotes or `$'...'`.
    """
    values = {**config, **own}
    for name in [name for name in _names(text) if name not in values]:
        text = _without(text, name)
    variables: list[str] = []
    result, quotes, end = [], [""], 0  # the open quote in each of the nested parentheses

    def of(value: str) -> str:
        if shlex.quote(value) == value:
            return value
        if _NO_QUOTING.search(text):
            raise ConfigError(
                f"command: {shlex.quote(value)} can't be quoted beside <<, ` or $': call a script"
            )
        variables.append(f"trainkit_{len(variables) + 1}={shlex.quote(value)}\n")
        variable = f"${{trainkit_{len(variables)}}}"
        return variable if inside == '"' else f'{inside}"{variable}"{inside}'

    while found := _TOKEN.search(text, end):
        token, start = found.group(), found.start()
        result.append(text[end:start])
        end = found.end()
        inside = quotes[-1]
        if found[2] or token in _ALL:
            name = found[2]
            words = [text_of(values[name])] if name else filled_words([token], config, own)
            token = " ".join(map(of, words)) if not inside else of(words[0] if name else shlex.join(words))
        elif found[1]:
            token = found[1]
        elif (inside == "'" and token != "'") or (inside and token[0] == "#"):
            token, end = token[0], start + 1
        elif token == inside:
            quotes[-1] = ""
        elif token in ("'", '"') and not inside:
            quotes[-1] = token
        elif token == "$(" or (token == "(" and not inside):
            quotes.append("")
        elif token == ")" and not inside and len(quotes) > 1:
            quotes.pop()
        result.append(token)
    return "".join([*variables, *result, text[end:]])


def _without(text: str, name: str) -> str:
    """Return a command for bash without the word that contains a place, and without the option before it."""
    plain, place = r"[^\s;|&()<>\"'`]*", rf"\{{{re.escape(name)}\}}"
    option = r"(?:(?<![^\s;|&()\"'`])-[^\s;|&()<>\"'`=]+\s+(?=[\"']?\{))?"
    return re.sub(rf"{option}{plain}(?:\"{place}\"|'{place}'|{place}){plain}", "", text)


def _names(text: str) -> list[str]:
    return [found[2] for found in _PLACE.finditer(text) if found[2]]


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
        if any(name not in values for name in _names(word)):
            if word.startswith("{") and result and _is_option(result[-1]):
                result.pop()
            continue
        result.append(_PLACE.sub(lambda found: found[1] or text_of(values[found[2]]), word))
    return result


def text_of(value: object) -> str:
    """Return a value as a word of a command line: texts and numbers unchanged, other values as JSON."""
    if isinstance(value, str | date):  # YAML reads 2026-01-01 as a date
        return str(value)
    if isinstance(value, float):
        return repr(float(value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word
