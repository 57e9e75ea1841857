"""Token ids to text, piece by piece, for one continuation of one request.

Knows bytes of tokens, whole characters and stop strings. Does not know sampling, streams or the wire. It runs on the
server's event loop for every token of every stream, so a token costs the same however long the text has become: its bytes
go through an incremental UTF-8 decoder, and nothing is ever decoded again.
"""

import codecs
from collections.abc import Sequence, Set

import msgspec

from headrace.engine.host.generation import Tokenizer, TokenLogprob
from headrace.engine.host.stop_strings import StopStrings, StopWatch
from headrace.engine.mind.step import TokenLogprobs

_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Delta(msgspec.Struct, frozen=True, gc=False):
    """What some more tokens added to the text."""

    text: str
    stopped_by: str | None = None
    """The stop string that ended the text; nothing comes after it."""
    num_token_ids: int = 0
    """How many of the tokens were taken: all, or those up to the one that completed the stop string."""


class IncrementalDetokenizer:
    """The text of one continuation, growing.

    The deltas, and what `finish` returns, concatenate to the text up to the stop string, or to the whole text if there
    was none. Half a character is never shown, and never waited for longer than it can still become one: bytes that cannot
    be UTF-8 turn into U+FFFD as soon as that is certain.

    A token that ended the generation by its id (`stop_token_id`) is not part of the text unless
    `include_stop_str_in_output` asks for it: the caller leaves it out of `push`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] | StopStrings = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        shown_special_token_ids: Set[int] = frozenset(),
        min_tokens: int = 0,
        at_text_start: bool = False,
    ) -> None:
        """`at_text_start`: nothing comes before this text, so that it is decoded as `Tokenizer.decode` does. By default
        it continues a prompt, and a SentencePiece token's leading space is a space. `shown_special_token_ids` are not
        skipped. Raises InvalidRequestError where `stop` contains an empty string.
        """
        self._tokenizer = tokenizer
        self._token_bytes = tokenizer.token_bytes
        self._is_special = tokenizer.is_special
        self._skip_special_tokens = skip_special_tokens
        self._shown_special_token_ids = shown_special_token_ids
        self._to_text = _new_utf8_decoder("replace").decode
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._opening_token_ids: list[int] | None = [] if at_text_start else None
        stops = stop if isinstance(stop, StopStrings) else StopStrings(stop)
        self._watch = StopWatch(stops, include_in_output=include_stop_str_in_output) if stops.strings else None
        self._stopped_by: str | None = None

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stopped_by

    def push(self, token_ids: Sequence[int]) -> Delta:
        """Takes the next tokens. Once a stop string was found it takes no more, and says so again."""
        if self._stopped_by is not None:
            return Delta("", self._stopped_by)
        if self._watch is None:
            return Delta("".join([self._decode(token_id) for token_id in token_ids]), None, len(token_ids))
        return self._push_watching(self._watch, token_ids)

    def finish(self) -> str:
        """The rest: what could have begun a stop string, and U+FFFD for a character that was cut off."""
        if self._stopped_by is not None:
            return ""
        text = self._opening(self._to_text(b"", True))
        if self._watch is None:
            return text
        released, self._stopped_by = self._watch.feed(text, honoured=self._num_tokens > self._min_tokens)
        return released if self._stopped_by is not None else released + self._watch.finish()

    def _push_watching(self, watch: StopWatch, token_ids: Sequence[int]) -> Delta:
        """Token by token, because `min_tokens` and `num_token_ids` are counted in tokens.

        As in vLLM, a stop string is honoured only where a token after the first `min_tokens` completes it.
        """
        texts = []
        for place, token_id in enumerate(token_ids, start=1):
            self._num_tokens += 1
            text = self._decode(token_id)
            if not text:
                continue
            released, stopped_by = watch.feed(text, honoured=self._num_tokens > self._min_tokens)
            texts.append(released)
            if stopped_by is not None:
                self._stopped_by = stopped_by
                return Delta("".join(texts), stopped_by, place)
        return Delta("".join(texts), None, len(token_ids))

    def _decode(self, token_id: int) -> str:
        """The whole characters that this token completes."""
        if self._skip_special_tokens and self._is_special(token_id) and token_id not in self._shown_special_token_ids:
            return ""
        text = self._to_text(self._token_bytes(token_id))
        if self._opening_token_ids is not None:
            self._opening_token_ids.append(token_id)
            text = self._opening(text)
        return text

    def _opening(self, text: str) -> str:
        """Drops the space that encoding puts before a text, at the text's beginning and if the tokenizer has that rule.

        The tokenizer itself is asked, once, over the first few tokens.
        """
        if self._opening_token_ids is None or not text:
            return text
        whole = self._tokenizer.decode(self._opening_token_ids, skip_special_tokens=self._skip_special_tokens)
        self._opening_token_ids = None
        return text if whole.startswith(text) else text.removeprefix(" ")


def token_logprob(tokenizer: Tokenizer, entry: TokenLogprobs) -> TokenLogprob:
    """The engine's numbers at one position, with texts and bytes, for the API's `logprobs`."""
    alternatives = zip(entry.top_token_ids, entry.top_logprobs, strict=True)
    return TokenLogprob(
        token_id=entry.token_id,
        text=tokenizer.token_text(entry.token_id),
        raw=tokenizer.token_bytes(entry.token_id),
        logprob=entry.logprob,
        rank=entry.rank,
        top=tuple(
            TokenLogprob(
                token_id=token_id,
                text=tokenizer.token_text(token_id),
                raw=tokenizer.token_bytes(token_id),
                logprob=logprob,
                rank=rank,
            )
            for rank, (token_id, logprob) in enumerate(alternatives, start=1)
        ),
    )
