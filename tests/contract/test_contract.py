"""The contract of the house: layers, circles, boundaries, sizes and names, held by a machine.

Each rule is a function of `rules`; figures, tables and reasons are in `limits`. `test_breaches` shows that
each rule finds what it is for.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.contract import english, limits, rules
from tests.contract.source import Breach, Source

ROOT = Path(__file__).parents[2]
SHOWN = 40


@pytest.fixture(scope="module")
def source() -> Source:
    return Source(ROOT, "trainkit")


def hold(what: str, count: int, listing: str = "", limit: limits.Limit | None = None) -> None:
    """Fail if `count` is above its figure, or so far below that the figure has to follow."""
    limit = limit or limits.COUNTS[what]
    most = max(limit.today, limit.target)
    if count > most:
        pytest.fail(f"{what}: {count}, and {most} are the most\n{listing}", pytrace=False)
    if count < limit.today - limit.slack and limit.today > limit.target:
        pytest.fail(
            f"{what}: {count}, fewer than before: write {max(count, limit.target)} in place of {limit.today} "
            "in tests/contract/limits.py",
            pytrace=False,
        )


def hold_breaches(what: str, breaches: list[Breach]) -> None:
    shown = [str(breach) for breach in breaches[:SHOWN]]
    if len(breaches) > SHOWN:
        by_file = Counter(breach.file for breach in breaches).most_common(20)
        shown.append("most of them in " + ", ".join(f"{file} ({count})" for file, count in by_file))
    hold(what, len(breaches), "\n".join(shown))


def refuse(breaches: list[Breach]) -> None:
    assert not breaches, "\n".join(map(str, breaches))


# layers and circles


def test_imports_between_doors_go_down(source: Source) -> None:
    hold_breaches("imports between doors", rules.between_doors(source, limits.FLOORS))


@pytest.mark.parametrize("door", limits.LAYERS)
def test_imports_within_a_door_go_down(source: Source, door: str) -> None:
    found = rules.within_door(source, door, limits.LAYERS[door])
    hold_breaches(f"imports within {door.replace('.', '/')}", found)


def test_every_room_has_its_layer(source: Source) -> None:
    found = [
        breach
        for door, layers in limits.LAYERS.items()
        for breach in rules.rooms_without_layer(source, door, layers)
    ]
    hold_breaches("rooms without a layer", found)


def test_the_core_names_no_plugin(source: Source) -> None:
    hold_breaches("names of plugins in the core", rules.plugins_named(source))


def test_plugins_import_the_plugins_that_they_may(source: Source) -> None:
    hold_breaches("imports between plugins", rules.between_plugins(source, limits.ARROWS))


def test_no_files_import_one_another(source: Source) -> None:
    hold_breaches("circles of files", rules.circles(source))


def test_own_modules_are_imported_at_the_head(source: Source) -> None:
    refuse(rules.hidden_imports(source))


def test_train_meets_tune_in_one_file_and_one_room(source: Source) -> None:
    """In `train.torch` a trainer of functions is a trial, for a single run too.

    The front has Ray's names for trials as well: as a table of homes, whose modules load when asked for.
    """
    meeting = {
        found.module
        for found in source.own_imports
        if (source.below(found.module).split(".")[0], source.below(found.target).split(".")[0])
        == ("train", "tune")
        and not (found.module == "trainkit.train" and found.when == "types")
    }
    met = {module for module in meeting if not module.startswith("trainkit.train.torch.")}
    assert met <= {"trainkit.train.tune"}


# boundaries


def test_calls_reach_no_further_than_a_part(source: Source) -> None:
    assert len(limits.CHAINS) < 20
    hold_breaches("chains through a part", rules.chains(source, limits.CHAINS))


def test_reasons_stand_for_something() -> None:
    stale = [key for key in [*limits.CHAINS, *limits.SMALL_FILES] if not (ROOT / key.split()[0]).exists()]
    assert not stale, f"no longer there, so take them out of limits.py: {stale}"
    assert all([*limits.CHAINS.values(), *limits.SMALL_FILES.values()])


def test_constructors_take_few_parts(source: Source) -> None:
    found = rules.collaborators(source, limits.PARTS_OF_A_CONSTRUCTOR)
    hold_breaches("constructors of many parts", found)


# folders, files and names


def test_folders_hold_few_files(source: Source) -> None:
    hold_breaches("crowded folders", rules.crowded_folders(source, limits.FILES_IN_A_FOLDER))


def test_the_core_is_small(source: Source) -> None:
    core = [module for module in source if rules.plugin_of(source, module.name) is None]
    hold("lines of the core", sum(module.code_lines for module in core))


def test_every_plugin_has_a_budget(source: Source) -> None:
    found = {rules.plugin_of(source, module.name) for module in source} - {None}
    hint = "add a row to PLUGINS in tests/contract/limits.py, such as 'lab': Limit(30, 30, slack=60)"
    assert found == set(limits.PLUGINS), hint


@pytest.mark.parametrize("name", limits.PLUGINS)
def test_a_plugin_is_small(source: Source, name: str) -> None:
    files = [module for module in source if rules.plugin_of(source, module.name) == name]
    hold(f"lines of {name}", sum(module.code_lines for module in files), limit=limits.PLUGINS[name])


def test_files_hold_one_concept(source: Source) -> None:
    hold_breaches("long files", rules.long_files(source, limits.LINES_IN_A_FILE))


def test_small_files_have_a_reason(source: Source) -> None:
    found = rules.small_files(source, limits.LINES_OF_A_SMALL_FILE, limits.SMALL_FILES)
    hold_breaches("small files", found)


def test_a_file_is_one_part(source: Source) -> None:
    found = rules.halves(source, limits.LINES_OF_A_PART, limits.SEVERAL_PARTS)
    hold_breaches("files with two unconnected parts", found)


def test_other_programs_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for folder in ("tests", "recipes", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > limits.LINES_IN_A_FILE
    }
    assert not long, f"split these by concept: {long}"


def test_a_class_name_stands_for_one_class(source: Source) -> None:
    hold_breaches("classes of one name", rules.double_classes(source, limits.DOORS))


def test_other_names_live_in_compat(source: Source) -> None:
    hold_breaches("aliases outside compat", rules.aliases(source, "plugins.compat"))


def test_docstrings_say_it(source: Source) -> None:
    hold_breaches("docstrings that are riddles", rules.riddles(source))


@pytest.mark.parametrize("rule", english.RULES)
def test_texts_are_plain_english(source: Source, rule: str) -> None:
    pages = [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    breaches = english.breaches(source, pages, rule)
    hold(f"{rule!r}", len(breaches), "\n".join(map(str, breaches[:SHOWN])), limits.ENGLISH[rule])


# what a module may use


@pytest.mark.parametrize("room", sorted(limits.FLOORS[0]))
def test_the_ground_floor_needs_the_standard_library_only(source: Source, room: str) -> None:
    refuse(rules.foreign_imports(source, room, sys.stdlib_module_names))


def test_heavy_packages_are_imported_when_first_needed(source: Source) -> None:
    refuse(rules.heavy_imports(source, limits.HEAVY, limits.MAY_HEAD))


def test_tune_never_imports_torch(source: Source) -> None:
    refuse(rules.imports_of(source, "tune", "torch"))


def test_only_the_clock_reads_the_time(source: Source) -> None:
    refuse(rules.clock_readings(source, "trainkit.clock"))


def test_only_settings_names_our_environment_variables(source: Source) -> None:
    refuse(rules.settings_named(source, "trainkit.settings", r"TRAINKIT_[A-Z_]+"))


def test_no_assert_guards_anything(source: Source) -> None:
    refuse(rules.asserts(source))


def test_nothing_is_left_for_later_in_the_code() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|/(home|root|Users)/")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for folder in ("trainkit", "recipes", "benchmarks", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".md"}
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if marks.search(line)
    ]
    assert not wrong, "\n".join(wrong)
