"""Rules of plain English over the texts of the project: docs, docstrings, comments and messages.

A rule is a pattern and the words to take. Code in docs and names in backquotes are left out.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.contract.source import Breach, Module, Source

RULES = {
    "anew": (r"\banew\b", "again"),
    "told": (r"\b(is|are|was|were|be) told\b", "receives, reports, says"),
    "goes on with": (r"\bgo(es|ing)? on with\b", "resumes, continues"),
    "of before": (r"\bof before\b", "previous, earlier"),
    "comes to": (r"\b(comes?|came) to\b(?! the (front|terminal))", "results in, reaches"),
    "is none": (r"\b(is|are) none\b", "is missing, is not supported"),
    "lets go": (r"\blets? go of\b", "releases"),
    "in order": (r"\b(ends?|ended|ending|exits?|stops?|closes?|leaves?|shuts? down) in order\b", "cleanly"),
    "that of": (r"\b(that|those) of (?!the same)", "name the noun again"),
    "who": (
        r"\b[Ww]ho(ever)? (has|is|asks?|counts?|waits?|gives?|runs?|reads?|looks?|wants?)\b",
        "name the reader",
    ),
    "inversion": (r"\b(never|mostly|nowhere|only then) (is|are|does|do) (there|it|they)\b", "subject first"),
    "none of": (r"\b(no|none) (is|are) (that|of)\b", "name the noun"),
}


class Text(NamedTuple):
    """A sentence or more of the project's, with its place."""

    file: str
    line: int
    words: str


@functools.cache
def texts_of(module: Module) -> list[Text]:
    """Return the docstrings, comments and messages of a module."""
    return list(_texts_of(module))


def _texts_of(module: Module) -> Iterator[Text]:
    for node in module.described:
        yield Text(module.file, node.lineno, str(node.value))
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# type:"):
            yield Text(module.file, token.start[0], token.string)
    for node in module.nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = [each for each in ast.walk(node.exc) if isinstance(each, ast.Constant)]
            words = "".join(each.value for each in parts if isinstance(each.value, str))
            yield Text(module.file, node.lineno, words)


def texts_of_page(path: Path, root: Path) -> Iterator[Text]:
    """Yield the lines of a page that are no code."""
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield Text(str(path.relative_to(root)), number, line)


def breaches(source: Source, pages: Sequence[Path], rule: str) -> list[Breach]:
    """Return the places in a package and in pages that break a rule."""
    pattern, instead = RULES[rule]
    texts = [text for module in source for text in texts_of(module)]
    texts += [text for page in pages for text in texts_of_page(page, source.root)]
    return [
        Breach(text.file, text.line, f"says {match[0]!r}", f"take: {instead}")
        for text in texts
        for match in re.finditer(pattern, re.sub(r"`[^`]*`", "it", text.words))
    ]
