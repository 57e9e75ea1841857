"""The public benchmark's client against a serving engine, replayed in steps: what mean TTFT and TPOT are made of.

A closed loop without think time: a request arrives when another ends, whatever time it is. So the schedule is a matter of
steps, not of seconds, and the mean latencies are sums of `COMPONENTS` with the same factors as the steps have: replayed
once, they serve every fit. Between two changes of the batch, decode steps differ in their contexts alone, and are taken
together.

The schedulers of the measured engines are not Headrace's, so this has three of theirs in outline: vLLM (prompts in chunks
beside decodes), SGLang (prompts in steps of their own, before decodes), TensorRT-LLM (whole prompts beside decodes).
`real_scheduler.py` holds the first against Headrace's own scheduler on the same load.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.points import Point
from benchmarks.gpu_fits.recipes import Recipe, recipe

from headrace.base.rng import stream
from headrace.sim.cost.gpu import COMPONENTS, GpuStepModel
from headrace.sim.cost.step_size import StepSize
from headrace.specs.device import device

Array = np.ndarray[Any, Any]
_SHORTEST = 0.8
_ANSWER_RESERVE = {"vllm": 0.5, "sglang": 0.7, "trtllm": 1.0}
"""Share of an answer for which there must be room when a prompt is admitted: guesses, which matter where memory is short."""


@dataclass(slots=True)
class _Request:
    isl: int
    osl: int
    arrived: Array
    done: int = 0
    first: Array | None = None


@dataclass(frozen=True)
class Replayed:
    tpot: Array
    """Mean TPOT, in units of `COMPONENTS`."""
    ttft: Array
    prompt_steps: float
    """Steps with prompts between a request's arrival and its first token, on average."""


def lengths(point: Point, count: int) -> list[tuple[int, int]]:
    """Evenly over [0.8 L, L] by the public client; fixed by the other one where its engine's steps keep in step (SGLang)."""
    if not point.is_public_client and point.backend == "sglang":
        return [(point.isl, point.osl)] * count
    rng = stream(0, point.row)
    return [
        (rng.randint(math.ceil(point.isl * _SHORTEST), point.isl), rng.randint(math.ceil(point.osl * _SHORTEST), point.osl))
        for _ in range(count)
    ]


def kv_capacity(point: Point, model: GpuStepModel, started: Recipe | None = None) -> float:
    """Tokens that the KV cache of one attention rank holds."""
    started = started or recipe(point)
    whole, weights = device(point.device).memory_bytes, model.weight_bytes_per_gpu
    if started.is_share_of_free:
        free = (whole - weights - started.reserved_bytes) * started.memory
    else:
        free = whole * started.memory - started.reserved_bytes - weights
    per_token = model.kv_bytes_per_token_per_gpu
    return max(free / per_token, 2.0 * (point.isl + point.osl)) if per_token else math.inf


