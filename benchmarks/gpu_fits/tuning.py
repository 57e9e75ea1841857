"""Fits the factors of `sim/cost/gpu.Tuning` to measured TPOT, and splits points for honest tests.

A fit is of logarithms under a soft L1 loss, with log-normal priors that shrink every factor to the kernels as measured: one
set for all backends and a deviation for each. Split by run, by device or by model family, never by row.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.points import Point
from scipy.optimize import least_squares

from headrace.sim.cost.curves import curves_of
from headrace.sim.cost.gpu import COMPONENTS, GpuStepModel, Tuning
from headrace.sim.cost.step_size import StepSize
from headrace.sim.cost_model import known_shape
from headrace.specs.device import device

Array = np.ndarray[Any, Any]
BACKENDS = ("vllm", "sglang", "trtllm")
MEAN_LENGTH = 0.9
"""The public client draws lengths evenly over 0.8 to 1 of the nominal ones."""
TOKEN_BUDGET = 8192
"""Most prompt tokens of a step; not recorded with the points, and of little effect."""
PRIOR_CENTRES = np.log([500.0, 2.0, 1.0, 0.7, 1.0, 1.0, 0.8, 1.0, 1.0, 1.0, 50.0])
PRIOR_SPREADS = np.array([0.5, 0.7, 0.1, 0.3, 0.1, 0.15, 0.2, 0.15, 0.3, 0.3, 0.7])
"""Of the logarithms of the factors that all backends share."""
BACKEND_SPREADS = np.array([0.4, 0.5, 0.06, 0.4, 0.06, 0.1, 0.2, 0.1, 0.2, 0.25, 0.5])
BETWEEN_RUNS = 0.11
WITHIN_RUNS = 0.08
"""Standard deviations of logarithms of TPOT: how much runs differ from one another, and points of a run among themselves."""


def step_model(point: Point) -> GpuStepModel:
    return GpuStepModel(
        shape=known_shape(point.model),
        device=device(point.device),
        curves=curves_of(point.device),
        parallel=point.parallel,
        precision=point.precision,
    )


def decode_size(point: Point, num_decodes: int) -> StepSize:
    """A step in the middle of answers."""
    context = round(MEAN_LENGTH * (point.isl + point.osl / 2))
    return StepSize(num_decodes=num_decodes, decode_context=num_decodes * context, num_samples=num_decodes)


def prompt_chunks(num_tokens: int) -> list[tuple[int, int]]:
    """(tokens before, tokens) of each chunk of a prompt."""
    return [(begin, min(TOKEN_BUDGET, num_tokens - begin)) for begin in range(0, num_tokens, TOKEN_BUDGET)]


def chunk_size(before: int, count: int, decodes: StepSize | None, *, samples: bool) -> StepSize:
    pairs = count * before + count * (count + 1) // 2
    base = decodes or StepSize()
    return StepSize(
        num_decodes=base.num_decodes, decode_context=base.decode_context, num_chunks=1, chunk_tokens=count,
        chunk_context=before + count, chunk_pairs=pairs, num_samples=base.num_samples + samples,
    )  # fmt: skip


def tpot_components(point: Point) -> Array:
    """The mean TPOT as a sum over `COMPONENTS`: decode steps, and the prompts of others that come between them."""
    model = step_model(point)
    per_rank = max(1, math.ceil(point.concurrency / point.parallel.data_parallel_size))
    decoding = decode_size(point, per_rank)
    total = np.array(model.components(decoding))
    others = (per_rank - 1) / max(1.0, MEAN_LENGTH * point.osl - 1)
    chunks = prompt_chunks(round(MEAN_LENGTH * point.isl))
    for index, (before, count) in enumerate(chunks):
        last = index == len(chunks) - 1
        if point.backend == "sglang":  # prompts have steps of their own
            extra = np.array(model.components(chunk_size(before, count, None, samples=last)))
        else:
            mixed = chunk_size(before, count, decoding, samples=last)
            extra = np.array(model.components(mixed)) - np.array(model.components(decoding))
        total = total + others * extra
    return total


@dataclass(frozen=True)
class Fit:
    shared: Array
    """Logarithms of the factors in the order of `COMPONENTS`."""
    deviations: dict[str, Array]

    def factors(self, backend: str) -> Array:
        return np.exp(self.shared + self.deviations[backend])

    def tuning(self, backend: str | None) -> Tuning:
        factors = np.exp(self.shared) if backend is None else self.factors(backend)
        named = dict(zip(COMPONENTS, (float(f"{value:.4g}") for value in factors), strict=True))
        return Tuning(
            host_us=named.pop("host"), host_us_per_sequence=named.pop("host_per_sequence"),
            launch_us_per_layer=named.pop("launch"), **named,
        )  # fmt: skip


UNFITTED = Fit(PRIOR_CENTRES, {backend: np.zeros(len(COMPONENTS)) for backend in BACKENDS})


@dataclass(frozen=True)
class Runs:
    """Which points were measured together."""

    index: Array
    sizes: Array

    @staticmethod
    def of(points: Sequence[Point]) -> "Runs":
        names: dict[str, int] = {}
        index = np.array([names.setdefault(point.run, len(names)) for point in points])
        return Runs(index, np.bincount(index).astype(float))

    def residuals(self, logs: Array, *, between: float, within: float) -> Array:
        """Of a random effect for each run: a run's mean counts once, its points by how they differ from it."""
        means = np.bincount(self.index, weights=logs) / self.sizes
        inside = (logs - means[self.index]) / within
        outside = means / np.sqrt(between**2 + within**2 / self.sizes)
        return np.concatenate([soft(inside), soft(outside)])


