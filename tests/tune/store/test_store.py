"""The experiment's file: what it keeps, who may write it, and how damage is met."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import sqlite3
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainkit.errors import ConfigError, StoreError
from trainkit.tune.controller import events as ev
from trainkit.tune.core.configs import CheckpointConfig
from trainkit.tune.core.trial import Failure, SavedCheckpoint, Trial, TrialStatus
from trainkit.tune.schedulers.base import Decision, Verdict
from trainkit.tune.store.ownership import Ownership
from trainkit.tune.store.reader import ExperimentReader, LogEntry
from trainkit.tune.store.schema import FILENAME
from trainkit.tune.store.writer import ExperimentStore


@pytest.fixture
def store(tmp_path):
    store = ExperimentStore.create(tmp_path / "e", {"seed": 3, "name": "e"})
    yield store
    store.close()


def new_trial(index: int = 0) -> Trial:
    return Trial(f"t_{index:05d}", index, {"x": index}, f"f_t_{index:05d}", f"f_t_{index:05d}")


def begun(trial: Trial, attempt: int = 0, iteration: int = 0) -> list[ev.Record]:
    added: list[ev.Record] = [ev.TrialAdded(trial)] if attempt == 0 else []
    return [*added, ev.AttemptStarted(trial, attempt, 1.0, 42, "here", "127.0.0.1", iteration)]


def result(trial: Trial, iteration: int, attempt: int = 0, **metrics) -> ev.ResultAdded:
    return ev.ResultAdded(trial, attempt, iteration, 1.0, {"training_iteration": iteration, **metrics}, {})


def test_everything_comes_back(store):
    trial = new_trial()
    store.commit(
        [
            *begun(trial),
            result(trial, 1, loss=math.nan, nested={"a": [1, math.inf]}),
            ev.DecisionMade(trial, 0, 1, Decision(Verdict.STOP, {"rule": "rung", "cutoff": -math.inf})),
            ev.CheckpointAdded(trial, 0, SavedCheckpoint(0, "checkpoint_000000", 1, 0.5)),
            ev.StatusChanged(
                trial, 2.0, TrialStatus.ERROR, "why", 0, 1, Failure("ValueError", "no", "trace")
            ),
        ]
    )
    with ExperimentReader(store.folder) as reader:
        assert reader.facts() == {"seed": 3, "name": "e"}
        (back,) = reader.trials()
        assert (back.trial_id, back.config, back.status, back.failures) == ("t_00000", {"x": 0}, "ERROR", 1)
        assert back.failure == Failure("ValueError", "no", "trace")
        assert back.checkpoints == [SavedCheckpoint(0, "checkpoint_000000", 1, 0.5)]
        assert math.isnan(back.last_result["loss"])
        assert back.last_result["nested"] == {"a": [1, math.inf]}
        assert (back.last_result["pid"], back.last_result["hostname"]) == (42, "here")
        assert reader.decisions("t_00000") == [
            {"trial_id": "t_00000", "attempt": 0, "iteration": 1, "verdict": "STOP", "rule": "rung"}
            | {"cutoff": -math.inf}
        ]
        assert [entry.kind for entry in reader.log()] == ["trial", "result", "ERROR"]
        assert list(reader.log())[2] == LogEntry("ERROR", "t_00000", True)


def test_the_reports_of_an_attempt_take_the_place_of_all_from_there_on(store):
    trial = new_trial()
    store.commit([*begun(trial), *(result(trial, n, a=n) for n in (1, 2, 3))])
    store.commit(begun(trial, 1, iteration=1))
    with ExperimentReader(store.folder) as reader:
        assert [row["a"] for row in reader.history("t_00000")] == [1, 2, 3]
        assert len(reader.past()["t_00000"]) == 3
    store.commit([result(trial, 2, attempt=1, a=20)])
    with ExperimentReader(store.folder) as reader:
        assert [row["a"] for row in reader.history("t_00000")] == [1, 20]
        assert len(reader.past()["t_00000"]) == 2
        assert list(reader.histories()) == [("t_00000", reader.history("t_00000"))]
        assert reader.trials()[0].last_result["a"] == 20
        assert reader.trials()[0].attempt == 1
        assert len([entry for entry in reader.log() if entry.kind == "result"]) == 4


def test_a_checkpoint_without_a_report_counts_the_time_of_the_last_one(store):
    trial = new_trial()
    store.commit([*begun(trial), *(result(trial, n, time_total_s=float(n)) for n in (1, 2))])
    store.commit([ev.CheckpointAdded(trial, 0, SavedCheckpoint(0, "checkpoint_000000", 9, None))])
    with ExperimentReader(store.folder) as reader:
        (back,) = reader.trials()
    assert back.checkpoints == [SavedCheckpoint(0, "checkpoint_000000", 9, None, time_total_s=2.0)]


def test_the_log_takes_the_last_results_of_trials_that_were_read_before(store):
    first, second = new_trial(0), new_trial(1)
    store.commit([*begun(first), *(result(first, n, a=n) for n in (1, 2, 3))])
    store.commit([*begun(first, 1, iteration=1), result(first, 2, attempt=1, a=20), *begun(second)])
    with ExperimentReader(store.folder) as reader:
        trials = reader.trials()
        log = list(reader.log(trials))
        assert log == list(reader.log())
        assert [entry.data["a"] for entry in log if entry.kind == "result"] == [1, 2, 3, 20]
        assert log[-2].data is trials[0].last_result


def test_a_file_of_an_earlier_version_gets_the_history_of_this_one(tmp_path):
    trial = new_trial()
    with contextlib.closing(ExperimentStore.create(tmp_path / "e", {})) as store:
        store.commit([*begun(trial), *(result(trial, n, a=n) for n in (1, 2, 3))])
        store.commit([*begun(trial, 1), result(trial, 1, attempt=1, a=10)])
    earlier = "SELECT trial_id, max(attempt) AS attempt, iteration, seq, metrics FROM results GROUP BY 1, 3"
    with contextlib.closing(sqlite3.connect(store.folder / FILENAME)) as connection:
        connection.executescript(f"DROP VIEW history; CREATE VIEW history AS {earlier};")
        ExperimentStore.open(store.folder).close()
        assert connection.execute("SELECT metrics ->> 'a' FROM history").fetchall() == [(10,)]
        (version,) = connection.execute("PRAGMA schema_version").fetchone()
        ExperimentStore.open(store.folder).close()
        assert connection.execute("PRAGMA schema_version").fetchone() == (version,)


def test_a_history_four_times_as_long_takes_little_more_than_four_times_the_work(store):
    """Counted in steps of SQLite's machine, as times are noise."""
    work = {}
    for index, length in enumerate([500, 2000]):
        trial = new_trial(index)
        store.commit([*begun(trial), *(result(trial, at) for at in range(length))])
        with contextlib.closing(sqlite3.connect(store.folder / FILENAME)) as connection:
            steps = itertools.count()
            connection.set_progress_handler(lambda steps=steps: next(steps) < 0, 100)
            query = "SELECT metrics FROM history WHERE trial_id = ? ORDER BY iteration"
            assert len(connection.execute(query, [trial.trial_id]).fetchall()) == length
            work[length] = next(steps)
    assert work[2000] < 6 * work[500]


