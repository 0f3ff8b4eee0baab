"""TensorBoard's files, read with tensorboardX's messages and the record format, checksums looked at."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboardX.crc32c import _crc32c as crc_of_tensorboardx
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from trainkit import tune
from trainkit.plugins.integrations.tensorboard import OWN_SUFFIX
from trainkit.tune.callbacks import tensorboard

pytestmark = pytest.mark.usefixtures("inline")


@pytest.fixture(autouse=True)
def nothing_is_complained_of(caplog):
    yield
    assert "the experiment continues" not in caplog.text


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def records_in(data: bytes) -> list[bytes]:
    """The contents of the records, every checksum of which is right."""
    found, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        (head_crc,) = struct.unpack_from("<I", data, at + 8)
        content = data[at + 12 : at + 12 + length]
        (crc,) = struct.unpack_from("<I", data, at + 12 + length)
        assert head_crc == masked(crc_of_tensorboardx(data[at : at + 8]))
        assert crc == masked(crc_of_tensorboardx(content))
        found.append(content)
        at += 16 + length
    assert at == len(data)
    return found


def events_of(folder: str | Path) -> list[Event]:
    paths = sorted(Path(folder).glob("*tfevents*"))
    return [Event.FromString(content) for path in paths for content in records_in(path.read_bytes())]


def scalars_in(events: list[Event]) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of them: a restart takes back the steps from its own on."""
    points: dict[str, list[tuple[int, float]]] = {}
    for event in events:
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            points = {tag: [each for each in of if each[0] < event.step] for tag, of in points.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                points.setdefault(value.tag, []).append((event.step, value.simple_value))
    return points


def hyperparameters_in(events: list[Event]) -> dict[str, HParamsPluginData]:
    return {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for event in events
        for value in event.summary.value
        if value.metadata.plugin_data.plugin_name == "hparams"
    }


def trainable(config):
    for step in range(1, 4):
        tune.report(
            {
                "loss": [1.5, math.nan, math.inf][step - 1],
                "eval": {"acc": step / 4},
                "huge": 1e300,
                "text": "a",
                "flag": True,
                "list": [1, 2],
            }
        )


def test_numbers_become_scalars(fit):
    (result,) = fit(trainable, {"lr": 0.1})
    events = events_of(result.path)
    assert events[0].file_version == "brain.Event:2"
    points = scalars_in(events)
    assert set(points) == {"loss", "eval/acc", "huge", "time_this_iter_s", "time_total_s"}
    assert points["eval/acc"] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert points["loss"][0] == (1, 1.5)
    assert math.isnan(points["loss"][1][1])
    assert points["loss"][2] == (3, math.inf)
    assert points["huge"][0] == (1, math.inf)  # as single precision has it
    times = [event.wall_time for event in events if scalars_in([event])]
    assert times == list(result.metrics_dataframe["timestamp"])


def test_time_steps_count_where_they_are_reported(fit):
    def counts(config):
        for _ in range(2):
            tune.report({"loss": 1.0, "timesteps_this_iter": 10})

    assert scalars_in(events_of(fit(counts)[0].path))["loss"] == [(10, 1.0), (20, 1.0)]


def test_hyperparameters_are_written_at_the_end(fit):
    def ends_badly(config):
        tune.report({"loss": 2.0})
        if config["fails"]:
            raise ValueError

    space = {
        "fails": tune.grid_search([False, True]),
        "opt": {"lr": 0.5, "name": "adam"},
        "cls": tune.choice([dict]),
        "nothing": None,
    }
    good, bad = fit(ends_badly, space)
    found = hyperparameters_in(events_of(good.path))
    experiment = found["_hparams_/experiment"].experiment
    assert [info.name for info in experiment.hparam_infos] == ["fails", "opt/lr", "opt/name", "cls"]
    assert [info.name.tag for info in experiment.metric_infos] == ["loss"]
    given = found["_hparams_/session_start_info"].session_start_info.hparams
    assert given["fails"].bool_value is False
    assert given["opt/lr"].number_value == 0.5
    assert given["opt/name"].string_value == "adam"
    assert given["cls"].string_value == "dict"
    status = {
        result.path: hyperparameters_in(events_of(result.path))["_hparams_/session_end_info"]
        for result in (good, bad)
    }
    assert status[good.path].session_end_info.status == 1
    assert status[bad.path].session_end_info.status == 2


def test_a_trial_that_goes_on_has_no_step_twice(fit, tmp_path):  # row 1.30
    """Killed twice: once it goes on from its checkpoint in the same run, once by a restore."""

    def fails(config):
        checkpoint = tune.get_checkpoint()
        first = checkpoint.get_metadata()["step"] + 1 if checkpoint else 1
        for step in range(first, 6):
            saved = None
            if step == 2:
                folder = Path(tune.get_context().get_trial_dir(), "scratch")
                folder.mkdir(exist_ok=True)
                saved = tune.Checkpoint(folder)
                saved.set_metadata({"step": 2})
            tune.report({"loss": float(step)}, checkpoint=saved)
            if step == 3 and not Path(tmp_path, "once").exists():
                Path(tmp_path, "once").touch()
                raise ValueError
            if step == 4 and not Path(tmp_path, "twice").exists():
                Path(tmp_path, "twice").touch()
                raise ValueError

    run = {"failure_config": tune.FailureConfig(max_failures=1)}
    (result,) = fit(fails, {"lr": 0.1}, run=run)
    assert result.error is not None
    first = events_of(result.path)
    assert hyperparameters_in(first)["_hparams_/session_end_info"].session_end_info.status == 2
    tuner = tune.Tuner.restore(
        str(tmp_path / "e"), fails, resume_errored=True, run_config=tune.RunConfig(verbose=0)
    )
    (result,) = tuner.fit()
    assert len(list(Path(result.path).glob(f"*{OWN_SUFFIX}"))) == 1
    events = events_of(result.path)
    expected = [(step, float(step)) for step in range(1, 6)]
    assert scalars_in(events)["loss"] == expected
    # One that has read the files before, and goes on reading, ends with the same.
    assert scalars_in([*first, *events])["loss"] == expected
    assert hyperparameters_in(events)["_hparams_/session_end_info"].session_end_info.status == 1


def test_what_a_kill_cut_off_is_written_again(fit, restore):  # row 1.30
    (result,) = fit(trainable, {"lr": 0.1})
    (path,) = Path(result.path).glob("*tfevents*")
    whole = path.read_bytes()
    others = Path(result.path, "events.out.tfevents.0.users.own")
    others.write_bytes(b"")
    for kept in (len(whole) - 5, len(whole) // 2, 0):
        path.write_bytes(whole[:kept])
        restore(trainable)
        (path,) = (each for each in Path(result.path).glob("*tfevents*") if each != others)
        events = events_of(result.path)
        assert [step for step, _ in scalars_in(events)["eval/acc"]] == [1, 2, 3]
        assert len(hyperparameters_in(events)) == 3
    assert others.exists()


# --- the format -----------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, width=32)


@given(
    st.floats(0, 4e9),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.tuples(st.text(), finite), max_size=20),
)
def test_an_event_is_read_as_it_was_written(wall_time, step, values):
    event = Event.FromString(tensorboard.scalars(wall_time, step, values))
    assert (event.wall_time, event.step) == (wall_time, step)
    assert [(value.tag, value.simple_value) for value in event.summary.value] == values


@given(st.lists(st.binary(max_size=300), max_size=100))
def test_checksums_are_those_of_tensorboardx(texts):
    assert tensorboard.crc32c(texts) == [crc_of_tensorboardx(text) for text in texts]


@given(st.binary(max_size=200))
def test_a_file_cut_anywhere_is_read_up_to_there(junk):
    events = [tensorboard.file_version(1.0), tensorboard.scalars(1.0, 1, [("a", 1.0)])]
    data = b"".join(tensorboard.records(events))
    assert tensorboard.events_of(data) == events
    for kept in range(len(data)):
        assert tensorboard.events_of(data[:kept]) in ([], events[:1])
    tensorboard.events_of(junk)  # whatever it is