def fit(points: Sequence[Point], components: Array) -> Fit:
    """`components`: [points, COMPONENTS] of TPOT in microseconds."""
    count = len(COMPONENTS)
    which = np.array([BACKENDS.index(point.backend) for point in points])
    target = np.log([point.tpot_ms * 1e3 for point in points])
    runs = Runs.of(points)

    def residuals(x: Array) -> Array:
        shared, deviations = x[:count], x[count:].reshape(len(BACKENDS), count)
        factors = np.exp(shared + deviations[which])
        logs = np.log((components * factors).sum(axis=1)) - target
        data = runs.residuals(logs, between=BETWEEN_RUNS, within=WITHIN_RUNS)
        return np.concatenate([data, (shared - PRIOR_CENTRES) / PRIOR_SPREADS, (deviations / BACKEND_SPREADS).ravel()])

    start = np.concatenate([PRIOR_CENTRES, np.zeros(count * len(BACKENDS))])
    found = least_squares(residuals, start, max_nfev=40).x
    deviations = found[count:].reshape(len(BACKENDS), count)
    return Fit(found[:count], {backend: deviations[i] for i, backend in enumerate(BACKENDS)})


def soft(residuals: Array) -> Array:
    """Residuals whose squares are the soft L1 loss."""
    return np.sign(residuals) * np.sqrt(2.0 * (np.sqrt(1.0 + residuals**2) - 1.0))


def predict(found: Fit, points: Sequence[Point], components: Array) -> Array:
    """TPOT in milliseconds."""
    factors = np.array([found.factors(point.backend) for point in points])
    return (components * factors).sum(axis=1) / 1e3


# Splits


def folds(points: Sequence[Point], by: str, *, num_folds: int = 5, seed: int = 0) -> Iterator[Array]:
    """Masks of held-out points: runs dealt into folds, or one device or model family after another."""
    names = np.array([getattr(point, by) for point in points])
    groups = sorted(set(names))
    if by != "run":
        for group in groups:
            yield names == group
        return
    order = np.random.default_rng(seed).permutation(len(groups))
    for fold in range(num_folds):
        yield np.isin(names, [groups[index] for index in order[fold::num_folds]])
