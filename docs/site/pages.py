"""Hook of MkDocs: pages that are made when the site is built, and links that leave the folder of the pages.

A reference page for each package that users import, from the list of its names in `__init__.pyi` and their
docstrings; a list of these; and a page with the code of each recipe, to which the links of other pages lead.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "trainkit": "Tasks, actors and objects",
    "trainkit.plugins.pools": "Pools",
    "trainkit.train": "Training with operators",
    "trainkit.train.torch": "Training with functions",
    "trainkit.tune": "Tuning",
    "trainkit.tune.schedulers": "Schedulers",
    "trainkit.tune.search": "Searchers",
    "trainkit.tune.callbacks": "Callbacks and loggers",
    "trainkit.sklearn": "Searches over estimators",
}
"""By package, the words on what is in it."""
ERRORS = "trainkit.errors"
RECIPE = re.compile(r"\]\((?:\.\./)+recipes/(\w+)\.py\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made."""
    everything = f"::: {ERRORS}\n    options:\n      show_root_heading: false\n      heading_level: 1\n"
    _add(files, config, f"reference/{ERRORS}.md", f"# {ERRORS}\n\n{everything}")
    rows = [
        f"- [{public(package)}]({public(package)}.md): {words.lower()}" for package, words in PACKAGES.items()
    ]
    _add(
        files,
        config,
        "reference/index.md",
        "\n".join(["# Reference", "", *rows, f"- [{ERRORS}]({ERRORS}.md)", ""]),
    )
    documented: set[str] = set()
    for package, words in PACKAGES.items():
        names = exported(package)
        own = [(name, home) for name, home in names if home not in documented and not home.startswith(ERRORS)]
        documented |= {home for _, home in own}
        parts = [f"# {public(package)}\n\n{words}."]
        if others := [f"[`{name}`][{home}]" for name, home in names if (name, home) not in own]:
            parts.append(f"Here too, and described elsewhere: {', '.join(others)}.")
        parts += [f"`{alias}` is another name of `{name}`." for alias, name in aliases(package)]
        parts += [f"::: {home}\n    options:\n      heading: {name}" for name, home in own]
        _add(files, config, f"reference/{public(package)}.md", "\n\n".join(parts) + "\n")
    for recipe in sorted((ROOT / "recipes").glob("[a-z]*.py")):
        text = f"# {recipe.name}\n\n```python\n{recipe.read_text()}```\n"
        _add(files, config, f"recipes/{recipe.stem}.md", text)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the text of a page with links to the recipes' pages in place of their files."""
    here = posixpath.dirname(page.file.src_uri)
    return RECIPE.sub(lambda link: f"]({posixpath.relpath(f'recipes/{link[1]}.md', here)})", markdown)


def public(package: str) -> str:
    """Return the path by which users import a package."""
    return package.replace(".plugins.", ".")


def exported(package: str) -> list[tuple[str, str]]:
    """Return (name, where it is defined) of what the package's stub gives from its modules, by name.

    A package within the package has a page of its own.
    """
    found = {
        alias.name: f"{node.module}.{alias.name}"
        for node in _stub(package)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    modules = {path.stem for path in ROOT.joinpath(*package.split(".")).iterdir()}
    return sorted((name, home) for name, home in found.items() if name not in modules)


def aliases(package: str) -> list[tuple[str, str]]:
    """Return (name, what it stands for) of the package's other names."""
    return [
        (target.id, node.value.id)
        for node in _stub(package)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def _stub(package: str) -> list[ast.stmt]:
    return ast.parse(ROOT.joinpath(*package.split("."), "__init__.pyi").read_text()).body


def _add(files: Files, config: Any, path: str, text: str) -> None:
    files.append(File.generated(config, path, content=text))
