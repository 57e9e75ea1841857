"""TTFT of prompts that one pool computes and another answers, beside queues, steps and links: fitted by backend.

    TTFT = a + k TPOT + s (rehearsed)

`a` is what two front ends, the router between them and a transfer's set-up cost each request; `k` the tokens that a
stream's first chunk waits for. Launch scripts of the public benchmark give such fleets stream intervals of ten to a
hundred tokens, and a replica that begins with another's KV has no first step of its own after which something would go
out at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.gpu_fits.tuning import soft
from scipy.optimize import least_squares

Array = np.ndarray[Any, Any]
TERMS = ("a_ms", "k", "s")
CENTRES = np.log([40.0, 15.0, 1.0])
SPREADS = np.array([0.7, 0.7, 0.15])
GROUP_SPREADS = np.array([0.5, 0.5, 0.1])
NOISE = 0.25
"""Of the logarithm of one point's TTFT; a run's points count as much as so many independent ones as the loss makes them."""


@dataclass(frozen=True)
class Handover:
    shared: Array
    """Logarithms, in the order of `TERMS`."""
    groups: dict[str, Array]
    """By backend, deviations from them."""

    def of(self, backend: str) -> Array:
        return np.exp(self.shared + self.groups.get(backend, np.zeros(len(TERMS))))

    def predict(self, backends: Sequence[str], tpot_ms: Array, rehearsed_ms: Array) -> Array:
        """TTFT in ms."""
        factors = np.array([self.of(backend) for backend in backends])
        return np.asarray((factors * _quantities(tpot_ms, rehearsed_ms)).sum(axis=1))


def _quantities(tpot_ms: Array, rehearsed_ms: Array) -> Array:
    return np.column_stack([np.ones(len(tpot_ms)), tpot_ms, rehearsed_ms])


def fit_handover(backends: Sequence[str], tpot_ms: Array, rehearsed_ms: Array, measured_ms: Array) -> Handover:
    names = sorted(set(backends))
    which = np.array([names.index(backend) for backend in backends])
    count, columns = len(TERMS), _quantities(tpot_ms, rehearsed_ms)

    def residuals(x: Array) -> Array:
        shared, groups = x[:count], x[count:].reshape(len(names), count)
        found = (np.exp(shared + groups[which]) * columns).sum(axis=1)
        data = soft(np.log(found / measured_ms) / NOISE)
        return np.concatenate([data, (shared - CENTRES) / SPREADS, (groups / GROUP_SPREADS).ravel()])

    found = least_squares(residuals, np.concatenate([CENTRES, np.zeros(count * len(names))]), max_nfev=60).x
    groups = found[count:].reshape(len(names), count)
    return Handover(found[:count], {name: groups[i] for i, name in enumerate(names)})
