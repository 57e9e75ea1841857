"""Watches one request's chunks go by and tells the metrics. The chunks pass through unchanged.

Knows what ends an answer, and the clock. Does not know formats or HTTP.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass

from headrace.base.clock import Clock, Nanos
from headrace.base.units import seconds
from headrace.engine.host.generation import Engine, GenerationRequest, OutputChunk
from headrace.engine.mind.update import FinishReason, SequenceTimes
from headrace.obs.metrics import EngineTimes, ServingMetrics


@dataclass(slots=True)
class _Progress:
    """One continuation so far."""

    num_tokens: int = 0
    last_token: Nanos | None = None
    finished: bool = False


async def recorded_generation(
    engine: Engine, request: GenerationRequest, *, metrics: ServingMetrics, clock: Clock, arrived: Nanos
) -> AsyncGenerator[OutputChunk, None]:
    """The engine's chunks for the request. Closing this early, or cancelling who waits for it, aborts the request."""
    chunks = engine.generate(request)
    recorder = _Recorder(request, metrics, clock, arrived)
    ended_by = FinishReason.ABORT
    try:
        async for chunk in chunks:
            recorder.observe(chunk)
            yield chunk
    except Exception:
        ended_by = FinishReason.ERROR
        raise
    finally:
        await _close(chunks)
        recorder.end(ended_by)


class _Recorder:
    def __init__(self, request: GenerationRequest, metrics: ServingMetrics, clock: Clock, arrived: Nanos) -> None:
        self._request = request
        self._metrics = metrics
        self._clock = clock
        self._arrived = arrived
        self._began = False
        self._progress = [_Progress() for _ in range(request.num_sequences)]

    def observe(self, chunk: OutputChunk) -> None:
        now = self._clock.now()
        if not self._began:
            self._began = True
            self._metrics.count_prompt(len(self._request.prompt_token_ids), chunk.num_cached_tokens)
        progress = self._progress[chunk.index]
        if chunk.token_ids:
            self._observe_tokens(progress, len(chunk.token_ids), now)
        if chunk.finish_reason is not None:
            self._finish(progress, chunk.finish_reason, now, chunk.times)

    def end(self, reason: FinishReason) -> None:
        """Nothing more will come. A request that failed before it began was refused: it counts as no answer."""
        if not self._began and reason is FinishReason.ERROR:
            return
        now = self._clock.now()
        for progress in self._progress:
            if not progress.finished:
                self._finish(progress, reason, now, None)
        self._metrics.observe_request(
            n=self._request.num_sequences,
            max_tokens=self._request.sampling.max_tokens,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            longest_answer=max(progress.num_tokens for progress in self._progress),
        )

    def _observe_tokens(self, progress: _Progress, num_tokens: int, now: Nanos) -> None:
        self._metrics.count_generated(num_tokens)
        if progress.last_token is None:
            self._metrics.observe_first_token(seconds(now - self._arrived))
        else:
            self._metrics.observe_inter_token(seconds(now - progress.last_token), num_tokens)
        progress.num_tokens += num_tokens
        progress.last_token = now

    def _finish(self, progress: _Progress, reason: FinishReason, now: Nanos, times: SequenceTimes | None) -> None:
        progress.finished = True
        self._metrics.observe_finished(
            reason.value,
            e2e_s=seconds(now - self._arrived),
            num_tokens=progress.num_tokens,
            engine_times=None if times is None else _engine_times(times),
        )


def _engine_times(times: SequenceTimes) -> EngineTimes:
    return EngineTimes(
        queue_s=seconds(times.scheduled - times.arrived),
        prefill_s=seconds(times.first_token - times.scheduled),
        decode_s=seconds(times.finished - times.first_token),
    )


async def _close(chunks: AsyncIterator[OutputChunk]) -> None:
    """Generators are closed at once, not when the garbage collector finds them: closing is what aborts."""
    close = getattr(chunks, "aclose", None)
    if close is not None:
        await close()