def test_a_batch_is_written_whole_or_not_at_all(store):
    trial = new_trial()
    store.commit(begun(trial))
    with pytest.raises(StoreError, match=r"Tuner\.restore"):
        store.commit([result(trial, 1), result(trial, 1)])  # the same key twice
    with ExperimentReader(store.folder) as reader:
        assert reader.history("t_00000") == []
    store.commit([result(trial, 1)])
    with ExperimentReader(store.folder) as reader:
        assert len(reader.history("t_00000")) == 1


def test_a_stop_counts_only_for_the_last_report(store):
    first, second = new_trial(0), new_trial(1)
    stop = Decision(Verdict.STOP, {"rule": "max_t"})
    store.commit([*begun(first), result(first, 1), ev.DecisionMade(first, 0, 1, stop)])
    store.commit([*begun(second), result(second, 1), ev.DecisionMade(second, 0, 1, stop)])
    store.commit([*begun(second, 1), result(second, 1, attempt=1)])
    with ExperimentReader(store.folder) as reader:
        assert reader.stops() == {"t_00000": {"rule": "max_t"}}


def test_an_existing_experiment_is_not_overwritten(store):
    with pytest.raises(
        ConfigError, match=r"already holds an experiment.*Tuner\.restore\(.*, trainable\)\.fit\(\), or"
    ):
        ExperimentStore.create(store.folder, {})


def test_other_users_cannot_open_and_so_not_lock_an_experiment(store, tmp_path):
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    ExperimentStore.create(shared, {"seed": 3}).close()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o755, "a folder of the user's stays as it is"


def test_a_second_writer_is_refused_by_pid(store):
    with pytest.raises(StoreError, match=f"pid {os.getpid()}"):
        ExperimentStore.open(store.folder)


def truncated(path):
    path.write_bytes(path.read_bytes()[:5000])


def garbled(path):
    data = bytearray(path.read_bytes())
    data[8192:12288] = os.urandom(4096)
    path.write_bytes(data)


def foreign(path):
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.close()


def newer(path):
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (truncated, "truncated"),
        (garbled, "damaged"),
        (foreign, "another program"),
        (newer, "layout 99"),
        (lambda path: path.write_bytes(b""), "not an experiment file"),
        (lambda path: path.write_text("hello" * 100), "not an experiment file"),
        (lambda path: path.unlink(), "has no experiment"),
    ],
)
def test_damage_is_an_error_that_says_what(tmp_path, damage, words):
    store = ExperimentStore.create(tmp_path / "e", {"a": 1})
    for index in range(200):
        trial = new_trial(index)
        store.commit([*begun(trial), result(trial, 1, text="x" * 100)])
    store.close()
    path = tmp_path / "e" / FILENAME
    assert not path.with_name(f"{FILENAME}-wal").exists()
    damage(path)
    with pytest.raises(StoreError, match=words):
        ExperimentStore.open(tmp_path / "e")


