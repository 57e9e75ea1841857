"""How the next token is chosen, as one request asked. Validated once, here, at construction.

Knows ranges and meanings. Does not know the vocabulary's words, text or tensors; `stop` strings therefore live with the
detokeniser, and here are only their ids. Field names are the field's own (OpenAI, vLLM).
"""

import math
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from headrace.base.errors import InvalidRequestError

MAX_LOGPROBS = 20
"""OpenAI's own limit on `top_logprobs`."""

_INT32_MAX = 2**31 - 1
_MAX_LENGTH_PENALTY = 100.0


MAX_PATTERN_SIZE = 1024
"""Longest repeated pattern that is looked for."""


class RepetitionDetection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When an answer counts as stuck: its end is one pattern of tokens, several times in a row."""

    max_pattern_size: int
    """Tokens of the longest pattern."""
    min_pattern_size: int = 1
    """Tokens of the shortest pattern."""
    min_count: int = 2
    """How often in a row the pattern must stand there, at least 2."""

    def __post_init__(self) -> None:
        _integer("repetition_detection.max_pattern_size", self.max_pattern_size, 1, MAX_PATTERN_SIZE)
        _integer(
            "repetition_detection.min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size,
            limit_name="max_pattern_size",
        )  # fmt: skip
        _integer("repetition_detection.min_count", self.min_count, 2, MAX_PATTERN_SIZE)


class EarlyStopping(StrEnum):
    """When a beam search may end before every beam has reached `max_tokens`."""

    WHEN_FULL = "when_full"
    """As soon as `width` answers have ended. The API's `true`."""
    WHEN_BEHIND = "when_behind"
    """When no running beam, were it to end now, would be better than the worst of `width` answers. The API's `false`."""
    WHEN_HOPELESS = "when_hopeless"
    """When no running beam can become better than the worst of `width` answers at any length. The API's `never`."""


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The most probable answers instead of drawn ones, as `transformers` searches for them (`num_beams`)."""

    width: int
    """Beams that are kept at every length: the API's `n`, or `best_of`."""
    length_penalty: float = 1.0
    """A score is the sum of log-probabilities divided by the number of tokens to this power: above 0 favours long
    answers."""
    early_stopping: EarlyStopping = EarlyStopping.WHEN_BEHIND

    def __post_init__(self) -> None:
        _integer("n", self.width, 1, _INT32_MAX)
        _real("length_penalty", self.length_penalty, -_MAX_LENGTH_PENALTY, _MAX_LENGTH_PENALTY)


class ThinkingBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Most tokens of reasoning; then the marks that end it are chosen whatever the model would say."""

    max_tokens: int
    closing_token_ids: tuple[int, ...]
    """What is written to end the reasoning, at least one token."""
    other_closing_token_ids: tuple[tuple[int, ...], ...] = ()
    """What ends it as well, where the model writes it."""
    opening_token_ids: tuple[tuple[int, ...], ...] = ()
    """What begins reasoning where an answer begins with it."""
    num_spent: int = -1
    """Tokens of reasoning that the prompt ends with; -1: the prompt has begun none."""

    def __post_init__(self) -> None:
        _integer("thinking_token_budget", self.max_tokens, 0, _INT32_MAX)
        marks = (self.closing_token_ids, *self.other_closing_token_ids, *self.opening_token_ids)
        assert all(marks), "marks have tokens"


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable; raises InvalidRequestError naming the field where a value is out of range."""

    max_tokens: int
    """Most tokens to generate, at least 1. The caller has already cut it to what `max_model_len` leaves."""
    min_tokens: int = 0
    """End-of-text and stop tokens cannot be chosen before this many."""
    temperature: float = 1.0
    """0 is greedy: the most probable token, the lowest id among equals."""
    top_p: float = 1.0
    """Keep the smallest set of tokens whose probability reaches this; in (0, 1]."""
    top_k: int = 0
    """Keep this many; 0 (or -1) keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as probable as the best; in [0, 1]."""
    seed: int = 0
    """With the sample index and the position it decides every draw: nothing else does."""
    repetition_penalty: float = 1.0
    """> 0; divides positive and multiplies negative logits of tokens in prompt or answer (CTRL, Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens already in the answer; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the answer; in [-2, 2]."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these token ids; values in [-100, 100]."""
    logprobs: int = -1
    """How many alternatives to report beside the chosen token's own log-probability; -1 reports nothing."""
    stop_token_ids: tuple[int, ...] = ()
    """Generation ends after any of these, beside the model's own end-of-text tokens."""
    ignore_eos: bool = False
    """Do not end at the model's end-of-text tokens."""
    allowed_token_ids: tuple[int, ...] = ()
    """Only these tokens can be chosen; empty: all."""
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that the answer does not hold: the last of each cannot follow the others."""
    logprob_token_ids: tuple[int, ...] = ()
    """With `logprobs`: report these tokens as the alternatives, in this order, in place of the most probable ones."""
    prompt_logprobs: int = -1
    """How many alternatives to report at each position of the prompt beside its own token; -1 reports nothing."""
    repetition_detection: RepetitionDetection | None = None
    """End an answer that is stuck in a repetition; None does not look."""
    thinking_budget: ThinkingBudget | None = None
    """How long the model may reason; None: as long as it likes."""
    beam_search: BeamSearch | None = None
    """Search instead of drawing: temperature, top_p, top_k, min_p and seed then play no part."""

    def __post_init__(self) -> None:
        _integer("max_tokens", self.max_tokens, 1, _INT32_MAX)
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens, limit_name="max_tokens")
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_below=True)
        _integer("top_k", self.top_k, -1, _INT32_MAX)
        _real("min_p", self.min_p, 0.0, 1.0)
        _integer("seed", self.seed, -(2**63), 2**64 - 1)
        _real("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_below=True)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _integer("logprobs", self.logprobs, -1, MAX_LOGPROBS)
        _integer("prompt_logprobs", self.prompt_logprobs, -1, MAX_LOGPROBS)
        for name, ids in self._token_ids():
            for token in ids:
                _integer(name, token, 0, _INT32_MAX)
        self._check_beam_search()
        if any(not ids for ids in self.bad_words_token_ids):
            raise InvalidRequestError("bad_words holds a word without tokens", param="bad_words")
        for token, bias in self.logit_bias.items():
            _integer("logit_bias", token, 0, _INT32_MAX, part="its token ids")
            _real("logit_bias", bias, -100.0, 100.0, part=f"the bias of token {token}")

    def _check_beam_search(self) -> None:
        if self.beam_search is None:
            return
        for name, is_given in (
            ("repetition_detection", self.repetition_detection is not None),
            ("logprob_token_ids", bool(self.logprob_token_ids)),
        ):
            if is_given:
                raise InvalidRequestError(f"{name} cannot be combined with use_beam_search: leave one out", param=name)
        num_allowed = len(set(self.allowed_token_ids))
        if num_allowed and num_allowed < self.beam_search.width:
            raise InvalidRequestError(
                f"allowed_token_ids leaves {num_allowed} tokens to choose from, and the beam search is "
                f"{self.beam_search.width} wide: lower n, or allow more",
                param="allowed_token_ids",
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequestError where a token id is none of the model's."""
        for name, ids in (("logit_bias", self.logit_bias), *self._token_ids()):
            for token in ids:
                if token >= vocab_size:
                    raise InvalidRequestError(
                        f"{name} names token {token}, but the model's vocabulary ends at {vocab_size - 1}",
                        param=name,
                    )

    def _token_ids(self) -> tuple[tuple[str, Sequence[int]], ...]:
        """Fields that hold token ids, by the client's names."""
        return (
            ("stop_token_ids", self.stop_token_ids),
            ("allowed_token_ids", self.allowed_token_ids),
            ("logprob_token_ids", self.logprob_token_ids),
            *(("bad_words", ids) for ids in self.bad_words_token_ids),
        )


def _integer(name: str, value: int, low: int, high: int, *, limit_name: str | None = None, part: str = "") -> None:
    """`part`: what of the field it is, where it is not the whole."""
    if not low <= value <= high:
        limit = f"{limit_name} ({high})" if limit_name else str(high)
        said = f"{name}: {part}" if part else name
        raise InvalidRequestError(f"{said} must be between {low} and {limit}, not {value}", param=name)


def _real(name: str, value: float, low: float, high: float, *, open_below: bool = False, part: str = "") -> None:
    inside = (low < value if open_below else low <= value) and value <= high
    if not (math.isfinite(value) and inside):
        bracket = "(" if open_below else "["
        said = f"{name}: {part}" if part else name
        raise InvalidRequestError(f"{said} must be in {bracket}{low:g}, {high:g}], not {value}", param=name)
