"""Every name of the list can be imported: those of earlier releases, and those that Ray's scripts import."""

from __future__ import annotations

from tests.conftest import run_python
from tests.public_names import LIST, ROOT, listed


def test_the_list_is_whole():
    names = listed()
    assert len(names) == 588
    assert {"trainkit", "trainkit.util", "trainkit.tune.suggest.optuna", "trainkit.tune.run_front"} <= set(
        names
    )
    head = LIST.read_text().partition("\n")[0]
    assert head == f"# {sum(map(len, names.values()))} names in 588 modules; checked by tests/public_names.py"


def test_every_path_and_every_name_of_the_list_can_be_imported():
    # In a process of its own, in which nothing was imported by another path before.
    assert run_python("-m", "tests.public_names", cwd=ROOT).stderr == ""
