"""The metrics by name: what dashboards and routers written for vLLM find, with its buckets, and what each call moves."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headrace.obs.metrics import METRICS, EngineTimes, Kind, ServingMetrics, one_two_five_buckets

LABELS = {"model_name": "mill", "engine": "0"}


@dataclass
class Stats:
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    step_token_counts: tuple[int, ...] = ()


@pytest.fixture
def metrics() -> ServingMetrics:
    return ServingMetrics(model_name="mill", max_model_len=2048)


def exported(metrics: ServingMetrics) -> dict[str, Metric]:
    text, _ = metrics.exposition()
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def value(metrics: ServingMetrics, sample: str, **labels: str) -> float:
    for family in exported(metrics).values():
        for found in family.samples:
            if found.name == sample and labels.items() <= found.labels.items():
                return found.value
    raise AssertionError(f"no sample {sample} with {labels}")


def bounds(metrics: ServingMetrics, name: str) -> list[float]:
    return [float(s.labels["le"]) for s in exported(metrics)[name].samples if s.name == f"{name}_bucket"]


def test_every_metric_of_the_table_is_exported_with_its_kind_meaning_and_labels(metrics: ServingMetrics) -> None:
    metrics.describe_engine(block_size=16, num_blocks=8, cache_dtype="float32", startup_seconds={"load": 1.5})
    families = exported(metrics)
    for metric in METRICS:
        # The text format keeps a counter's `_total` on the samples and, in its TYPE line, on the name.
        family = families[metric.name]
        assert family.type == metric.kind.value
        assert metric.meaning in family.documentation
        wanted = set(metric.labels)
        assert all(set(s.labels) - {"le"} == wanted for s in family.samples), metric.name


def test_no_name_that_dashboards_ask_for_is_missing() -> None:
    assert {metric.name for metric in METRICS} == {
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info",
        "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prompt_tokens_cached", "vllm:num_preemptions",
        "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:request_success",
        "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
        "vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds",
        "vllm:request_queue_time_seconds", "vllm:request_inference_time_seconds", "vllm:request_prefill_time_seconds",
        "vllm:request_decode_time_seconds", "vllm:iteration_tokens_total", "vllm:request_prompt_tokens",
        "vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens", "vllm:request_params_n",
        "vllm:request_params_max_tokens", "headrace:startup_seconds",
    }  # fmt: skip


def test_counters_end_in_total(metrics: ServingMetrics) -> None:
    text, content_type = metrics.exposition()
    assert content_type.startswith("text/plain; version=0.0.4")
    for metric in METRICS:
        if metric.kind is Kind.COUNTER:
            assert f"\n{metric.name}_total{{".encode() in text


def test_buckets_are_those_that_dashboards_were_written_for(metrics: ServingMetrics) -> None:
    assert bounds(metrics, "vllm:time_to_first_token_seconds") == [
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640,
        2560, math.inf,
    ]  # fmt: skip
    per_token = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, math.inf]
    assert bounds(metrics, "vllm:inter_token_latency_seconds") == per_token
    assert bounds(metrics, "vllm:request_time_per_output_token_seconds") == per_token
    per_request = [
        0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680, math.inf,
    ]  # fmt: skip
    for name in ("e2e_request_latency", "request_queue_time", "request_inference_time", "request_prefill_time"):
        assert bounds(metrics, f"vllm:{name}_seconds") == per_request
    assert bounds(metrics, "vllm:request_decode_time_seconds") == per_request
    steps = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, math.inf]
    assert bounds(metrics, "vllm:iteration_tokens_total") == steps
    tokens = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, math.inf]
    for name in ("request_prompt_tokens", "request_generation_tokens", "request_params_max_tokens"):
        assert bounds(metrics, f"vllm:{name}") == tokens
    assert bounds(metrics, "vllm:request_params_n") == [1, 2, 5, 10, 20, math.inf]


def test_token_buckets_include_a_limit_that_is_one_of_the_series() -> None:
    assert one_two_five_buckets(1) == (1,)
    assert one_two_five_buckets(500)[-1] == 500
    assert one_two_five_buckets(499)[-1] == 200


def test_stats_set_gauges_and_move_counters_by_what_was_added(metrics: ServingMetrics) -> None:
    metrics.observe_stats(Stats(3, 4, 0.5, num_preemptions=2, prefix_cache_queries=100, prefix_cache_hits=40))
    metrics.observe_stats(Stats(1, 0, 0.25, num_preemptions=5, prefix_cache_queries=150, prefix_cache_hits=40))
    assert value(metrics, "vllm:num_requests_running", **LABELS) == 1
    assert value(metrics, "vllm:num_requests_waiting", **LABELS) == 0
    assert value(metrics, "vllm:kv_cache_usage_perc", **LABELS) == 0.25
    assert value(metrics, "vllm:num_preemptions_total", **LABELS) == 5
    assert value(metrics, "vllm:prefix_cache_queries_total", **LABELS) == 150
    assert value(metrics, "vllm:prefix_cache_hits_total", **LABELS) == 40


def test_counters_go_on_when_a_restarted_engine_counts_from_zero_again(metrics: ServingMetrics) -> None:
    metrics.observe_stats(Stats(num_preemptions=7))
    metrics.observe_stats(Stats(num_preemptions=2))
    assert value(metrics, "vllm:num_preemptions_total") == 9


def test_each_step_is_one_observation_of_its_tokens(metrics: ServingMetrics) -> None:
    metrics.observe_stats(Stats(step_token_counts=(1, 30, 2048)))
    assert value(metrics, "vllm:iteration_tokens_total_count") == 3
    assert value(metrics, "vllm:iteration_tokens_total_sum") == 2079
    assert value(metrics, "vllm:iteration_tokens_total_bucket", le="32.0") == 2


def test_an_engine_is_described_by_labels_and_phases(metrics: ServingMetrics) -> None:
    metrics.describe_engine(block_size=16, num_blocks=300, cache_dtype="bfloat16", startup_seconds={"load": 1.5})
    info = {"block_size": "16", "num_gpu_blocks": "300", "cache_dtype": "bfloat16", "engine": "0"}
    assert value(metrics, "vllm:cache_config_info", **info) == 1
    assert value(metrics, "headrace:startup_seconds", phase="load", **LABELS) == 1.5


def test_tokens_that_come_together_share_the_time_between_them(metrics: ServingMetrics) -> None:
    metrics.observe_inter_token(0.4, 4)
    assert value(metrics, "vllm:inter_token_latency_seconds_count") == 4
    assert value(metrics, "vllm:inter_token_latency_seconds_sum") == pytest.approx(0.4)
    assert value(metrics, "vllm:inter_token_latency_seconds_bucket", le="0.1") == 4


def test_a_finished_answer_is_counted_once_in_each_duration(metrics: ServingMetrics) -> None:
    times = EngineTimes(queue_s=1.0, prefill_s=2.0, decode_s=9.0)
    metrics.observe_finished("length", e2e_s=12.5, num_tokens=10, engine_times=times)
    for name, seconds in (
        ("e2e_request_latency", 12.5),
        ("request_queue_time", 1.0),
        ("request_prefill_time", 2.0),
        ("request_decode_time", 9.0),
        ("request_inference_time", 11.0),
        ("request_time_per_output_token", 1.0),
    ):
        assert value(metrics, f"vllm:{name}_seconds_count") == 1, name
        assert value(metrics, f"vllm:{name}_seconds_sum") == pytest.approx(seconds), name
    assert value(metrics, "vllm:request_success_total", finished_reason="length", **LABELS) == 1
    assert value(metrics, "vllm:request_success_total", finished_reason="stop", **LABELS) == 0


def test_an_answer_of_one_token_has_no_time_per_further_token(metrics: ServingMetrics) -> None:
    times = EngineTimes(queue_s=0.0, prefill_s=0.1, decode_s=0.0)
    metrics.observe_finished("stop", e2e_s=0.1, num_tokens=1, engine_times=times)
    assert value(metrics, "vllm:request_time_per_output_token_seconds_count") == 0


def test_an_aborted_answer_has_no_engine_times_but_counts(metrics: ServingMetrics) -> None:
    metrics.observe_finished("abort", e2e_s=0.1, num_tokens=3, engine_times=None)
    assert value(metrics, "vllm:request_success_total", finished_reason="abort") == 1
    assert value(metrics, "vllm:request_queue_time_seconds_count") == 0
    assert value(metrics, "vllm:request_generation_tokens_sum") == 3


def test_requests_and_their_tokens_are_counted(metrics: ServingMetrics) -> None:
    metrics.count_prompt(100, 64)
    metrics.count_generated(7)
    metrics.observe_first_token(0.07)
    metrics.observe_request(n=2, max_tokens=50, num_prompt_tokens=100, longest_answer=4)
    assert value(metrics, "vllm:prompt_tokens_total", **LABELS) == 100
    assert value(metrics, "vllm:prompt_tokens_cached_total", **LABELS) == 64
    assert value(metrics, "vllm:generation_tokens_total", **LABELS) == 7
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.08") == 1
    assert value(metrics, "vllm:time_to_first_token_seconds_bucket", le="0.06") == 0
    assert value(metrics, "vllm:request_params_n_sum") == 2
    assert value(metrics, "vllm:request_params_max_tokens_sum") == 50
    assert value(metrics, "vllm:request_prompt_tokens_sum") == 100
    assert value(metrics, "vllm:request_max_num_generation_tokens_sum") == 4


def test_two_servers_in_one_process_do_not_share_numbers() -> None:
    make: Callable[[], ServingMetrics] = lambda: ServingMetrics(model_name="mill", max_model_len=10)  # noqa: E731
    first, second = make(), make()
    first.count_generated(5)
    assert value(second, "vllm:generation_tokens_total") == 0


def test_the_process_itself_is_measured(metrics: ServingMetrics) -> None:
    assert value(metrics, "process_resident_memory_bytes") > 0