CELLS = [("trials", "config"), ("results", "metrics"), ("decisions", "reason"), ("attempts", "config")]


@given(cell=st.sampled_from(CELLS), bit=st.integers(0, 10_000))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_damaged_bit_leaves_the_rest_readable(tmp_path_factory, caplog, cell, bit):
    folder = tmp_path_factory.mktemp("damaged") / "e"
    store = ExperimentStore.create(folder, {"a": 1})
    for index in range(3):
        trial = new_trial(index)
        decision = Decision(Verdict.STOP, {"rule": "rung", "cutoff": 1.5})
        reports = [result(trial, 1, loss=1.5, text="é"), result(trial, 2, loss=0.5)]
        store.commit([*begun(trial), *reports, ev.DecisionMade(trial, 0, 2, decision)])
    store.close()

    def read():
        with ExperimentReader(folder) as reader:
            reader.facts(), reader.spans(), reader.stops(), reader.exchanges(), list(reader.log())
            trials = reader.trials()
            histories = dict(reader.histories())
            assert histories.get("t_00001", []) == reader.history("t_00001")
            for trial in trials:
                reader.decisions(trial.trial_id), reader.attempts(trial.trial_id)
                reader.checkpoint_results(trial.trial_id)
            return [(each.config, each.last_result, histories[each.trial_id]) for each in trials[::2]]

    whole = read()
    table, column = cell
    with contextlib.closing(sqlite3.connect(folder / FILENAME)) as connection, connection:
        where = "WHERE trial_id = 't_00001'"
        if table == "attempts":
            connection.execute(f"UPDATE attempts SET config = '{{\"x\":1}}' {where}")
        (text,) = connection.execute(f"SELECT CAST({column} AS BLOB) FROM {table} {where}").fetchone()
        data = bytearray(text)
        data[bit // 8 % len(data)] ^= 1 << bit % 8
        connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) {where}", (bytes(data),))
    caplog.clear()
    assert read() == whole
    for record in caplog.records:
        words = record.getMessage()
        assert (
            str(folder / FILENAME) in words and "trial t_00001" in words and "all other data is kept" in words
        )
    try:
        json.loads(data.decode(errors="replace"))
    except ValueError:
        assert caplog.records


def spoil(folder, sql, *values):
    with contextlib.closing(sqlite3.connect(folder / FILENAME)) as connection, connection:
        connection.execute(sql, values)


@pytest.mark.parametrize("table, column", [("trials", "status"), ("decisions", "verdict")])
def test_a_damaged_status_or_verdict_is_named_with_its_trial(tmp_path, table, column):
    store, trial = ExperimentStore.create(tmp_path / "e", {}), new_trial()
    store.commit([*begun(trial), result(trial, 1), ev.DecisionMade(trial, 0, 1, Decision(Verdict.STOP))])
    store.close()
    spoil(tmp_path / "e", f"UPDATE {table} SET {column} = {column} || '~'")
    with (
        ExperimentReader(tmp_path / "e") as reader,
        pytest.raises(StoreError, match=rf"{FILENAME} is damaged: .*~' of trial t_00000 is not a "),
    ):
        reader.trials(), reader.verdicts()


def test_a_checkpoint_keeps_its_score_when_its_report_is_damaged(tmp_path):
    store, trial = ExperimentStore.create(tmp_path / "e", {}), new_trial()
    best, last = (
        SavedCheckpoint(0, "checkpoint_000000", 1, 0.9),
        SavedCheckpoint(1, "checkpoint_000001", 2, 0.1),
    )
    store.commit(
        [
            *begun(trial),
            *(result(trial, 1, score=0.9), ev.CheckpointAdded(trial, 0, best)),
            *(result(trial, 2, score=0.1), ev.CheckpointAdded(trial, 0, last)),
        ]
    )
    store.close()
    spoil(tmp_path / "e", "UPDATE results SET metrics = '{' || metrics WHERE iteration = 1")
    policy = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="score", checkpoint_score_order="max")
    with ExperimentReader(tmp_path / "e") as reader:
        (read,) = reader.trials(policy)
    assert [each.score for each in read.checkpoints] == [0.9, 0.1]


def test_an_experiment_made_while_the_lock_was_awaited_is_not_overwritten(tmp_path, monkeypatch):
    folder = tmp_path / "e"

    class Late(Ownership):
        def __init__(self, path):
            monkeypatch.undo()
            ExperimentStore.create(path, {"seed": 1}).close()
            super().__init__(path)

    monkeypatch.setattr("trainkit.tune.store.writer.Ownership", Late)
    with pytest.raises(ConfigError, match="already holds an experiment"):
        ExperimentStore.create(folder, {"seed": 2})
    with ExperimentReader(folder) as reader:
        assert reader.facts() == {"seed": 1}


def test_a_fact_that_cannot_be_written_is_a_store_error(store):
    store.commit(begun(new_trial()))
    store._connection.execute("PRAGMA query_only=ON")
    with pytest.raises(StoreError, match="cannot be written"):
        store.set_fact("seed", 4)
