"""Python's own tests of its pools, and joblib's of its backends, run on ours as installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPYTHON = "tests.plugins.pools.cpython_on_trainkit"


def output_of(arguments: Sequence[str | os.PathLike[str]], folder: Path) -> str:
    """Return what Python prints."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("original", "pattern", "least"),
    [("_test_multiprocessing", "TestPool*", 25), ("test_concurrent_futures", "[!T]*", 35)],
)
def test_pythons_tests_of_its_pools(original: str, pattern: str, least: int, tmp_path: Path) -> None:
    printed = output_of(
        ["-W", "ignore", "-m", "unittest", "-v", "-k", f"{CPYTHON}.{pattern}", CPYTHON], tmp_path
    )
    ran = re.search(r"^Ran (\d+) tests?", printed, re.MULTILINE)
    assert ran is not None, printed
    if ran[1] == "0":
        pytest.skip(f"this Python is installed without test.{original}: PYTHONPATH may have it")
    assert int(ran[1]) >= least, printed
    assert re.search(r"^OK", printed, re.MULTILINE), printed


@pytest.mark.slow
@pytest.mark.timeout(1000)  # hundreds of tests, many of which start processes
def test_joblibs_tests_of_its_backends(tmp_path: Path) -> None:
    pytest.importorskip("joblib.test")
    (tmp_path / "pytest.ini").touch()  # not the project's settings
    plugins = (
        "-c",
        "pytest.ini",
        "-p",
        "tests.plugins.pools.joblib_on_trainkit",
        "-p",
        "no:xdist",
        "-p",
        "no:cacheprovider",
    )
    tests = ("joblib.test.test_parallel", "joblib.test.test_config")
    printed = output_of(["-m", "pytest", "-q", "-W", "ignore", *plugins, "--pyargs", *tests], tmp_path)
    ran = re.search(r"^(\d+) passed(?!.*(failed|error)).* in ", printed, re.MULTILINE)
    assert ran is not None and int(ran[1]) >= 250, printed
