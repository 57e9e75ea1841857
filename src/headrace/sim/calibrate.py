"""Calibration: from a recording of a live engine, and what its clients saw meanwhile, to the numbers of a rehearsal.

Knows which plans to ask for, what each step of a recording computed and how long it took, and how to fit. Does not know how
a server is started nor how a file is written.

Durations are those of `sim/replay.py`: from a step's submission, or the end of the one before it, to its own end, as the
engine's loop saw them; so the host's own work between steps is part of them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean

import msgspec

from headrace.base.clock import Nanos
from headrace.base.errors import CheckpointError
from headrace.base.ids import SequenceId, StepId
from headrace.engine.host.recording import Added, Event, Finished, Opening, Planned
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import Run
from headrace.measure.report.statistics import percentile
from headrace.measure.workload.lengths import Fixed, Lengths, Uniform
from headrace.measure.workload.prompts import closed_loop, random_requests
from headrace.measure.workload.request import Workload, WorkloadRequest
from headrace.sim.cost.fitted_steps import KNOTS, FittedSteps, weights_of
from headrace.sim.cost.least_squares import non_negative_least_squares
from headrace.sim.cost.step_size import StepSize, step_size
from headrace.sim.front_end import FRONT_END_TIMES, FrontEnd, FrontEndCost
from headrace.sim.replay import step_durations

_SOLO_PROMPTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_SOLO_ANSWER = 8
_CROWD_PROMPTS = (16, 256)
_CROWD_ANSWERS = (16, 64)
_LONG_PROMPTS = (512, 1024)
_ROUNDS = 8
"""Of reweighting; the loss is Huber's."""
_STALL = 1.0
"""What a step took beyond its prediction counts in proportion up to so many times that, and less beyond: a stall of the
machine is not a cost of the plan, but what slows many steps a little is, and belongs to the kind that it slows."""
_FIRST_FACTOR, _LAST_FACTOR = 2.0, 1.02
"""By which the parts of a front end's cost are varied to come nearer, at first and at last."""
_SHRINKAGE = 0.001
"""Of the weight of all steps together."""
_BLOCK_S = 5.0
"""Steps of so many seconds share the machine's mood; the spread between such blocks is that of short runs."""


# What is asked of the live engine


