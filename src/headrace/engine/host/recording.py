"""What an engine process was told and what it decided, as a file that a simulator can replay.

Knows the events and their order on disk. Does not know the loop that makes them, nor what replays them.

A recording is one `Opening`, then events in the order in which the mind saw them. The loop works in turns and reads
the clock once per turn, so every event of one turn carries the same `now`, and within a turn they stand in this order:
what clients sent (`Added`, `Aborted`, `PrefixCacheReset`, in order of arrival), then `Finished` in order of steps,
then `Planned`. Every turn asks the mind for plans until it gives none; a turn in which nothing else happened and no
plan came leaves no event. To replay: feed the events before each turn's plans to an `EngineCore` of the same
configuration at the same `now`, ask it for plans until it gives none, and compare these with the `Planned` events byte
for byte.

On disk each event is a 4-byte big-endian length and that many bytes of MessagePack.
"""

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import CheckpointError, ConfigurationError
from headrace.base.ids import RequestId, StepId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.request import Request
from headrace.engine.mind.step import StepPlan, StepResult


class Opening(msgspec.Struct, frozen=True, tag="opening", kw_only=True):
    """With what the mind was built; always the first event, and only the first."""

    now: Nanos
    scheduler: SchedulerConfig
    eos_token_ids: tuple[int, ...]
    identity_digest: bytes


class Added(msgspec.Struct, frozen=True, tag="added"):
    """`add_request`; requests that the mind refused are here too, since refusing is a decision."""

    now: Nanos
    request: Request


class Aborted(msgspec.Struct, frozen=True, tag="aborted"):
    now: Nanos
    request_id: RequestId
    sample_index: int | None = None


class PrefixCacheReset(msgspec.Struct, frozen=True, tag="prefix_cache_reset"):
    now: Nanos


class Finished(msgspec.Struct, frozen=True, tag="finished"):
    """`finish_step` of the plan with the result's `step_id`."""

    now: Nanos
    result: StepResult


class Planned(msgspec.Struct, frozen=True, tag="planned"):
    """`begin_step` gave this plan."""

    now: Nanos
    plan: StepPlan

    @property
    def step_id(self) -> StepId:
        return self.plan.step_id


Event = Opening | Added | Aborted | PrefixCacheReset | Finished | Planned

_LENGTH_BYTES = 4
_IS_NONE = "is no recording that `headrace serve --record-steps` made"


class RecordingWriter:
    """Writes events as they happen. `flush` after each turn keeps a crashed engine's recording whole up to that
    turn."""

    def __init__(self, path: Path) -> None:
        try:
            self._file: BinaryIO = path.open("wb")
        except OSError as error:
            raise ConfigurationError(
                f"record_steps: cannot write {str(path)!r} ({error.strerror}); name a file in a folder that you may write to"
            ) from error
        self._encoder = msgspec.msgpack.Encoder()

    def write(self, event: Event) -> None:
        payload = self._encoder.encode(event)
        self._file.write(len(payload).to_bytes(_LENGTH_BYTES, "big"))
        self._file.write(payload)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def read_recording(path: Path) -> Iterator[Event]:
    """The events of a recording. Raises ConfigurationError where there is none, and CheckpointError at the place where a
    damaged or cut-off file stops making sense."""
    decoder = msgspec.msgpack.Decoder(Event)
    try:
        opened = path.open("rb")
    except OSError as error:
        raise ConfigurationError(f"the recording {path} cannot be read: {error.strerror}") from None
    with opened as file:
        num_events = 0
        while header := file.read(_LENGTH_BYTES):
            length = int.from_bytes(header, "big")
            payload = file.read(length)
            if len(header) < _LENGTH_BYTES or len(payload) < length:
                if not num_events:
                    raise CheckpointError(f"{path} {_IS_NONE}")
                raise CheckpointError(f"{path}: the recording is cut off after {num_events} whole events")
            try:
                event = decoder.decode(payload)
            except msgspec.DecodeError as error:
                raise CheckpointError(f"{path}: event {num_events} is not one of this version's: {error}") from error
            if not num_events and not isinstance(event, Opening):
                raise CheckpointError(f"{path} {_IS_NONE}: it does not begin with its opening")
            yield event
            num_events += 1
        if not num_events:
            raise CheckpointError(f"{path} {_IS_NONE}: it is empty")
