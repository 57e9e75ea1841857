"""What a request's chunks tell the metrics, to the nanosecond: the clock stands still unless a test moves it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fakes import FakeEngine

from headrace.base.clock import ManualClock, Nanos
from headrace.base.errors import OverloadedError
from headrace.base.ids import RequestId
from headrace.base.units import nanos
from headrace.engine.host.generation import GenerationRequest, OutputChunk
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.update import FinishReason, SequenceTimes
from headrace.obs.metrics import ServingMetrics
from headrace.server.recorder import recorded_generation


class Scripted(FakeEngine):
    """Gives prepared chunks, each after the clock has moved by its seconds."""

    def __init__(self, clock: ManualClock, script: list[tuple[float, OutputChunk | Exception]]) -> None:
        super().__init__()
        self._manual = clock
        self._script = script
        self.closed = False

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputChunk]:
        try:
            for delay_s, item in self._script:
                self._manual.advance(nanos(delay_s))
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def chunk(num_tokens: int, *, index: int = 0, reason: FinishReason | None = None, times: SequenceTimes | None = None,
          num_cached: int = 0) -> OutputChunk:  # fmt: skip
    return OutputChunk(
        index=index, token_ids=(7,) * num_tokens, finish_reason=reason, times=times, num_cached_tokens=num_cached
    )


def request(n: int = 1) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=50)
    return GenerationRequest(request_id=RequestId("r"), prompt_token_ids=[1] * 40, sampling=sampling, num_sequences=n)


class Recording:
    """One request, recorded; its metrics by name."""

    def __init__(self, *script: tuple[float, OutputChunk | Exception], n: int = 1, take: int | None = None) -> None:
        clock = ManualClock(5)
        self.engine = Scripted(clock, list(script))
        self.metrics = ServingMetrics(model_name="m", max_model_len=100)
        self.passed: list[OutputChunk] = []
        self.error: Exception | None = None
        asyncio.run(self._record(clock, request(n), take))
        self._samples = {
            sample.name + sample.labels.get("finished_reason", ""): sample.value
            for family in text_string_to_metric_families(self.metrics.exposition()[0].decode())
            for sample in family.samples
        }

    async def _record(self, clock: ManualClock, asked: GenerationRequest, take: int | None) -> None:
        chunks = recorded_generation(self.engine, asked, metrics=self.metrics, clock=clock, arrived=clock.now())
        try:
            async for one in chunks:
                self.passed.append(one)
                if len(self.passed) == take:
                    break
        except Exception as error:
            self.error = error
        await chunks.aclose()

    def __getitem__(self, name: str) -> float:
        return self._samples[f"vllm:{name}"]


def test_chunks_pass_unchanged_and_times_are_taken_between_them() -> None:
    times = SequenceTimes(arrived=Nanos(0), scheduled=nanos_at(0.5), first_token=nanos_at(2), finished=nanos_at(6))
    script = [
        (2.0, chunk(1, num_cached=32)),
        (1.0, chunk(1)),
        (3.0, chunk(3, reason=FinishReason.STOP, times=times)),
    ]
    recorded = Recording(*script)
    assert recorded.passed == [one for _, one in script]
    assert recorded["time_to_first_token_seconds_sum"] == 2.0
    assert recorded["inter_token_latency_seconds_count"] == 4
    assert recorded["inter_token_latency_seconds_sum"] == pytest.approx(4.0)
    assert recorded["e2e_request_latency_seconds_sum"] == 6.0
    assert recorded["request_queue_time_seconds_sum"] == 0.5
    assert recorded["request_prefill_time_seconds_sum"] == 1.5
    assert recorded["request_decode_time_seconds_sum"] == 4.0
    assert recorded["request_inference_time_seconds_sum"] == 5.5
    assert recorded["request_time_per_output_token_seconds_sum"] == 1.0
    assert (recorded["prompt_tokens_total"], recorded["prompt_tokens_cached_total"]) == (40, 32)
    assert (recorded["generation_tokens_total"], recorded["request_generation_tokens_sum"]) == (5, 5)
    assert recorded["request_success_totalstop"] == 1
    assert recorded.engine.closed


def nanos_at(seconds: float) -> Nanos:
    return Nanos(nanos(seconds))


def test_each_answer_of_several_is_timed_by_itself() -> None:
    recorded = Recording(
        (1.0, chunk(1, index=0)),
        (1.0, chunk(1, index=1)),
        (1.0, chunk(1, index=0, reason=FinishReason.LENGTH)),
        (1.0, chunk(2, index=1, reason=FinishReason.STOP)),
        n=2,
    )
    assert recorded["time_to_first_token_seconds_sum"] == 3.0
    assert recorded["inter_token_latency_seconds_sum"] == pytest.approx(4.0)
    assert recorded["e2e_request_latency_seconds_sum"] == 7.0
    assert (recorded["request_success_totallength"], recorded["request_success_totalstop"]) == (1, 1)
    assert recorded["request_max_num_generation_tokens_sum"] == 3
    assert (recorded["request_params_n_sum"], recorded["request_prompt_tokens_sum"]) == (2, 40)


def test_a_chunk_without_tokens_is_no_first_token() -> None:
    recorded = Recording((1.0, chunk(0)), (1.0, chunk(1, reason=FinishReason.STOP)))
    assert recorded["time_to_first_token_seconds_count"] == 1
    assert recorded["time_to_first_token_seconds_sum"] == 2.0


def test_a_reader_that_goes_closes_the_engines_iterator_and_counts_as_aborted() -> None:
    recorded = Recording((1.0, chunk(1)), (1.0, chunk(1, reason=FinishReason.STOP)), n=2, take=1)
    assert recorded.engine.closed
    assert recorded["request_success_totalabort"] == 2
    assert recorded["request_params_n_count"] == 1


def test_an_engine_that_fails_counts_its_open_answers_as_errors() -> None:
    recorded = Recording((1.0, chunk(1, index=0, reason=FinishReason.STOP)), (1.0, RuntimeError("no")), n=2)
    assert isinstance(recorded.error, RuntimeError)
    assert (recorded["request_success_totalstop"], recorded["request_success_totalerror"]) == (1, 1)


def test_a_request_that_was_refused_leaves_no_trace() -> None:
    recorded = Recording((1.0, OverloadedError("full")))
    assert [recorded[f"request_success_total{reason}"] for reason in ("stop", "abort", "error")] == [0, 0, 0]
    assert recorded["request_params_n_count"] == 0
    assert recorded["prompt_tokens_total"] == 0
