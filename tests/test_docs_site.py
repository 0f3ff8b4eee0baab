"""The documentation as a site: it builds without a warning, has every public name, and needs no network."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import run_python
from tests.pages import ROOT

ELSEWHERE = re.compile(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
PACKAGES = [
    "",
    "pools",
    "train",
    "train.torch",
    "tune",
    "tune.schedulers",
    "tune.search",
    "tune.callbacks",
    "sklearn",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run_python("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder, cwd=ROOT)
    return folder


def test_the_reference_has_every_public_name(site: Path) -> None:
    for name in PACKAGES:
        package = importlib.import_module(f"trainkit.{name}".rstrip("."))
        text = (site / "reference" / f"{package.__name__}.html").read_text()
        values = {each: getattr(package, each) for each in package.__all__}
        public = [each for each, value in values.items() if not isinstance(value, ModuleType | str)]
        missing = [each for each in public if not re.search(rf">\s*{each}\b", text)]
        assert not missing, f"{package.__name__}: {missing}"


def test_every_error_is_in_the_reference(site: Path) -> None:
    errors = importlib.import_module("trainkit.errors")
    text = (site / "reference" / "trainkit.errors.html").read_text()
    own = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert own and not {name for name in own if f'id="trainkit.errors.{name}"' not in text}


def test_pages_are_read_without_a_network(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    found = {
        str(page.relative_to(site)): hits for page in pages if (hits := ELSEWHERE.findall(page.read_text()))
    }
    assert not {
        page: hits for page, hits in found.items() if any('rel="canonical"' not in hit for hit in hits)
    }


def test_the_search_is_a_script_that_a_page_on_the_disk_may_load(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    assert "PopulationBasedTraining" in index


def test_recipes_are_pages_and_links_lead_there(site: Path) -> None:
    assert 'href="recipes/mnist.html"' in (site / "index.html").read_text()
    assert "TorchTrainer" in (site / "recipes" / "mnist.html").read_text()
