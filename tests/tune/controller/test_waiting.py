"""The lines in which trials wait: always in the order suggested, however they come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainkit.tune.controller.state import WaitingTrials
from trainkit.tune.core.trial import Trial, TrialStatus

moves = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60)


def trials(alone=()):
    return [Trial(f"t{index}", index, {}, "", "", alone=index in alone) for index in range(10)]


@given(moves, st.sets(st.integers(0, 9)), st.sampled_from([TrialStatus.PENDING, TrialStatus.PAUSED]))
def test_they_wait_in_the_order_suggested(moves, alone, status):
    everyone = trials(alone)
    for trial in everyone:
        trial.status = TrialStatus.RUNNING
    line, waiting = WaitingTrials(everyone, status), set()
    apart = alone if status is TrialStatus.PENDING else set()
    for index, comes in moves:
        if comes and index not in waiting:
            line.add(everyone[index])
            waiting.add(index)
        elif not comes:
            assert line.remove(everyone[index]) == (index in waiting)
            waiting.discard(index)
        shared = [f"t{index}" for index in sorted(waiting - apart)]
        assert (list(line.sharing), len(line.sharing), line.sharing[:2]) == (shared, len(shared), shared[:2])
        assert [each in line.sharing for each in ("t0", "t1", "")] == [
            each in shared for each in ("t0", "t1", "")
        ]
        assert [line.sharing[0], line.sharing[-1]] == [shared[0], shared[-1]] if shared else True
        assert line.first_alone == (everyone[min(waiting & apart)] if waiting & apart else None)
        assert [trial.index for trial in line] == sorted(waiting)
        assert len(line) == len(waiting)
