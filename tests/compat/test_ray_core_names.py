"""Names of Ray core that programs take from Ray's own rooms: progress in lines, a text about objects."""

from __future__ import annotations

import numpy as np
import pytest

import trainkit
from trainkit._private.internal_api import free, memory_summary
from trainkit._raylet import ObjectRefGenerator
from trainkit.errors import ArgumentTypeError
from trainkit.experimental.tqdm_ray import safe_print, tqdm


def test_progress_is_shown_in_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tqdm(range(3), desc="steps", flush_interval_s=0)) == [0, 1, 2]
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" in ")[0] for line in lines] == [
        "steps: 1/3 (33%)",
        "steps: 2/3 (67%)",
        "steps: 3/3 (100%)",
    ]
    assert list(tqdm(np.arange(3), flush_interval_s=3600)) == [0, 1, 2], "an array has no truth value"
    assert list(tqdm(flush_interval_s=3600)) == []
    capsys.readouterr()
    with tqdm(total=None, unit="file", flush_interval_s=3600) as bar:
        bar.set_description("files")
        bar.update(2)
    safe_print("a", "b", sep="-")
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("files: 2 in ") and second == "a-b"


def test_large_objects_are_told_of_and_let_go_of() -> None:
    trainkit.shutdown()
    with trainkit.init(num_cpus=1):
        kept = trainkit.put(np.ones(1_000_000))
        text = memory_summary(units="MB")
        assert text.startswith("1 large objects, 80") and "size_bytes" in text
        free(kept)
        assert memory_summary() == "0 large objects, 0 bytes"
        with pytest.raises(ArgumentTypeError, match="takes references"):
            free(["no"])  # type: ignore[list-item]


def test_generators_are_known_by_rays_own_path() -> None:
    assert ObjectRefGenerator is trainkit.ObjectRefGenerator
