"""A recording reads back as it was written, and a damaged one says where it ends."""

from pathlib import Path

import pytest
from tests.unit.host.fakes import make_request

from headrace.base.clock import Nanos
from headrace.base.errors import CheckpointError, ConfigurationError
from headrace.base.ids import RequestId, StepId
from headrace.engine.host.recording import (
    Aborted,
    Added,
    Event,
    Finished,
    Opening,
    Planned,
    PrefixCacheReset,
    RecordingWriter,
    read_recording,
)
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.step import StepPlan, StepResult

EVENTS: list[Event] = [
    Opening(
        now=Nanos(0),
        scheduler=SchedulerConfig(max_model_len=64, num_blocks=8),
        eos_token_ids=(2,),
        identity_digest=b"\0\xff",
    ),
    Added(Nanos(1), make_request()),
    Planned(Nanos(1), StepPlan(StepId(0), ())),
    Aborted(Nanos(2), RequestId("r")),
    Finished(Nanos(2), StepResult(StepId(0), (None,))),
    PrefixCacheReset(Nanos(3)),
]


def write(path: Path) -> None:
    with RecordingWriter(path) as writer:
        for event in EVENTS:
            writer.write(event)


def test_events_read_back_equal(tmp_path: Path) -> None:
    write(tmp_path / "steps")
    assert list(read_recording(tmp_path / "steps")) == EVENTS


@pytest.mark.parametrize("num_bytes_lost", [1, 3, 10])
def test_a_recording_cut_off_in_an_event_gives_the_whole_ones_and_then_says_so(tmp_path: Path, num_bytes_lost: int) -> None:
    path = tmp_path / "steps"
    write(path)
    path.write_bytes(path.read_bytes()[:-num_bytes_lost])
    read: list[Event] = []
    with pytest.raises(CheckpointError, match="cut off after 5 whole events"):
        read.extend(_collecting(path, read))
    assert read == EVENTS[:-1]


def _collecting(path: Path, read: list[Event]) -> list[Event]:
    for event in read_recording(path):
        read.append(event)
    return []


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"\0\0\0\x04\xc1\xc1\xc1\xc1")
    with pytest.raises(CheckpointError, match="event 0"):
        list(read_recording(path))


def test_a_file_that_says_nothing_of_a_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "workload.jsonl"
    path.write_text('{"name": "random"}')
    with pytest.raises(CheckpointError, match="is no recording that `headrace serve --record-steps` made"):
        list(read_recording(path))


def test_a_recording_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"the recording {tmp_path}/steps cannot be read: No such file"):
        list(read_recording(tmp_path / "steps"))


def test_a_recording_that_cannot_be_written_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="record_steps"):
        RecordingWriter(tmp_path / "no such folder" / "steps")
