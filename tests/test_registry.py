"""A test that other packages add things by entry points, and that a name of nothing is an error."""

import importlib
import re
import zipfile
from pathlib import Path

import pytest

from tests.conftest import run_python
from trainkit import registry as registries
from trainkit.cli import COMMANDS
from trainkit.errors import ConfigError
from trainkit.registry import Registry
from trainkit.runtime.session import ENGINES
from trainkit.train.strategies.base import STRATEGIES
from trainkit.tune.callbacks.base import CALLBACKS
from trainkit.tune.schedulers.registry import SCHEDULERS
from trainkit.tune.search.registry import SEARCHERS

ROWS = {"json": "json:JSONDecoder", "decoder": "json:JSONDecoder", "path": "pathlib:PurePath"}


def registry() -> Registry:
    return Registry("colour", ROWS)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with a module, and entry points of a group."""

    def installed(package: str, module: str, group: str, **entries: str) -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {target}" for name, target in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
        (tmp_path / f"{package}.py").write_text(module)
        importlib.invalidate_caches()

    monkeypatch.syspath_prepend(str(tmp_path))
    return installed


def test_ours_are_found_by_name_and_by_class():
    from json import JSONDecoder

    assert [registry().find(name) for name in ("json", "JSON", "decoder", "JSONDecoder")] == [JSONDecoder] * 4
    assert registry().own_names() == ["decoder", "json", "path"]
    assert registry().homes == {"JSONDecoder": "json", "PurePath": "pathlib"}


def test_another_package_adds_one(install):
    assert registry().find("teal") is None
    install("tealpackage", "class Teal: pass", "trainkit.colours", teal="tealpackage:Teal")
    found = registry().get("teal")
    assert (found.__module__, found.__name__) == ("tealpackage", "Teal")
    assert registry().find("Teal") is found
    assert registry().names() == ["decoder", "json", "path", "teal"]


def test_a_package_in_an_archive_adds_one(install, tmp_path, monkeypatch):
    install("greypackage", "class Grey: pass", "trainkit.colours", grey="greypackage:Grey")
    archive = tmp_path / "grey.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in [*tmp_path.glob("greypackage*/*"), *tmp_path.glob("greypackage.py")]:
            file.write(path, path.relative_to(tmp_path))
            path.unlink()
    monkeypatch.syspath_prepend(str(archive))
    assert registry().get("grey").__name__ == "Grey"


def test_packages_are_read_only_where_one_names_the_group(install, monkeypatch):
    read = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: read.append(group) or ())
    assert registry().find("grey") is None
    assert read == []
    install("greypackage2", "class Grey: pass", "trainkit.colours", grey="greypackage2:Grey")
    assert registry().find("grey") is None
    assert read == ["trainkit.colours"]
    assert registry().name_of(Registry) == "trainkit.registry.Registry"
    assert read == ["trainkit.colours"], "no package adds a class of ours"


def test_ours_come_first(install):
    install("otherpackage", "class Other: pass", "trainkit.colours", json="otherpackage:Other")
    assert registry().get("json").__module__ == "json.decoder"


def test_a_name_of_nothing_names_the_nearest(install):
    install("tealpackage2", "class Teal: pass", "trainkit.colours", teal="tealpackage2:Teal")
    with pytest.raises(ConfigError, match=r"colour='teel' is not one of .*, teal\. Did you mean 'teal'\?"):
        registry().get("teel")
    with pytest.raises(ConfigError, match=r"^paint='x' is not one of"):
        registry().get("x", "paint")


def test_what_cannot_be_loaded_names_its_package(install):
    install("brokenpackage", "import no_such_thing", "trainkit.colours", broken="brokenpackage:Broken")
    with pytest.raises(
        ConfigError,
        match=r"the colour 'broken' of the package brokenpackage, brokenpackage:Broken, can't be loaded: "
        r"ModuleNotFoundError: No module named 'no_such_thing'",
    ):
        registry().find("broken")


def plugin_rows() -> list[tuple[str, str, str]]:
    """Return (group, name, target) of each row of the plugins in trainkit."""
    plugins = Path(registries.__file__).parent / "plugins"
    groups = {
        group
        for file in plugins.glob("*/entry_points.txt")
        for group in re.findall(r"^\[(.+)\]", file.read_text(), re.M)
    }
    return [
        (group, name, entry.target)
        for group in sorted(groups)
        for name, entry in registries.added(group).items()
    ]


def test_plugins_connect_by_the_groups_that_the_page_lists():
    page = Path(__file__).parents[1] / "docs" / "extending" / "add-a-plugin.md"
    listed = set(re.findall(r"^\| `(trainkit\.\w+)`", page.read_text(), re.M))
    assert {group for group, _, _ in plugin_rows()} <= listed, "a row of another group is never read"


@pytest.mark.external
@pytest.mark.parametrize(("group", "name", "target"), plugin_rows())
def test_a_row_of_a_plugin_loads_and_replaces_nothing(group: str, name: str, target: str):
    module, _, attribute = target.partition(":")
    found = importlib.import_module(module)
    found = getattr(found, attribute) if attribute else found
    for kind in (CALLBACKS, COMMANDS, ENGINES, SCHEDULERS, SEARCHERS, STRATEGIES):
        if kind.group == group:
            assert kind.fits(found), f"{target} is not a {kind.kind}"
            assert kind.get(name) is found, f"trainkit has another {kind.kind} of the name {name!r}"


@pytest.mark.external
def test_metadata_is_read_only_for_names_of_others():
    program = """
import sys
from trainkit import tune
assert tune.create_scheduler("asha").label == "ASHA"
assert type(tune.create_searcher("random")).__name__ == "BasicVariantGenerator"
print("importlib.metadata" in sys.modules)
"""
    assert run_python("-c", program).stdout.split() == ["False"]
