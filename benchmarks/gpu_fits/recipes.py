"""How each measured deployment was started: what the public benchmark's launch scripts say, which no row carries.

Facts from SemiAnalysisAI/InferenceX (benchmarks/*.sh and benchmarks/single_node/, as they stood when a run was measured),
written in our own words: the largest step, how many sequences may run, how much memory weights and KV may take, how often an
engine looks for new requests, and how long prompts wait for company. Of the other client's deployments nothing is known;
there engines have their defaults.
"""

from dataclasses import dataclass, replace

from benchmarks.gpu_fits.points import Point

from headrace.specs.device import device

_MANY = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    token_budget: int = 8192
    """Most tokens of a step with prompts (`max_num_batched_tokens`, `max_num_tokens`, `chunked_prefill_size`)."""
    max_num_seqs: int = _MANY
    steps_between_looks: int = 1
    """Decode steps from one look for new requests to the next (SGLang's `scheduler_recv_interval`); after a step with
    prompts it looks at once."""
    max_wait_steps: int = 0
    """Decode steps that prompts wait at most for others (TensorRT-LLM's `batch_wait_timeout_iters`, or what balancing its
    attention ranks comes to)."""
    enough_tokens: float = 1.0
    """Of the token budget, what need not wait (`batch_wait_max_tokens_ratio`)."""
    memory: float = 0.90
    """Share of a GPU's memory for weights and KV; of what weights leave, where `is_share_of_free`."""
    is_share_of_free: bool = False
    reserved_bytes: float = 4e9
    """Beside weights and KV, within that share: activations, graphs, communication."""
    requests_per_user: int = 10


def recipe(point: Point) -> Recipe:
    """Raises KeyError for a backend that is not known."""
    return {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[point.backend](point)


def defaults(point: Point) -> Recipe:
    """What is known of it without its launch script."""
    return recipe(replace(point, is_public_client=False))


def _vllm(point: Point) -> Recipe:
    if not point.is_public_client:
        return Recipe()
    if point.family == "minimax" and point.device in ("b200_sxm", "b300_sxm") and point.version >= "0.19":
        return Recipe(token_budget=2 * point.isl if point.label == "fp8" else 8192)
    return Recipe()


def _sglang(point: Point) -> Recipe:
    """`mem_fraction_static` is of weights and KV alone: what a step needs beside them lies outside."""
    if not point.is_public_client:
        return Recipe(memory=0.88, reserved_bytes=0.0)
    is_hopper = device(point.device).architecture == "hopper"
    relaxed = 30 if point.concurrency >= 16 else 10
    base = Recipe(memory=0.82, reserved_bytes=0.0, token_budget=32_768, max_num_seqs=128)
    match point.family, point.label:
        case "deepseek", _ if is_hopper:
            return Recipe(memory=0.82, reserved_bytes=0.0, token_budget=32_768, max_num_seqs=512)
        case "deepseek", "fp4":
            return Recipe(
                memory=0.85, reserved_bytes=0.0, token_budget=16_384, max_num_seqs=256, steps_between_looks=relaxed
            )
        case "deepseek", _ if point.parallel.tensor_parallel_size == 4:
            return Recipe(
                memory=0.95, reserved_bytes=0.0, token_budget=8192, max_num_seqs=max(32, point.concurrency),
                steps_between_looks=10,
            )  # fmt: skip
        case "glm", _ if is_hopper:
            return Recipe(memory=0.85, reserved_bytes=0.0, token_budget=8192, requests_per_user=5)
        case "glm", "fp4":
            return Recipe(memory=0.90, reserved_bytes=0.0, token_budget=32_768, steps_between_looks=10)
        case "glm", _:
            return Recipe(memory=0.85, reserved_bytes=0.0, token_budget=32_768)
        case "qwen3.5", _ if is_hopper:
            return Recipe(memory=0.80, reserved_bytes=0.0, token_budget=16_384)
        case "qwen3.5", "fp8" if point.device == "b300_sxm":
            return Recipe(memory=0.80, reserved_bytes=0.0, token_budget=16_384, steps_between_looks=10)
        case "qwen3.5", "fp4" if point.device == "b200_sxm":
            return Recipe(memory=0.85, reserved_bytes=0.0, token_budget=32_768, steps_between_looks=30)
        case "deepseek" | "qwen3.5", _:
            return replace(base, max_num_seqs=max(128, point.concurrency), steps_between_looks=relaxed)
    return base


def _trtllm(point: Point) -> Recipe:
    """Its `free_gpu_memory_fraction` is of what weights and a step leave."""
    if not point.is_public_client:
        return Recipe(memory=0.90, is_share_of_free=True)
    is_short = point.isl == point.osl == 1024
    base = Recipe(is_share_of_free=True)
    if point.family == "llama-70b":
        waits = is_short and point.parallel.tensor_parallel_size < 8
        return replace(base, token_budget=16_384, max_wait_steps=20 if waits else 0, enough_tokens=0.9)
    if point.family == "gpt-oss":
        return replace(base, memory=0.85, token_budget=20_000, max_wait_steps=_balancing_steps(point, 50))
    budget = max(8192, _next_64(point.concurrency + point.isl + 64))
    memory = 0.75 if point.device == "h200_sxm" else 0.80
    base = replace(base, memory=memory, token_budget=budget, max_wait_steps=_balancing_steps(point, 60))
    is_delayed = point.label == "fp8" and point.device == "b200_sxm" and is_short and 64 <= point.concurrency < 256
    if is_delayed and point.day >= "2026":
        return replace(base, max_wait_steps=40, enough_tokens=0.8)
    return base


def _balancing_steps(point: Point, timeout: int) -> int:
    """Steps that a prompt waits on average until every attention rank has one, or the first has waited `timeout` of
    them. Who comes while another waits waits for the rest of that time."""
    ranks = point.parallel.data_parallel_size
    if ranks == 1:
        return 0
    per_step = point.concurrency / (0.9 * point.osl)
    until_all = ranks / per_step * sum(1 / rank for rank in range(2, ranks + 1))
    whole = min(float(timeout), until_all)
    others = per_step * whole
    return round(whole * (1 + others / 2) / (1 + others))


def _next_64(tokens: int) -> int:
    """To the next 64."""
    return -(-tokens // 64) * 64
