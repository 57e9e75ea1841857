"""What measured deployments showed beside the kernels (`gpu_deployments.json`): by how much they were slower or faster than
the model, and how far the model was off where it had not seen them. Knows names; knows no formula.
"""

import math
from functools import cache
from importlib import resources

import msgspec

from headrace.sim.front_end import FrontEndCost


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """Of the logarithm of a step's time over the model's."""

    level: float
    """At 30 sequences."""
    slope: float
    """More of it for each decade of sequences."""
    num_points: int
    """Measured points that it rests on."""

    def factor(self, num_sequences: int) -> float:
        """On the time of a step of so many; a load beyond those that were measured counts as the nearest of them."""
        return math.exp(self.level + self.slope * math.log10(min(max(num_sequences, 1), 512) / 30))


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """What public benchmark runs showed before a first token, beside steps (`benchmarks/gpu_fits/first_token.py`)."""

    a_ms: float
    """Of a request's time, whatever it asks."""
    k: float
    """Steps by which a token is seen later than it was computed."""
    s: float
    """On wait and prompts, as the steps' model has them."""
    hp_ms: float
    """For each operation of a step with prompts."""
    u_ms: float
    """For each token of a prompt."""


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What measured fleets showed before a first token whose prompt another replica had computed, beside steps and links
    (`benchmarks/gpu_fits/handover.py`)."""

    a_ms: float
    """Of a request's time, whatever it asks."""
    k: float
    """Steps by which a token is seen later than it was computed."""
    s: float
    """On what is rehearsed."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    half_widths_90: dict[str, float]
    deployments: dict[str, Deviation]
    first_token: dict[str, FirstToken]
    handover: dict[str, Handover]


@cache
def _document() -> _Document:
    content = resources.files("headrace.sim.cost").joinpath("gpu_deployments.json").read_bytes()
    return msgspec.json.decode(content, type=_Document)


def deviation_of(model: str, backend: str, architecture: str, narrowest_dtype: str) -> Deviation | None:
    """None where nothing like it was measured.

    >>> deviation_of("no-such-model", "vllm", "hopper", "fp8") is None
    True
    """
    label = _LABELS.get(narrowest_dtype, narrowest_dtype)
    return _document().deployments.get(f"{model}|{backend}|{architecture}|{label}")


def front_end_of(backend: str, architecture: str) -> FrontEndCost | None:
    """As public benchmark runs of the backend showed it; None where there were none. Launches (`hp_ms`) are part of a step,
    and `s` corrects other engines' schedules: neither is in it."""
    found = _document().first_token.get(f"{backend}|{architecture}|public client")
    if found is None:
        return None
    return FrontEndCost(latency_us=found.a_ms * 1e3, prompt_token_us=found.u_ms * 1e3, first_chunk_tokens=1 + round(found.k))


def front_end_after_handover(backend: str) -> FrontEndCost | None:
    """As fleets of the backend showed that answer prompts which others have computed, on the way in and out together;
    None where there were none. `s` corrects other engines' schedules and is not in it."""
    found = _document().handover.get(backend)
    return None if found is None else FrontEndCost(latency_us=found.a_ms * 1e3, first_chunk_tokens=1 + round(found.k))


_LABELS = {"bfloat16": "bf16", "fp8_block": "fp8", "nvfp4": "fp4", "mxfp4": "fp4"}


def half_width_90(*, has_measured_model: bool, has_measured_device: bool) -> float:
    """How far the logarithm of a predicted TPOT may be off, nine times in ten: by split conformal prediction over whole
    runs, devices or model families that were held out."""
    widths = _document().half_widths_90
    if not has_measured_model:
        return max(widths["tpot, family"], widths["tpot, device"])
    return widths["tpot, run"] if has_measured_device else max(widths["tpot, run"], widths["tpot, device"])


@cache
def measured_backends() -> tuple[str, ...]:
    return tuple(sorted({name.split("|")[0] for name in _document().first_token}))


@cache
def measured_models() -> frozenset[str]:
    return frozenset(name.split("|")[0] for name in _document().deployments)
