"""What users send, made up: random prompts, prompts with shared beginnings, conversations with tool calls, and mixes.

Knows the form of requests. Does not know when they arrive in an open loop: `at()` sets moments on what is made here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream
from headrace.measure.workload.lengths import Lengths
from headrace.measure.workload.request import Segment, TokenPrompt, WorkloadRequest


def random_requests(
    num_requests: int, *, inputs: Lengths, outputs: Lengths, num_prefix_tokens: int = 0, seed: int = 0
) -> list[WorkloadRequest]:
    """Nobody shares anything, but a beginning that all share where `num_prefix_tokens` says so."""
    rng = stream(seed, "lengths")
    shared = (Segment("prefix", num_prefix_tokens),) if num_prefix_tokens else ()
    return [
        WorkloadRequest(
            request_id=f"r{index}",
            prompt=TokenPrompt((*shared, Segment(f"r{index}", inputs.draw(rng)))),
            num_output_tokens=outputs.draw(rng),
        )
        for index in range(num_requests)
    ]


def shared_prefix_requests(
    num_requests: int, *, num_groups: int, num_prefix_tokens: int, suffixes: Lengths, outputs: Lengths, seed: int = 0
) -> list[WorkloadRequest]:
    """Groups whose members begin alike, in random order: system prompts of so many applications."""
    if num_groups < 1:
        raise ConfigurationError(f"shared prefixes need at least one group, not {num_groups}")
    rng = stream(seed, "groups")
    return [
        WorkloadRequest(
            request_id=f"r{index}",
            prompt=TokenPrompt(
                (Segment(f"group{rng.randrange(num_groups)}", num_prefix_tokens), Segment(f"r{index}", suffixes.draw(rng)))
            ),
            num_output_tokens=outputs.draw(rng),
        )
        for index in range(num_requests)
    ]


def sessions(
    num_sessions: int,
    *,
    num_turns: int,
    inputs: Lengths,
    outputs: Lengths,
    num_system_tokens: int = 0,
    think_time_s: float = 1.0,
    tool_turn_share: float = 0.0,
    tool_time_s: float = 0.1,
    starts: Sequence[float] = (),
    seed: int = 0,
) -> list[WorkloadRequest]:
    """Conversations: every turn's prompt is the whole conversation so far, and comes after the turn before has ended.

    A tool turn brings a tool's result after `tool_time_s`; any other a user's words after an exponential think time.
    """
    rng = stream(seed, "sessions")
    made: list[WorkloadRequest] = []
    for session in range(num_sessions):
        history = [Segment("system", num_system_tokens)] if num_system_tokens else []
        for turn in range(num_turns):
            request_id = f"s{session}.{turn}"
            history.append(Segment(f"{request_id}/asked", inputs.draw(rng)))
            num_output_tokens = outputs.draw(rng)
            is_tool_turn = rng.random() < tool_turn_share
            wait_s = tool_time_s if is_tool_turn else (rng.expovariate(1 / think_time_s) if think_time_s > 0 else 0.0)
            first_s = starts[session] if starts else 0.0
            made.append(
                WorkloadRequest(
                    request_id=request_id,
                    prompt=TokenPrompt(tuple(history)),
                    num_output_tokens=num_output_tokens,
                    at_s=wait_s if turn else first_s,
                    after=f"s{session}.{turn - 1}" if turn else "",
                )
            )
            history.append(Segment(f"{request_id}/answered", num_output_tokens))
    return made


def at(requests: Sequence[WorkloadRequest], moments: Sequence[float]) -> list[WorkloadRequest]:
    """The same requests, open loop: each at its moment."""
    return [msgspec.structs.replace(r, at_s=moment, after="") for r, moment in zip(requests, moments, strict=True)]


def closed_loop(
    requests: Sequence[WorkloadRequest], *, num_users: int, think_time_s: float = 0.0, seed: int = 0
) -> list[WorkloadRequest]:
    """The same requests dealt out to users, each of whom asks again an exponential think time after an answer."""
    if num_users < 1:
        raise ConfigurationError(f"a closed loop needs at least one user, not {num_users}")
    rng = stream(seed, "think times")
    return [
        msgspec.structs.replace(
            request,
            after=requests[index - num_users].request_id if index >= num_users else "",
            at_s=rng.expovariate(1 / think_time_s) if think_time_s > 0 and index >= num_users else 0.0,
        )
        for index, request in enumerate(requests)
    ]


def with_bodies(
    requests: Sequence[WorkloadRequest], mix: Mapping[str, tuple[float, Mapping[str, Any]]], *, seed: int = 0
) -> list[WorkloadRequest]:
    """Gives each request extra fields drawn from a mix {name: (weight, fields)}: JSON schemas, tools, sampling."""
    rng = stream(seed, "mix")
    names, weights = list(mix), [weight for weight, _ in mix.values()]
    drawn = rng.choices(names, weights, k=len(requests))
    return [
        msgspec.structs.replace(request, extra_body={**request.extra_body, **mix[name][1]})
        for request, name in zip(requests, drawn, strict=True)
    ]


def with_models(
    requests: Sequence[WorkloadRequest], models: Sequence[str], *, assignment: str = "random", seed: int = 0
) -> list[WorkloadRequest]:
    """Spreads requests over models or LoRA adapters, at random or in turn."""
    if assignment not in ("random", "round-robin"):
        raise ConfigurationError(f"adapters are assigned random or round-robin, not {assignment!r}")
    rng = stream(seed, "models")
    return [
        msgspec.structs.replace(r, model=models[i % len(models)] if assignment == "round-robin" else rng.choice(models))
        for i, r in enumerate(requests)
    ]
