"""Files of copies that workers share: written once, again after a kill, emptied when nobody uses them."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.sklearn.copy_files import copy_files
from trainkit.sklearn import shared_memory
from trainkit.sklearn.shared_memory import FoldCopies, SharedCopies, fold_array, open_copies


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the driver decides by it."""
    monkeypatch.setattr(shared_memory, "LEAST_BYTES", 1)


class TestTheFile:
    """One copy, as workers take it: `X` of 64 rows, every second of them."""

    X = np.arange(512.0).reshape(64, 8)
    ROWS = np.arange(0, 64, 2)
    PART = (0, 0)

    @pytest.fixture
    def copies(self) -> Iterator[SharedCopies]:
        with open_copies([self.PART, (0, 1)]) as found:
            yield found
        assert not copy_files()

    def take(self, found: SharedCopies, part: tuple[int, int] = PART, read: Any = lambda: None) -> Any:
        return found.take(self.X, part, self.ROWS, read)

    @pytest.mark.external
    def test_of_a_writer_that_was_killed_is_written_again(
        self, copies: SharedCopies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainkit.sklearn.shared_memory.CHUNK_BYTES", 256)
        child = os.fork()
        if not child:
            self.take(copies, read=lambda: os.kill(os.getpid(), signal.SIGKILL))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        size = os.stat(f"/proc/self/fd/{copies.files[self.PART]}").st_size
        assert 0 < size < self.X[self.ROWS].nbytes, "it was killed in the middle"
        np.testing.assert_array_equal(self.take(copies), self.X[self.ROWS])

    def test_is_emptied_for_another_when_nobody_uses_it(self, copies: SharedCopies) -> None:
        first = self.take(copies)
        kept = first[3:4]
        del first
        self.take(copies, (0, 1))
        assert os.fstat(copies.files[self.PART]).st_size > 0, "an array of it is still there"
        np.testing.assert_array_equal(kept, self.X[6:7])
        del kept
        os.ftruncate(copies.files[0, 1], 0)
        self.take(copies, (0, 1))
        assert os.fstat(copies.files[self.PART]).st_size == 0
        np.testing.assert_array_equal(self.take(copies), self.X[self.ROWS])

    def test_two_that_find_it_empty_at_once_need_not_wait_for_each_others_use(
        self, copies: SharedCopies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each keeps its array, as an estimator may."""
        both_looked, looked = threading.Barrier(2), threading.local()
        pieces: list[int] = []

        def is_full(fd: int, size: int) -> bool:
            full = os.fstat(fd).st_size > size
            if not hasattr(looked, "once"):
                looked.once = both_looked.wait(timeout=60)
            return full

        monkeypatch.setattr("trainkit.sklearn.shared_memory._is_full", is_full)
        taken: list[Any] = []

        def take() -> None:
            taken.append(self.take(copies, read=lambda: pieces.append(1)))

        threads = [threading.Thread(target=take, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(taken) == 2, "one waits for the other's array to go"
        assert len(pieces) == 1, "it was written once"
        for each in taken:
            np.testing.assert_array_equal(each, self.X[self.ROWS])

    def test_is_emptied_where_there_is_no_room_for_all_of_it(
        self, copies: SharedCopies, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainkit.sklearn.shared_memory.CHUNK_BYTES", 256)
        ours = signal.getsignal(signal.SIGXFSZ)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
        try:
            with pytest.raises(
                MemoryError, match=r"a copy of 32 samples failed after 1024 bytes: .*too large"
            ):
                self.take(copies)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ours)
        assert os.fstat(copies.files[self.PART]).st_size == 0
        np.testing.assert_array_equal(self.take(copies), self.X[self.ROWS])

    @pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"token": "another's"}])
    def test_of_another_machine_is_none(self, copies: SharedCopies, change: dict[str, Any]) -> None:
        elsewhere = SharedCopies(**vars(copies) | change)
        assert self.take(elsewhere) is None
        with fold_array(
            self.X, self.ROWS, self.ROWS, shared=FoldCopies(elsewhere, 0, (self.ROWS, self.ROWS))
        ) as X:
            np.testing.assert_array_equal(X[self.ROWS], self.X[self.ROWS])
