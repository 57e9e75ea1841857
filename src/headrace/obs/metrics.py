"""Every metric of a serving process: name, kind, unit, meaning, labels and buckets, in this one file.

Names, labels and buckets are vLLM's, so that dashboards, autoscalers and routers written for it work unchanged; what
has no name there begins with `headrace:`. Counters are exported with `_total`. Knows numbers; does not know engines,
requests or HTTP.

Who calls what:

- the composition root makes one `ServingMetrics` and hands it on;
- the engine's client calls `observe_stats` with every Stats message of the engine process (gauges now, counters since
  the engine's start);
- the server calls `describe_engine` once when the app is made, and for each request that the engine took: `count_prompt`
  with the first chunk, `observe_first_token`, `observe_inter_token` and `count_generated` with each chunk,
  `observe_finished` once for each continuation, `observe_request` once for the whole. `server/recorder.py` does all that;
- `/metrics` calls `exposition`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_TIME_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
N_BUCKETS = (1, 2, 5, 10, 20)


def one_two_five_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 … as far as `limit`.

    >>> one_two_five_buckets(60)
    (1, 2, 5, 10, 20, 50)
    """
    digits = len(str(limit))
    series = (mantissa * 10**power for power in range(digits) for mantissa in (1, 2, 5))
    return tuple(bound for bound in series if bound <= limit)


COMMON_LABELS = ("model_name", "engine")
FINISHED_REASONS = ("stop", "length", "abort", "error")


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Scale(StrEnum):
    """Which buckets a histogram has."""

    NONE = "none"
    TTFT = "ttft"
    TOKEN_TIME = "token time"
    REQUEST_TIME = "request time"
    STEP_TOKENS = "step tokens"
    TOKENS = "tokens: 1-2-5 up to max_model_len"
    N = "n"


