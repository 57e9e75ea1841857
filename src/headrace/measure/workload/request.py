"""WorkloadRequest: what one user asks and when. Knows no server, no clock and no tokenizer.

A prompt of tokens is a list of segments, and a segment's tokens are a function of its key: equal keys are equal tokens. So a
workload of a hundred million tokens is a small file, and prefixes that are shared in it are shared in what a server sees.

Open loop, closed loop and sessions are one form. A request starts `at_s` after the start of the run, whatever became of the
others; or, where `after` names a request, `at_s` after that one's end: a user who reads, thinks and asks again.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream

FIRST_PLAIN_TOKEN_ID = 256
"""Below it vocabularies keep bytes and control tokens; a random prompt has none of them where the vocabulary is larger."""


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A run of tokens by name; fewer tokens of the same key are the beginning of more of them."""

    key: str
    num_tokens: int


class TokenPrompt(msgspec.Struct, frozen=True, tag="tokens"):
    segments: tuple[Segment, ...]

    @property
    def num_tokens(self) -> int:
        return sum(segment.num_tokens for segment in self.segments)


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ChatPrompt(msgspec.Struct, frozen=True, tag="messages", omit_defaults=True):
    messages: tuple[dict[str, Any], ...]
    continues: bool = False
    """The conversation of the request named by `after`, and the answer that it really got, come before these messages."""


Prompt = TokenPrompt | TextPrompt | ChatPrompt


class WorkloadRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    request_id: str
    prompt: Prompt
    num_output_tokens: int
    """`max_tokens`; with `ignore_eos` exactly this many."""
    at_s: float = 0.0
    """Seconds after the start of the run, or after the end of `after`."""
    after: str = ""
    """The request that this one waits for; empty where it waits for nobody."""
    ignore_eos: bool = True
    model: str = ""
    """The model or adapter to ask for; empty for the run's."""
    extra_body: dict[str, Any] = {}
    """Fields of the request's body beside those of the run: a response format, tools, sampling."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    requests: tuple[WorkloadRequest, ...]
    seed: int = 0
    vocab_size: int = 8000
    """Random tokens have ids below this; at most the served model's own."""

    def __post_init__(self) -> None:
        known: set[str] = set()
        for request in self.requests:
            if request.request_id in known:
                raise ConfigurationError(f"two requests of workload {self.name!r} are called {request.request_id!r}")
            if request.after and request.after not in known:
                raise ConfigurationError(
                    f"request {request.request_id!r} of workload {self.name!r} comes after {request.after!r}, "
                    "which is not among the requests before it"
                )
            if request.num_output_tokens < 1:
                raise ConfigurationError(
                    f"request {request.request_id!r} wants {request.num_output_tokens} tokens; at least 1"
                )
            if not 0 <= request.at_s < float("inf"):
                raise ConfigurationError(f"request {request.request_id!r} comes at_s {request.at_s:g}; 0 or later")
            if isinstance(request.prompt, TokenPrompt) and any(one.num_tokens < 0 for one in request.prompt.segments):
                raise ConfigurationError(f"request {request.request_id!r} has a segment of fewer than 0 tokens")
            known.add(request.request_id)


def token_ids(segments: Sequence[Segment], *, seed: int, vocab_size: int) -> list[int]:
    """The tokens themselves.

    >>> long = token_ids([Segment("a", 5)], seed=0, vocab_size=8000)
    >>> long[:3] == token_ids([Segment("a", 3)], seed=0, vocab_size=8000)
    True
    >>> long == token_ids([Segment("b", 5)], seed=0, vocab_size=8000)
    False
    """
    low = FIRST_PLAIN_TOKEN_ID if vocab_size > 2 * FIRST_PLAIN_TOKEN_ID else 0
    tokens: list[int] = []
    for segment in segments:
        draw = stream(seed, segment.key).random
        width = vocab_size - low
        tokens += [low + int(draw() * width) for _ in range(segment.num_tokens)]
    return tokens


_WORD_LIST = """
water wheel mill river stone light early morning under over green field small house road north south wind rain
summer winter bread table open door long short half turn hand work time day night year people place world point
line side head name form great found still learn plant cover food sun four between state keep eye never last let
thought city tree cross farm hard start might story saw far sea draw left late run while press close real life
"""
_WORDS = tuple(_WORD_LIST.split())


def words(segments: Sequence[Segment], *, seed: int) -> str:
    """Text for servers that take no token ids: about a token a word, and equal keys are equal words."""
    texts: list[str] = []
    for segment in segments:
        rng = stream(seed, segment.key)
        texts += [_WORDS[int(rng.random() * len(_WORDS))] for _ in range(segment.num_tokens)]
    return " ".join(texts)
