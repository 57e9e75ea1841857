"""How long prompts and answers keep a replica busy, as closed numbers: where the search for numbers of prefill and decode
replicas begins. A rehearsal says what holds; here queues and chance are left out.
"""

from dataclasses import dataclass

from headrace.measure.workload.request import TokenPrompt, Workload
from headrace.measure.workload.reuse import reuse
from headrace.sim.cost.step_size import StepSize
from headrace.sim.cost_model import GpuDeployment


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a workload asks, on average."""

    num_requests: int
    prompt_tokens: float
    new_tokens: float
    """Of a prompt's tokens, those that no cache can have."""
    output_tokens: float
    span_s: float | None
    """From the first arrival to the last; None where arrivals wait for answers, so that nobody can say."""


def demand_of(workload: Workload) -> Demand:
    """Of a workload of tokens."""
    requests = workload.requests
    prompts = [request.prompt.num_tokens for request in requests if isinstance(request.prompt, TokenPrompt)]
    mean_prompt = sum(prompts) / len(prompts)
    moments = [request.at_s for request in requests]
    return Demand(
        num_requests=len(requests),
        prompt_tokens=mean_prompt,
        new_tokens=max(1.0, mean_prompt * (1 - reuse(requests).token_share)),
        output_tokens=sum(request.num_output_tokens for request in requests) / len(requests),
        span_s=None if any(request.after for request in requests) else max(moments) - min(moments),
    )


def prompt_s(gpu: GpuDeployment, demand: Demand) -> float:
    """Of a replica, to compute the mean prompt, in a step of its own; where it has several attention ranks, of a step in
    which each computes one."""
    new = max(1, round(demand.new_tokens))
    before = max(0, round(demand.prompt_tokens) - new)
    pairs = new * before + new * (new + 1) // 2
    count = gpu.data_parallel_size
    size = StepSize(
        num_chunks=count, chunk_tokens=count * new, chunk_context=count * (before + new), chunk_pairs=count * pairs,
        num_samples=count,
    )  # fmt: skip
    return gpu.step_us()(size) / 1e6 / count


def answer_s(gpu: GpuDeployment, demand: Demand, *, num_tokens_of_kv: int, max_num_seqs: int, itl_ms: float | None) -> float:
    """Of a replica, to answer the mean request, in the largest batch that its memory and the promised pace admit."""
    step_us, context = gpu.step_us(), demand.prompt_tokens + demand.output_tokens / 2
    most = max(1, min(max_num_seqs, int(num_tokens_of_kv / max(1.0, demand.prompt_tokens + demand.output_tokens))))

    def step_s(count: int) -> float:
        return step_us(StepSize(num_decodes=count, decode_context=round(count * context), num_samples=count)) / 1e6

    low, high = 1, most
    if itl_ms is not None:
        while low < high:  # the most that keep the pace, or one
            middle = (low + high + 1) // 2
            if step_s(middle) * 1e3 <= itl_ms:
                low = middle
            else:
                high = middle - 1
    else:
        low = most
    return step_s(low) / low * demand.output_tokens
