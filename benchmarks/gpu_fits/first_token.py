"""TTFT beyond the steps: what the front end, the client and the stream add, fitted by backend and architecture.

    TTFT = a + k TPOT + s (replayed wait and prompts) + hp (steps with prompts x layers)

`k` behaves like a stream interval: the first token that a client sees comes with the k-th. That is a reading of the numbers,
not a recorded fact, so a rehearsal's own default is none of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.points import Point
from benchmarks.gpu_fits.tuning import Runs
from scipy.optimize import least_squares

from headrace.sim.cost_model import known_shape
from headrace.specs.device import device

Array = np.ndarray[Any, Any]
CENTRES = np.log([20.0, 3.0, 1.0, 0.03])
"""a in ms, k in tokens, s, hp in ms for each layer of a step with prompts."""
SPREADS = np.array([1.0, 0.8, 0.15, 1.0])
GROUP_SPREADS = np.array([1.0, 0.8, 0.15, 0.7])
BETWEEN_RUNS = 0.3
WITHIN_RUNS = 0.22


def group(point: Point) -> str:
    return f"{point.backend}|{device(point.device).architecture}|{'public' if point.is_public_client else 'other'} client"


@dataclass(frozen=True)
class FirstToken:
    shared: Array
    groups: dict[str, Array]

    def predict(self, points: Sequence[Point], steps_ms: Array, tpot_ms: Array, prompt_steps: Array) -> Array:
        nothing = np.zeros(len(CENTRES))
        logs = np.array([self.shared + self.groups.get(group(point), nothing) for point in points])
        return _ttft(np.exp(logs), steps_ms, tpot_ms, prompt_steps * _layers(points))


def _ttft(factors: Array, steps_ms: Array, tpot_ms: Array, prompt_layers: Array) -> Array:
    a, k, s, hp = factors.T
    return np.asarray(a + k * tpot_ms + s * steps_ms + hp * prompt_layers)


def _layers(points: Sequence[Point]) -> Array:
    counts = {model: known_shape(model).num_layers for model in {point.model for point in points}}
    return np.array([counts[point.model] for point in points])


def fit_first_token(points: Sequence[Point], steps_ms: Array, tpot_ms: Array, prompt_steps: Array) -> FirstToken:
    names = sorted({group(point) for point in points})
    which = np.array([names.index(group(point)) for point in points])
    target = np.log([point.ttft_ms for point in points])
    runs, count = Runs.of(points), len(CENTRES)
    prompt_layers = prompt_steps * _layers(points)

    def residuals(x: Array) -> Array:
        shared, groups = x[:count], x[count:].reshape(len(names), count)
        found = _ttft(np.exp(shared + groups[which]), steps_ms, tpot_ms, prompt_layers)
        data = runs.residuals(np.log(found) - target, between=BETWEEN_RUNS, within=WITHIN_RUNS)
        return np.concatenate([data, (shared - CENTRES) / SPREADS, (groups / GROUP_SPREADS).ravel()])

    start = np.concatenate([CENTRES, np.zeros(count * len(names))])
    found = least_squares(residuals, start, max_nfev=40).x
    groups = found[count:].reshape(len(names), count)
    return FirstToken(found[:count], {name: groups[i] for i, name in enumerate(names)})
