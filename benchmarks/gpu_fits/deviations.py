"""What deployments have in common beside physics: a Gaussian process over the residuals' logarithms.

A deployment's kernels, flags and version are not in the rows, but points that share a model, a backend or a device share
some of them. The covariance of two residuals is a sum over what they share, each part with a level and slopes over the
logarithms of the load and of the prompts' length; conditioning on measured points is the best linear prediction (BLUP;
kriging). Points of the same run, where a deployment was measured, correct it most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.points import Point
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from headrace.specs.device import device

Array = np.ndarray[Any, Any]

Sharing = dict[str, Callable[[Point], str]]
SHARED: Sharing = {
    "backend and architecture": lambda p: f"{p.backend}|{device(p.device).architecture}",
    "family": lambda p: p.family,
    "family and backend": lambda p: f"{p.family}|{p.backend}",
    "family, precision and device": lambda p: f"{p.family}|{p.run.split('|')[3]}|{p.device}",
    "cell": lambda p: f"{p.family}|{p.backend}|{device(p.device).architecture}|{p.run.split('|')[3]}",
    "run": lambda p: p.run,
    "run and layout": lambda p: f"{p.run}|{p.parallel}",
    "run and lengths": lambda p: f"{p.run}|{p.isl}|{p.osl}",
}


@dataclass(frozen=True)
class Deviations:
    """Variances: for each way of sharing a level and slopes over load and length, and what nothing shares."""

    levels: Array
    load_slopes: Array
    length_slopes: Array
    noise: float

    def covariance(self, left: Sequence[Point], right: Sequence[Point]) -> Array:
        loads, lengths = np.outer(_load(left), _load(right)), np.outer(_length(left), _length(right))
        total = np.zeros((len(left), len(right)))
        for index, name in enumerate(SHARED.values()):
            codes: dict[str, int] = {}
            rows = np.array([codes.setdefault(name(point), len(codes)) for point in left])
            columns = np.array([codes.setdefault(name(point), len(codes)) for point in right])
            same = rows[:, None] == columns[None, :]
            total += same * (self.levels[index] + self.load_slopes[index] * loads + self.length_slopes[index] * lengths)
        return total

    def condition(self, known: Sequence[Point], residuals: Array, asked: Sequence[Point]) -> tuple[Array, Array]:
        """Means and covariances at `asked`, given the residuals at `known`; without what nothing shares."""
        inside = cho_factor(self.covariance(known, known) + self.noise * np.eye(len(known)), lower=True)
        across = self.covariance(asked, known)
        solved = cho_solve(inside, np.column_stack([residuals, across.T]))
        return across @ solved[:, 0], self.covariance(asked, asked) - across @ solved[:, 1:]

    def deviations(self, covariance: Array) -> Array:
        """Of single measurements."""
        return np.sqrt(np.maximum(np.diag(covariance), 0.0) + self.noise)

    def anchor(self, mean: Array, covariance: Array, at: Array, residuals: Array) -> tuple[Array, Array]:
        """The same once the residuals at some of the places are known."""
        inside = covariance[np.ix_(at, at)] + self.noise * np.eye(len(at))
        gain = np.linalg.solve(inside, covariance[at]).T
        return mean + gain @ (residuals - mean[at]), covariance - gain @ covariance[at]


def learn(points: Sequence[Point], residuals: Array, *, max_points: int = 500, seed: int = 0) -> Deviations:
    """The variances that make the residuals most likely, on a sample of whole runs."""
    chosen = _whole_runs(points, max_points, seed)
    sample = [points[i] for i in chosen]
    bound = 3.0 * float(np.median(np.abs(residuals)) * 1.4826)
    values = np.clip(residuals[chosen], -bound, bound)
    loads, lengths = np.outer(_load(sample), _load(sample)), np.outer(_length(sample), _length(sample))
    masks = []
    for name in SHARED.values():
        names = np.array([name(p) for p in sample])
        masks.append((names[:, None] == names[None, :]).astype(float))
    count, eye = len(SHARED), np.eye(len(sample))
    scale = float(np.var(values))

    def loss(x: Array) -> tuple[float, Array]:
        variances = scale * np.exp(x)
        parts = [*masks, *(mask * loads for mask in masks), *(mask * lengths for mask in masks), eye]
        covariance = sum(v * part for v, part in zip(variances, parts, strict=True))
        factor = cho_factor(covariance + 1e-4 * scale * eye, lower=True)
        weighted = cho_solve(factor, values)
        inverse = cho_solve(factor, eye)
        inside = inverse - np.outer(weighted, weighted)
        value = 0.5 * float(values @ weighted) + float(np.log(np.diag(factor[0])).sum())
        gradient = np.array([0.5 * v * float((inside * part).sum()) for v, part in zip(variances, parts, strict=True)])
        prior = 0.5 * ((x - _PRIOR) ** 2).sum() / 4.0
        return value + prior, gradient + (x - _PRIOR) / 4.0

    _PRIOR = np.log(np.array([0.08] * count + [0.01] * count + [0.02] * count + [0.1]))
    bounds = [(centre - 6.0, centre + 4.0) for centre in _PRIOR]
    found = np.exp(minimize(loss, _PRIOR, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 25}).x) * scale
    return Deviations(found[:count], found[count : 2 * count], found[2 * count : 3 * count], float(found[-1]))


def _load(points: Sequence[Point]) -> Array:
    """Decades of users, from 30."""
    return np.log10([point.concurrency / 30 for point in points])


def _length(points: Sequence[Point]) -> Array:
    """Decades of prompt tokens, from 2,000."""
    return np.log10([point.isl / 2000 for point in points])


def _whole_runs(points: Sequence[Point], most: int, seed: int) -> list[int]:
    runs: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        runs.setdefault(point.run, []).append(index)
    names = sorted(runs)
    chosen: list[int] = []
    for place in np.random.default_rng(seed).permutation(len(names)):
        members = runs[names[place]]
        if len(chosen) + len(members) <= most:
            chosen += members
    return chosen