@dataclass(frozen=True, slots=True)
class Metric:
    """What one metric is."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    scale: Scale = Scale.NONE
    labels: tuple[str, ...] = COMMON_LABELS


METRICS = (
    # The engine, as its Stats tell
    Metric("vllm:num_requests_running", Kind.GAUGE, "sequences", "Sequences that hold KV blocks and run."),
    Metric("vllm:num_requests_waiting", Kind.GAUGE, "requests", "Requests that wait for a place in a step."),
    Metric("vllm:kv_cache_usage_perc", Kind.GAUGE, "ratio", "Share of KV blocks that sequences hold; 1 is full."),
    Metric("vllm:num_preemptions", Kind.COUNTER, "preemptions", "Times a running sequence lost its KV blocks."),
    Metric("vllm:prefix_cache_queries", Kind.COUNTER, "tokens", "Prompt tokens looked up in the prefix cache."),
    Metric("vllm:prefix_cache_hits", Kind.COUNTER, "tokens", "Prompt tokens found in the prefix cache."),
    Metric("vllm:iteration_tokens_total", Kind.HISTOGRAM, "tokens", "Tokens computed in a step.", Scale.STEP_TOKENS),
    # What an engine is
    Metric(
        "vllm:cache_config_info",
        Kind.GAUGE,
        "always 1",
        "The KV cache's shape, as labels.",
        labels=("block_size", "num_gpu_blocks", "cache_dtype", "engine"),
    ),
    Metric(
        "headrace:startup_seconds",
        Kind.GAUGE,
        "seconds",
        "How long each phase of the engine's start took.",
        labels=("model_name", "engine", "phase"),
    ),
    # Requests, as the server sees them
    Metric("vllm:prompt_tokens", Kind.COUNTER, "tokens", "Prompt tokens of requests that began to answer."),
    Metric("vllm:prompt_tokens_cached", Kind.COUNTER, "tokens", "Those of them that came from the prefix cache."),
    Metric("vllm:generation_tokens", Kind.COUNTER, "tokens", "Tokens generated."),
    Metric(
        "vllm:request_success",
        Kind.COUNTER,
        "answers",
        "Answers that ended, by why: stop, length, abort or error.",
        labels=("model_name", "engine", "finished_reason"),
    ),
    Metric(
        "vllm:time_to_first_token_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "From the request's arrival to its answer's first token.",
        Scale.TTFT,
    ),
    Metric(
        "vllm:inter_token_latency_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "Between one token of an answer and the next.",
        Scale.TOKEN_TIME,
    ),
    Metric(
        "vllm:request_time_per_output_token_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "An answer's mean time per token after its first.",
        Scale.TOKEN_TIME,
    ),
    Metric(
        "vllm:e2e_request_latency_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "From the request's arrival to the end of its answer.",
        Scale.REQUEST_TIME,
    ),
    Metric(
        "vllm:request_queue_time_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "In the engine, from arrival to the first step.",
        Scale.REQUEST_TIME,
    ),
    Metric(
        "vllm:request_inference_time_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "In the engine, from the first step to the end.",
        Scale.REQUEST_TIME,
    ),
    Metric(
        "vllm:request_prefill_time_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "In the engine, from the first step to the first token.",
        Scale.REQUEST_TIME,
    ),
    Metric(
        "vllm:request_decode_time_seconds",
        Kind.HISTOGRAM,
        "seconds",
        "In the engine, from the first token to the end.",
        Scale.REQUEST_TIME,
    ),
    Metric("vllm:request_prompt_tokens", Kind.HISTOGRAM, "tokens", "Tokens of a request's prompt.", Scale.TOKENS),
    Metric("vllm:request_generation_tokens", Kind.HISTOGRAM, "tokens", "Tokens of an answer.", Scale.TOKENS),
    Metric(
        "vllm:request_max_num_generation_tokens",
        Kind.HISTOGRAM,
        "tokens",
        "Tokens of the longest of a request's answers.",
        Scale.TOKENS,
    ),
    Metric("vllm:request_params_n", Kind.HISTOGRAM, "answers", "The `n` of a request.", Scale.N),
    Metric("vllm:request_params_max_tokens", Kind.HISTOGRAM, "tokens", "The `max_tokens` of a request.", Scale.TOKENS),
)


class EngineStats(Protocol):
    """What `observe_stats` reads; the engine's Stats message has this shape."""

    @property
    def num_requests_running(self) -> int: ...
    @property
    def num_requests_waiting(self) -> int: ...
    @property
    def kv_cache_usage(self) -> float: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def prefix_cache_queries(self) -> int: ...
    @property
    def prefix_cache_hits(self) -> int: ...
    @property
    def step_token_counts(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """Durations inside the engine, for one answer."""

    queue_s: float
    """From arrival to the first step."""
    prefill_s: float
    """From there to the first token."""
    decode_s: float
    """From there to the end."""


class ServingMetrics:
    """All metrics of one served model, in a registry of their own."""

    def __init__(self, *, model_name: str, max_model_len: int, engine: str = "0") -> None:
        """`model_name` and `engine` are the labels; `max_model_len` bounds the buckets of token counts."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self._labels = {"model_name": model_name, "engine": engine}
        self._last_totals: dict[str, int] = {}
        buckets = _buckets_by_scale(max_model_len)
        self._all = {metric.name: _make(metric, buckets[metric.scale], self.registry) for metric in METRICS}
        # Children with the two common labels, looked up once: labels() costs more than the observation itself.
        children = {m.name: self._all[m.name].labels(**self._labels) for m in METRICS if m.labels == COMMON_LABELS}
        self._gauge = {name: child for name, child in children.items() if isinstance(child, Gauge)}
        self._counter = {name: child for name, child in children.items() if isinstance(child, Counter)}
        self._histogram = {name: child for name, child in children.items() if isinstance(child, Histogram)}
        self._successes = {reason: self._success(reason) for reason in FINISHED_REASONS}

    def exposition(self) -> tuple[bytes, str]:
        """The metrics in Prometheus's text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_PLAIN_0_0_4

    # The engine

    def describe_engine(
        self, *, block_size: int, num_blocks: int, cache_dtype: str, startup_seconds: Mapping[str, float]
    ) -> None:
        """What is true of an engine since its start."""
        info = self._all["vllm:cache_config_info"].labels(
            block_size=str(block_size),
            num_gpu_blocks=str(num_blocks),
            cache_dtype=cache_dtype,
            engine=self._labels["engine"],
        )
        startup = self._all["headrace:startup_seconds"]
        assert isinstance(info, Gauge)
        info.set(1)
        for phase, duration in startup_seconds.items():
            child = startup.labels(**self._labels, phase=phase)
            assert isinstance(child, Gauge)
            child.set(duration)

    def observe_stats(self, stats: EngineStats) -> None:
        """The engine's numbers now. Its counters count from its own start: a restarted engine's begin at 0 again."""
        self._gauge["vllm:num_requests_running"].set(stats.num_requests_running)
        self._gauge["vllm:num_requests_waiting"].set(stats.num_requests_waiting)
        self._gauge["vllm:kv_cache_usage_perc"].set(stats.kv_cache_usage)
        self._count_total("vllm:num_preemptions", stats.num_preemptions)
        self._count_total("vllm:prefix_cache_queries", stats.prefix_cache_queries)
        self._count_total("vllm:prefix_cache_hits", stats.prefix_cache_hits)
        steps = self._histogram["vllm:iteration_tokens_total"]
        for num_tokens in stats.step_token_counts:
            steps.observe(num_tokens)

    def _count_total(self, name: str, total: int) -> None:
        last = self._last_totals.get(name, 0)
        self._counter[name].inc(total - last if total >= last else total)
        self._last_totals[name] = total

    # Requests

    def count_prompt(self, num_tokens: int, num_cached_tokens: int) -> None:
        """A request began to answer."""
        self._counter["vllm:prompt_tokens"].inc(num_tokens)
        self._counter["vllm:prompt_tokens_cached"].inc(num_cached_tokens)

    def count_generated(self, num_tokens: int) -> None:
        self._counter["vllm:generation_tokens"].inc(num_tokens)

    def observe_first_token(self, duration_s: float) -> None:
        """From a request's arrival to an answer's first token."""
        self._histogram["vllm:time_to_first_token_seconds"].observe(duration_s)

    def observe_inter_token(self, duration_s: float, num_tokens: int) -> None:
        """From what an answer had to its next `num_tokens`: tokens that come together share the time evenly."""
        latency = self._histogram["vllm:inter_token_latency_seconds"]
        for _ in range(num_tokens):
            latency.observe(duration_s / num_tokens)

    def observe_finished(self, reason: str, *, e2e_s: float, num_tokens: int, engine_times: EngineTimes | None) -> None:
        """An answer of `num_tokens` tokens ended, `e2e_s` after its request arrived."""
        self._successes[reason].inc()
        self._histogram["vllm:e2e_request_latency_seconds"].observe(e2e_s)
        self._histogram["vllm:request_generation_tokens"].observe(num_tokens)
        if engine_times is None:
            return
        queue, prefill, decode = engine_times.queue_s, engine_times.prefill_s, engine_times.decode_s
        self._histogram["vllm:request_queue_time_seconds"].observe(queue)
        self._histogram["vllm:request_prefill_time_seconds"].observe(prefill)
        self._histogram["vllm:request_decode_time_seconds"].observe(decode)
        self._histogram["vllm:request_inference_time_seconds"].observe(prefill + decode)
        if num_tokens > 1:
            self._histogram["vllm:request_time_per_output_token_seconds"].observe(decode / (num_tokens - 1))

    def observe_request(self, *, n: int, max_tokens: int, num_prompt_tokens: int, longest_answer: int) -> None:
        """A request with all its answers is over."""
        self._histogram["vllm:request_params_n"].observe(n)
        self._histogram["vllm:request_params_max_tokens"].observe(max_tokens)
        self._histogram["vllm:request_prompt_tokens"].observe(num_prompt_tokens)
        self._histogram["vllm:request_max_num_generation_tokens"].observe(longest_answer)

    def _success(self, reason: str) -> Counter:
        child = self._all["vllm:request_success"].labels(**self._labels, finished_reason=reason)
        assert isinstance(child, Counter)
        return child


def _buckets_by_scale(max_model_len: int) -> dict[Scale, Sequence[float]]:
    return {
        Scale.NONE: (),
        Scale.TTFT: TTFT_BUCKETS,
        Scale.TOKEN_TIME: TOKEN_TIME_BUCKETS,
        Scale.REQUEST_TIME: REQUEST_TIME_BUCKETS,
        Scale.STEP_TOKENS: STEP_TOKEN_BUCKETS,
        Scale.TOKENS: one_two_five_buckets(max_model_len),
        Scale.N: N_BUCKETS,
    }


def _make(metric: Metric, buckets: Sequence[float], registry: CollectorRegistry) -> Gauge | Counter | Histogram:
    meaning = f"{metric.meaning} Unit: {metric.unit}."
    if metric.kind is Kind.GAUGE:
        return Gauge(metric.name, meaning, metric.labels, registry=registry)
    if metric.kind is Kind.COUNTER:
        return Counter(metric.name, meaning, metric.labels, registry=registry)
    return Histogram(metric.name, meaning, metric.labels, registry=registry, buckets=buckets)
