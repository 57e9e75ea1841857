"""TTFT beyond the steps: what the front end, the client and the stream add, fitted by backend, architecture and client.

    TTFT = a + k TPOT + s (replayed wait and prompts) + hp (steps with prompts x operations) + u (prompt's tokens)

`a` is what every request costs on its way in and its first token on its way out, `k` the steps by which a token is seen
later than it is computed (a step in flight when the request comes, one more where results are read while the next step
runs), `hp` launching the operations of a step that is not replayed from a graph, and `u` reading and tokenising a
prompt, which is done before it can wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.points import Point
from benchmarks.gpu_fits.tuning import MEAN_LENGTH, Runs
from scipy.optimize import least_squares

from headrace.sim.cost.shape import DenseMlp, LatentAttention, LinearAttention, ModelShape
from headrace.sim.cost_model import known_shape
from headrace.specs.device import device

Array = np.ndarray[Any, Any]
TERMS = ("a_ms", "k", "s", "hp_ms", "u_ms")
"""ms; steps; a factor; ms for each operation of a step with prompts; ms for each token of a prompt."""
CENTRES = np.log([20.0, 2.0, 1.0, 0.01, 0.004])
SPREADS = np.array([1.0, 0.8, 0.15, 1.0, 1.0])
GROUP_SPREADS = np.array([1.0, 0.8, 0.15, 0.7, 0.7])
BETWEEN_RUNS = 0.3
WITHIN_RUNS = 0.22


def group(point: Point) -> str:
    return f"{point.backend}|{device(point.device).architecture}|{'public' if point.is_public_client else 'other'} client"


def num_operations(shape: ModelShape) -> int:
    """Kernels of one step with prompts, near enough: norms, projections, rotation, cache and attention; an MLP's three;
    around experts the router, sorting, two products and what puts them together; latent attention's compressions and
    their norms; a sparse indexer; a linear attention's convolution, gates and state."""
    total = 0
    for group in shape.layers:
        attention = group.attention
        each = 7
        if isinstance(attention, LatentAttention):
            each = 24 if attention.indexer_heads else 16
        elif isinstance(attention, LinearAttention):
            each = 14
        each += 4 if isinstance(group.mlp, DenseMlp) else 14
        total += group.count * each
    return total


def quantities(points: Sequence[Point], steps_ms: Array, tpot_ms: Array, prompt_steps: Array) -> Array:
    """[points, TERMS]: what each term's factor is multiplied with."""
    operations = {model: num_operations(known_shape(model)) for model in {point.model for point in points}}
    of_point = np.array([operations[point.model] for point in points])
    tokens = np.array([MEAN_LENGTH * point.isl for point in points])
    return np.column_stack([np.ones(len(points)), tpot_ms, steps_ms, prompt_steps * of_point, tokens])


@dataclass(frozen=True)
class FirstToken:
    shared: Array
    """Logarithms of the factors, in the order of `TERMS`."""
    groups: dict[str, Array]
    """Each group's deviations from them."""

    def predict(self, points: Sequence[Point], quantities: Array) -> Array:
        """TTFT in ms."""
        nothing = np.zeros(len(CENTRES))
        logs = np.array([self.shared + self.groups.get(group(point), nothing) for point in points])
        return np.asarray((np.exp(logs) * quantities).sum(axis=1))


def fit_first_token(points: Sequence[Point], quantities: Array) -> FirstToken:
    names = sorted({group(point) for point in points})
    which = np.array([names.index(group(point)) for point in points])
    target = np.log([point.ttft_ms for point in points])
    runs, count = Runs.of(points), len(CENTRES)

    def residuals(x: Array) -> Array:
        shared, groups = x[:count], x[count:].reshape(len(names), count)
        found = (np.exp(shared + groups[which]) * quantities).sum(axis=1)
        data = runs.residuals(np.log(found) - target, between=BETWEEN_RUNS, within=WITHIN_RUNS)
        return np.concatenate([data, (shared - CENTRES) / SPREADS, (groups / GROUP_SPREADS).ravel()])

    start = np.concatenate([CENTRES, np.zeros(count * len(names))])
    found = least_squares(residuals, start, max_nfev=40).x
    groups = found[count:].reshape(len(names), count)
    return FirstToken(found[:count], {name: groups[i] for i, name in enumerate(names)})