def phases(config: SchedulerConfig, *, vocab_size: int, seed: int = 0) -> list[Workload]:
    """Loads that together meet the plans of serving: prompts alone in all lengths, and crowds of all sizes, with short and
    with long contexts."""
    longest = config.max_model_len - _SOLO_ANSWER
    prompts: list[WorkloadRequest] = []
    for index, length in enumerate(length for length in _SOLO_PROMPTS if length <= longest):
        prompts += random_requests(1, inputs=Fixed(length), outputs=Fixed(_SOLO_ANSWER), seed=seed * 1000 + index)
    made = [_phase("solo", prompts, num_users=1, seed=seed, vocab_size=vocab_size)]
    half = config.max_model_len // 2

    def crowd(name: str, number: int, inputs: tuple[int, int], num_users: int) -> None:
        low, high = (min(bound, half) for bound in inputs)
        lengths: tuple[Lengths, Lengths] = (Uniform(low, high), Uniform(*(min(bound, half) for bound in _CROWD_ANSWERS)))
        phase_seed = seed * 1000 + len(made) * 100
        requests = random_requests(number, inputs=lengths[0], outputs=lengths[1], seed=phase_seed)
        made.append(_phase(name, requests, num_users=num_users, seed=phase_seed, vocab_size=vocab_size))

    num_users = 2
    while num_users <= config.max_num_seqs:
        crowd(f"crowd-{num_users}", max(24, num_users + num_users // 2), _CROWD_PROMPTS, num_users)
        num_users *= 2
    crowd("long-contexts", 16, _LONG_PROMPTS, min(8, config.max_num_seqs))
    return made


def warm_up(*, vocab_size: int) -> Workload:
    """A request that nothing is learned from."""
    return _phase(
        "warm-up", random_requests(1, inputs=Fixed(8), outputs=Fixed(2)), num_users=1, seed=0, vocab_size=vocab_size
    )


def _phase(name: str, requests: Sequence[WorkloadRequest], *, num_users: int, seed: int, vocab_size: int) -> Workload:
    named = [msgspec.structs.replace(request, request_id=f"{name}-{index}") for index, request in enumerate(requests)]
    return Workload(
        name=name, requests=tuple(closed_loop(named, num_users=num_users, seed=seed)), seed=seed, vocab_size=vocab_size
    )


# What a recording says


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Steps whose ends the loop saw in one turn, nearly always one; where it was late there are several, and only their sum
    is known."""

    sizes: tuple[StepSize, ...]
    duration_us: float
    ended: Nanos


@dataclass(frozen=True, slots=True)
class Entrance:
    """One request on its way to the mind."""

    sent: Nanos
    """By its client."""
    added: Nanos
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Exit:
    """The tokens of one step on their way to clients."""

    ended: Nanos
    num_samples: int
    first_chunks: tuple[tuple[int, Nanos], ...] = ()
    """Of those that were their answers' first: which of the step's samples, from 0, and when its client had it."""


@dataclass(frozen=True, slots=True)
class Observed:
    config: SchedulerConfig
    steps: tuple[TimedSteps, ...]
    entrances: tuple[Entrance, ...]
    exits: tuple[Exit, ...]


def merged(observations: Sequence[Observed]) -> Observed:
    """Several recordings of one engine, made one after another."""
    assert len({one.config for one in observations}) == 1, "one engine has one configuration"
    return Observed(
        observations[0].config,
        tuple(step for one in observations for step in one.steps),
        tuple(entrance for one in observations for entrance in one.entrances),
        tuple(end for one in observations for end in one.exits),
    )


def observe(events: Iterable[Event], runs: Sequence[Run]) -> Observed:
    """What a recording and the runs that made it say together. Raises CheckpointError where the recording has no opening."""
    recording = list(events)
    if not recording or not isinstance(recording[0], Opening):
        raise CheckpointError("a recording begins with its opening, and this one does not")
    planned = [event for event in recording if isinstance(event, Planned)]
    finished = {event.result.step_id: event for event in recording if isinstance(event, Finished)}
    durations = step_durations(planned, finished)
    steps: list[TimedSteps] = []
    for event in planned:
        end = finished.get(event.step_id)
        if end is None:
            continue
        size, duration_us = step_size(event.plan), durations[event.step_id] / 1e3
        if steps and steps[-1].ended == end.now:
            last = steps.pop()
            steps.append(TimedSteps((*last.sizes, size), last.duration_us + duration_us, end.now))
        else:
            steps.append(TimedSteps((size,), duration_us, end.now))
    entrances, exits = _crossings(recording, planned, finished, runs)
    return Observed(recording[0].scheduler, tuple(steps), entrances, exits)


def _crossings(
    recording: Sequence[Event], planned: Sequence[Planned], finished: dict[StepId, Finished], runs: Sequence[Run]
) -> tuple[tuple[Entrance, ...], tuple[Exit, ...]]:
    """Requests have one continuation each and none is refused, so the n-th that was added is the n-th sequence."""
    added = {
        _client_id(str(arrival.request.request_id)): (SequenceId(index), arrival)
        for index, arrival in enumerate(event for event in recording if isinstance(event, Added))
    }
    entrances: list[Entrance] = []
    first_chunks: dict[SequenceId, Nanos] = {}
    for run in runs:
        start = run.facts.start_ns or 0
        for record in run.records:
            if record.request_id not in added:
                continue
            sequence_id, arrival = added[record.request_id]
            sent = Nanos(start + record.sent_ns)
            entrances.append(Entrance(sent, arrival.now, len(arrival.request.prompt_token_ids)))
            if record.first_chunk_ns is not None:
                first_chunks[sequence_id] = Nanos(start + record.first_chunk_ns)
    exits: list[Exit] = []
    for event in planned:
        end = finished.get(event.step_id)
        sampling = [entry.sequence_id for entry in event.plan.scheduled if entry.samples]
        if end is not None and sampling:
            first = [(place, first_chunks.pop(name)) for place, name in enumerate(sampling) if name in first_chunks]
            exits.append(Exit(end.now, len(sampling), tuple(first)))
    return tuple(entrances), tuple(exits)


def _client_id(request_id: str) -> str:
    """The client's own id within the engine's: `cmpl-ID/3`."""
    return request_id.partition("/")[0].partition("-")[2]


# What follows from it


def fit_steps(steps: Sequence[TimedSteps]) -> FittedSteps:
    """Robustly, and of relative errors, since a fast step matters as much as a slow one; then scaled so that the sum of all
    durations is right, since that is what throughput is made of."""
    knots = _reached_knots(sorted(size.num_tokens for step in steps for size in step.sizes))
    rows = [_rising(_row(step.sizes, knots), len(knots)) for step in steps]
    targets = [step.duration_us for step in steps]
    weights = [1.0 / target for target in targets]
    solution: list[float] = []
    for _ in range(_ROUNDS):
        weighted = [[value * weight for value in row] for row, weight in zip(rows, weights, strict=True)]
        solution = non_negative_least_squares(
            [*weighted, *_shrinking(weighted, len(knots))],
            [*(target * weight for target, weight in zip(targets, weights, strict=True)), 0.0, 0.0],
        )
        predicted = [max(_dot(row, solution), 1e-3) for row in rows]
        errors = [abs(target / p - 1.0) for target, p in zip(targets, predicted, strict=True)]
        # Relative to what is predicted, not to what was measured: else the fast steps of a kind count more than the slow.
        weights = [math.sqrt(min(1.0, _STALL / max(e, 1e-9))) / p for e, p in zip(errors, predicted, strict=True)]
    scale = sum(targets) / sum(_dot(row, solution) for row in rows)
    fitted = [value * scale for value in solution]
    rises, (context, pairs, decodes, chunks) = fitted[: len(knots)], fitted[len(knots) :]
    return FittedSteps(
        knots=knots,
        knot_us=tuple(round(value, 3) for value in accumulate(rises)),
        decode_context_us=context,
        chunk_pairs_us=pairs,
        num_decodes_us=decodes,
        num_chunks_us=chunks,
    )


def _reached_knots(ordered: Sequence[int]) -> tuple[int, ...]:
    """Knots with steps on both sides; the curve goes on straight beyond them."""
    reached = [knot for knot in KNOTS if ordered[0] <= knot <= ordered[-1]]
    if not reached:
        return (ordered[0],)
    kept = [reached[0]]
    for knot in reached[1:]:
        if any(kept[-1] < number <= knot for number in ordered):
            kept.append(knot)
    return tuple(kept)


def _row(sizes: Sequence[StepSize], knots: Sequence[int]) -> list[float]:
    row = [0.0] * len(knots)
    sums = [0.0] * 4
    for size in sizes:
        for index, weight in weights_of(size.num_tokens, knots):
            row[index] += weight
        proportional = (size.decode_context, size.chunk_pairs, size.num_decodes, size.num_chunks)
        sums = [total + value for total, value in zip(sums, proportional, strict=True)]
    return [*row, *sums]


def _rising(row: Sequence[float], num_knots: int) -> list[float]:
    """The same row for what the curve rises by from knot to knot: more tokens never take less time."""
    return [*reversed(list(accumulate(reversed(row[:num_knots])))), *row[num_knots:]]


def _shrinking(weighted: Sequence[Sequence[float]], num_knots: int) -> list[list[float]]:
    """Observations that decodes and chunks cost nothing beside their tokens, as much as a few steps would say so. Where a
    recording cannot tell them apart, the curve has it all."""
    rows = []
    for column in (num_knots + 2, num_knots + 3):
        row = [0.0] * len(weighted[0])
        row[column] = _SHRINKAGE * math.sqrt(sum(one[column] ** 2 for one in weighted))
        rows.append(row)
    return rows


def _fitted_us(step: TimedSteps, fitted: FittedSteps) -> float:
    return sum(fitted.step_us(size) for size in step.sizes)


def _dot(row: Sequence[float], solution: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(row, solution, strict=True) if a)


def fit_front_end(entrances: Sequence[Entrance], exits: Sequence[Exit]) -> FrontEndCost:
    """The cost with which a front end, going through what happened, is nearest to the moments that were observed.

    Its parts cannot be read off one by one: a request that comes while chunks go out waits for them.
    The distance is that of absolute errors, so what else a machine does now and then counts little."""
    if not entrances:
        return FrontEndCost()
    waits = [(entrance.added - entrance.sent) / 1e3 for entrance in entrances]
    leaves = [(moment - one.ended) / 1e3 for one in exits for _, moment in one.first_chunks]
    crossings: list[Entrance | Exit] = [*entrances, *exits]
    happened = sorted(crossings, key=lambda one: one.sent if isinstance(one, Entrance) else one.ended)
    cost = FrontEndCost(
        request_us=max(0.0, percentile(sorted(waits), 25)),
        prompt_token_us=0.1,
        chunk_us=10.0,
        latency_us=max(0.0, percentile(sorted(leaves), 25)) if leaves else 0.0,
    )
    best = _distance_us(happened, cost)
    names = FRONT_END_TIMES
    # One part more or less, or one more and another less: what two of them share is found by the second kind of move.
    moves = [(up, down) for up in (*names, "") for down in (*names, "") if up != down]
    factor = _FIRST_FACTOR
    while factor > _LAST_FACTOR:
        is_better = False
        for up, down in moves:
            parts = {name: getattr(cost, name) for name in names}
            for name, scale in ((up, factor), (down, 1 / factor)):
                if name:
                    parts[name] *= scale
            tried = FrontEndCost(**parts)
            distance = _distance_us(happened, tried)
            if distance < best:
                cost, best, is_better = tried, distance, True
        if not is_better:
            factor = math.sqrt(factor)
    return FrontEndCost(**{name: round(getattr(cost, name), 3) for name in names})


def _distance_us(happened: Iterable[Entrance | Exit], cost: FrontEndCost) -> float:
    front_end, total = FrontEnd(cost), 0.0
    for one in happened:
        if isinstance(one, Entrance):
            total += abs(front_end.accept(one.sent, one.num_prompt_tokens) - one.added)
        else:
            first, gap = front_end.deliver_all(one.ended, one.num_samples)
            for place, moment in one.first_chunks:
                total += abs(first + gap * place - moment)
    return total / 1e3


# How well it fits


class Residuals(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of steps: measured over fitted."""

    kind: str
    num_steps: int
    share_of_time: float
    bias: float
    """Sum of measured over sum of fitted durations, less 1."""
    median_error: float
    p90_error: float


def residuals(steps: Sequence[TimedSteps], fitted: FittedSteps) -> list[Residuals]:
    """By what steps do and how many tokens they compute."""
    total = sum(step.duration_us for step in steps)
    groups: dict[str, list[TimedSteps]] = {}
    for step in steps:
        groups.setdefault(_kind(step.sizes[0]), []).append(step)
    found = []
    for kind, members in sorted(groups.items()):
        predicted = [_fitted_us(step, fitted) for step in members]
        errors = sorted(abs(p / step.duration_us - 1.0) for p, step in zip(predicted, members, strict=True))
        time = sum(step.duration_us for step in members)
        found.append(
            Residuals(
                kind=kind,
                num_steps=len(members),
                share_of_time=time / total,
                bias=time / sum(predicted) - 1.0,
                median_error=percentile(errors, 50),
                p90_error=percentile(errors, 90),
            )
        )
    return found


def _kind(size: StepSize) -> str:
    bound = next((bound for bound in (1, 4, 16, 64, 256, 1024) if size.num_tokens <= bound), None)
    what = "decodes" if not size.num_chunks else "prompts" if not size.num_decodes else "both"
    return f"{what}, {'over 1024' if bound is None else f'up to {bound:4}'} tokens"


def speed_spread(steps: Sequence[TimedSteps], fitted: FittedSteps) -> float:
    """How much the machine's speed differs between blocks of some seconds: the standard deviation of the logarithm of
    measured over fitted time."""
    blocks: dict[int, list[float]] = {}
    for step in steps:
        times = blocks.setdefault(int(step.ended / 1e9 / _BLOCK_S), [0.0, 0.0])
        times[0] += step.duration_us
        times[1] += _fitted_us(step, fitted)
    ratios = [math.log(measured / p) for measured, p in blocks.values() if measured > _BLOCK_S * 1e6 / 2]
    if len(ratios) < 2:
        return 0.0
    mean = fmean(ratios)
    return math.sqrt(sum((ratio - mean) ** 2 for ratio in ratios) / (len(ratios) - 1))