class _Engine:
    """One engine's schedule. Who arrives stands at the door until the engine looks, then waits for its step."""

    def __init__(self, point: Point, model: GpuStepModel, started: Recipe) -> None:
        self._model = model
        self._backend = point.backend
        self._recipe = started
        self._capacity = kv_capacity(point, model, started)
        self._reserve = _ANSWER_RESERVE[point.backend]
        self._now = np.zeros(len(COMPONENTS) + 1)  # the last: steps with prompts
        self._step = 0
        self._door: deque[_Request] = deque()
        self._waiting: deque[_Request] = deque()
        self._running: list[tuple[int, int, _Request]] = []  # by the step in which each ends
        self._since_look = 0
        self._waited = 0  # decode steps for which prompts were held back
        self._context = 0
        self._reserved = 0.0
        self._num_made = 0
        self.tpots: list[Array] = []
        self.ttfts: list[Array] = []

    def arrive(self, isl: int, osl: int) -> None:
        self._door.append(_Request(isl, osl, self._now.copy()))

    @property
    def is_busy(self) -> bool:
        return bool(self._door or self._waiting or self._running)

    def turn(self) -> int:
        """One step with prompts, or decode steps until something can change. Returns how many answers ended."""
        interval = self._recipe.steps_between_looks
        if interval == 1 or not self._running or self._since_look >= interval:
            self._look()
        chosen = self._choose_prompts()
        if not chosen:
            return self._decode(self._next_end())
        if self._is_worth_it(chosen):
            return self._prompt_step(chosen)
        steps = min(self._next_end(), self._recipe.max_wait_steps - self._waited)
        self._waited += steps
        return self._decode(steps)

    def _look(self) -> None:
        self._since_look = 0
        self._waiting += self._door
        self._door.clear()

    def _next_end(self) -> int:
        """Decode steps until an answer ends, or until those at the door are seen."""
        steps = self._running[0][0] - self._step
        return min(steps, self._recipe.steps_between_looks - self._since_look) if self._door else steps

    def _choose_prompts(self) -> list[tuple[_Request, int]]:
        started = self._recipe
        budget = started.token_budget - (0 if self._backend == "sglang" else len(self._running))
        room = started.max_num_seqs - len(self._running)
        reserved = self._reserved
        chosen: list[tuple[_Request, int]] = []
        for request in self._waiting:
            need = 0.0 if request.done else self._need(request)
            is_alone = not self._running and not chosen
            if len(chosen) >= room or (reserved + need > self._capacity and need and not is_alone):
                break
            left = request.isl - request.done
            if self._backend == "trtllm" and chosen and left > budget:
                break
            count = min(left, budget)
            if count <= 0:
                break
            reserved += need
            chosen.append((request, count))
            budget -= count
        return chosen

    def _need(self, request: _Request) -> float:
        return request.isl + self._reserve * request.osl

    def _is_worth_it(self, chosen: list[tuple[_Request, int]]) -> bool:
        """Whether these prompts need not wait for more."""
        started = self._recipe
        if not self._running or self._waited >= started.max_wait_steps:
            return True
        tokens = sum(count for _, count in chosen) + len(self._running)
        return tokens >= started.enough_tokens * started.token_budget

    def _prompt_step(self, chosen: list[tuple[_Request, int]]) -> int:
        with_decodes = self._backend != "sglang"
        decodes = len(self._running) if with_decodes else 0
        pairs = sum(count * request.done + count * (count + 1) // 2 for request, count in chosen)
        ending = [request for request, count in chosen if request.done + count == request.isl]
        size = StepSize(
            num_decodes=decodes,
            decode_context=self._context if with_decodes else 0,
            num_chunks=len(chosen),
            chunk_tokens=sum(count for _, count in chosen),
            chunk_context=sum(request.done + count for request, count in chosen),
            chunk_pairs=pairs,
            num_samples=decodes + len(ending),
        )
        self._spend(size, 1, prompts=True)
        self._since_look, self._waited = self._recipe.steps_between_looks, 0
        if with_decodes:
            self._step += 1
            self._context += decodes
        for request, count in chosen:
            if not request.done:
                self._reserved += self._need(request)
            request.done += count
        for request in ending:
            self._waiting.remove(request)
            request.first = self._now.copy()
            self.ttfts.append(request.first - request.arrived)
            self._num_made += 1
            heapq.heappush(self._running, (self._step + request.osl - 1, self._num_made, request))
            self._context += request.isl + 1
        return self._end_answers()

    def _decode(self, num_steps: int) -> int:
        decodes = len(self._running)
        middle = self._context + decodes * (num_steps - 1) // 2
        self._spend(StepSize(num_decodes=decodes, decode_context=middle, num_samples=decodes), num_steps, prompts=False)
        self._step += num_steps
        self._context += decodes * num_steps
        interval = self._recipe.steps_between_looks
        self._since_look += num_steps
        if not self._door:
            self._since_look %= interval  # it looked, and saw nobody
        return self._end_answers()

    def _spend(self, size: StepSize, num_steps: int, *, prompts: bool) -> None:
        self._now[:-1] += np.array(self._model.components(size)) * num_steps
        self._now[-1] += prompts

    def _end_answers(self) -> int:
        ended = 0
        while self._running and self._running[0][0] <= self._step:
            _, _, request = heapq.heappop(self._running)
            assert request.first is not None
            self._context -= request.isl + request.osl
            self._reserved -= self._need(request)
            if request.osl > 1:
                self.tpots.append((self._now - request.first) / (request.osl - 1))
            ended += 1
        return ended


def replay(point: Point, model: GpuStepModel, started: Recipe | None = None) -> Replayed:
    """One attention rank with its share of the users; in attention-DP the others do alike. `started`: how, if not as its
    launch script says."""
    started = started or recipe(point)
    users = max(1, math.ceil(point.concurrency / point.parallel.data_parallel_size))
    draws = iter(lengths(point, users * started.requests_per_user))
    engine = _Engine(point, model, started)
    for _ in range(users):
        engine.arrive(*next(draws))
    while engine.is_busy:
        for _ in range(engine.turn()):
            drawn = next(draws, None)
            if drawn is not None:
                engine.arrive(*drawn)
    tpot, ttft = np.mean(engine.tpots, axis=0), np.mean(engine.ttfts, axis=0)
    return Replayed(tpot[:-1], ttft[:-1], float(ttft[-1]))
