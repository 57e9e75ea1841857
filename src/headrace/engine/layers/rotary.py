"""Rotary position embedding: the frequencies, and the published ways to stretch them beyond the trained length.

Knows formulas; works on plain numbers. Does not know arrays: the ops turn frequencies into cos and sin.

Pair i of a head of `rotary_dim` dimensions d turns by `position * f_i`, with f_i = theta^(-2i/d) (Su et al., "RoFormer",
2021). Two scalings depend on the length (dynamic, longrope). Their original code changes the frequencies while a text
grows, but keys in a cache have been rotated already; so here the length is `max_model_len`, one for the whole engine, and
KV computed in any order stays valid.
"""

import math
from dataclasses import dataclass

from headrace.engine.ops.protocol import Ops, Placement, Rotation
from headrace.specs.model import RopeScaling, RopeSpec


@dataclass(frozen=True, slots=True)
class RotaryFrequencies:
    inverse_frequencies: tuple[float, ...]
    """[rotary_dim / 2]: radians per position."""
    attention_factor: float = 1.0
    """Multiplies cos and sin, hence its square the scores."""


def rotary_frequencies(rope: RopeSpec, *, max_model_len: int) -> RotaryFrequencies:
    match rope.scaling:
        case RopeScaling.NONE:
            return RotaryFrequencies(_plain(rope.theta, rope.rotary_dim))
        case RopeScaling.LINEAR:
            return RotaryFrequencies(tuple(f / rope.factor for f in _plain(rope.theta, rope.rotary_dim)))
        case RopeScaling.DYNAMIC:
            return _dynamic(rope, max_model_len)
        case RopeScaling.LLAMA3:
            return _llama3(rope)
        case RopeScaling.YARN:
            return _yarn(rope)
        case RopeScaling.LONGROPE:
            return _longrope(rope, max_model_len)


def _plain(theta: float, dim: int) -> tuple[float, ...]:
    return tuple(theta ** (-i / dim) for i in range(0, dim, 2))


def _dynamic(rope: RopeSpec, max_model_len: int) -> RotaryFrequencies:
    """Dynamic NTK (bloc97 and emozilla, 2023): a larger theta interpolates slow pairs, keeps fast ones."""
    trained, dim = rope.max_position, rope.rotary_dim
    length = max(max_model_len, trained)
    stretch = rope.factor * length / trained - (rope.factor - 1)
    return RotaryFrequencies(_plain(rope.theta * stretch ** (dim / (dim - 2)), dim))


def _llama3(rope: RopeSpec) -> RotaryFrequencies:
    """Llama 3.1 (Dubey et al., 2024): slow pairs are interpolated, fast ones kept, those between blended."""
    trained = rope.original_max_position
    longest_kept = trained / rope.high_freq_factor
    shortest_scaled = trained / rope.low_freq_factor

    def scale(f: float) -> float:
        wavelength = 2 * math.pi / f
        if wavelength < longest_kept:
            return f
        if wavelength > shortest_scaled:
            return f / rope.factor
        kept = (trained / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
        return (1 - kept) * f / rope.factor + kept * f

    return RotaryFrequencies(tuple(scale(f) for f in _plain(rope.theta, rope.rotary_dim)))


def _yarn(rope: RopeSpec) -> RotaryFrequencies:
    """YaRN (Peng et al., 2023): interpolates by the number of rotations within the trained length, and warms the scores."""
    dim, trained = rope.rotary_dim, rope.original_max_position

    def pair_that_rotates(times: float) -> float:
        return dim * math.log(trained / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_rotates(rope.beta_fast), pair_that_rotates(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as the paper's code: a step, not a division by zero

    def blend(pair: int, f: float) -> float:
        interpolated = min(max((pair - low) / (high - low), 0.0), 1.0)
        return f / rope.factor * interpolated + f * (1 - interpolated)

    frequencies = tuple(blend(pair, f) for pair, f in enumerate(_plain(rope.theta, dim)))
    return RotaryFrequencies(frequencies, _yarn_attention_factor(rope))


def _yarn_attention_factor(rope: RopeSpec) -> float:
    def mscale(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return mscale(rope.mscale) / mscale(rope.mscale_all_dim)
    return mscale(1.0)


def _longrope(rope: RopeSpec, max_model_len: int) -> RotaryFrequencies:
    """LongRoPE (Ding et al., 2024): searched factors per pair, one set up to the trained length and one beyond it."""
    trained = rope.original_max_position
    factors = rope.long_factors if max_model_len > trained else rope.short_factors
    frequencies = tuple(f / s for f, s in zip(_plain(rope.theta, rope.rotary_dim), factors, strict=True))
    if rope.attention_factor is not None:
        return RotaryFrequencies(frequencies, rope.attention_factor)
    stretch = rope.factor if rope.factor > 1 else rope.max_position / trained
    warmth = math.sqrt(1 + math.log(stretch) / math.log(trained)) if stretch > 1 else 1.0
    return RotaryFrequencies(frequencies, warmth)


class Rotary:
    """One of a model's rotary embeddings, ready to be taken at a step's positions."""

    def __init__(self, ops: Ops, rope: RopeSpec, *, max_model_len: int) -> None:
        rotary = rotary_frequencies(rope, max_model_len=max_model_len)
        self._ops = ops
        self._table = ops.rope_table(
            rotary.inverse_frequencies, attention_factor=rotary.attention_factor, num_positions=max_model_len
        )

    def __call__(self, placement: Placement) -> Rotation:
        return self._ops.rotation(self._table, placement)
