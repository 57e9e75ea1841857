"""Forms by llguidance: an Earley parser over derivative-based lexing, in Rust, outside the GIL while it works.

Knows llguidance's interface and where it would not enforce what it is given. Does not know requests or sampling.
"""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.gbnf import gbnf_to_lark, is_gbnf
from headrace.engine.grammar.json_schema import schemas_for_llguidance
from headrace.engine.grammar.lark import checked_lark
from headrace.engine.grammar.llguidance_reasons import (
    MAX_ITEMS_IN_ROW,
    max_expressions,
    plain_failure,
    plain_reason,
)
from headrace.engine.grammar.protocol import BITS_PER_WORD, TokenMask, Vocabulary
from headrace.engine.grammar.structural_tag import structural_tag_to_lark
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

_SILENT = 0
_NUM_OPENINGS = 4
"""First tokens of each form whose consequences are kept."""
_IN_BRACKETS = re.compile(r"(?:<[^<>\s]+>|\[[^\[\]\s]+\]|\]<\][^<>\[\]\s]+\[>\[)\n*")


class LlguidanceBackend:
    """Implements `protocol.GrammarBackend`. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        assert vocabulary.eos_token_ids, "no token ends an answer"
        self._eos_token_ids = vocabulary.eos_token_ids
        self._num_mask_words = vocabulary.num_mask_words
        self._control_tokens = _control_tokens(vocabulary)
        self._tokenizer = LLTokenizer(
            _TokenSource(vocabulary),  # type: ignore[arg-type]  # it takes whatever looks like its own wrapper
            n_vocab=len(vocabulary.token_bytes),
            eos_token=list(vocabulary.eos_token_ids),
        )

    def compile(self, wanted: StructuredOutput) -> "LlguidanceForm":
        *others, last = self._grammars(wanted)
        for grammar in others:
            with contextlib.suppress(InvalidRequestError):
                return self._compile(grammar, wanted)
        return self._compile(last, wanted)

    def _compile(self, grammar: str, wanted: StructuredOutput) -> "LlguidanceForm":
        limits = LLParserLimits(
            verbose_errors=False,  # its errors would carry its whole state, and the client's schema with it
            max_items_in_row=MAX_ITEMS_IN_ROW,
            initial_lexer_fuel=max_expressions(wanted),
        )
        matcher = LLMatcher(self._tokenizer, grammar, log_level=_SILENT, limits=limits)
        if matcher.is_error():
            raise _refusal(wanted, matcher.get_error())
        return LlguidanceForm(matcher, self._first_mask(matcher, wanted), self._eos_token_ids)

    def _first_mask(self, beginning: LLMatcher, wanted: StructuredOutput) -> TokenMask:
        """Raises InvalidRequestError where no answer has the form, for example because a rule needs itself."""
        mask: TokenMask = np.zeros(self._num_mask_words, dtype=np.int32)
        matcher = LlguidanceMatcher(beginning.deep_copy(), self._eos_token_ids)
        matcher.fill(mask)
        if matcher.failure() or not mask.any():
            raise _refusal(wanted, "no answer can have this form")
        self._check_goes_on(matcher, mask, wanted)
        return mask

    def _check_goes_on(self, beginning: "LlguidanceMatcher", mask: TokenMask, wanted: StructuredOutput) -> None:
        """Forms too large to be followed show it with the first token, whichever it is."""
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        first = next((token for token in allowed.tolist() if token not in self._eos_token_ids), None)
        if first is not None and not beginning.accept(first) and (problem := beginning.failure()):
            raise _refusal(wanted, problem)

    def _grammars(self, wanted: StructuredOutput) -> Iterator[str]:
        """All with one meaning. What the last one is refused for is what is wrong."""
        match wanted.kind:
            case OutputKind.JSON_SCHEMA:
                for schema in schemas_for_llguidance(wanted):
                    yield f'{{"grammars":[{{"json_schema":{schema}}}]}}'
            case OutputKind.REGEX:
                yield LLMatcher.grammar_from_regex(wanted.text)
            case OutputKind.CHOICE:
                yield LLMatcher.grammar_from_lark(_choice(json.loads(wanted.text)))
            case OutputKind.GRAMMAR:
                text = gbnf_to_lark(wanted.text, wanted.field) if is_gbnf(wanted.text) else checked_lark(wanted)
                yield LLMatcher.grammar_from_lark(text)
            case OutputKind.STRUCTURAL_TAG:
                yield LLMatcher.grammar_from_lark(structural_tag_to_lark(wanted, self._control_tokens))


class LlguidanceForm:
    def __init__(self, matcher: LLMatcher, first_mask: TokenMask, eos_token_ids: Sequence[int]) -> None:
        self.first_mask = first_mask
        self._opening = _Opening(matcher, first_mask)
        self._eos_token_ids = eos_token_ids

    def matcher(self) -> "LlguidanceMatcher":
        return LlguidanceMatcher(self._opening.matcher.deep_copy(), self._eos_token_ids, self._opening)


class _Opening:
    """A place at which answers stand again and again: the beginning of a form, and what lies one token behind it.

    To take the first token of a form of 300 optional properties is half a millisecond in which no other thread of the
    process goes on; to copy where that led, 5 microseconds.
    """

    __slots__ = ("_next", "mask", "matcher")

    def __init__(self, matcher: LLMatcher, mask: "TokenMask | None" = None) -> None:
        self.matcher = matcher
        """Stays where it is: answers go on with copies."""
        self.mask = mask
        """What may come next, as soon as somebody has asked."""
        self._next: dict[int, _Opening] = {}

    def behind(self, token_id: int) -> "_Opening | None":
        return self._next.get(token_id)

    def keep_behind(self, token_id: int, matcher: LLMatcher) -> "_Opening | None":
        """None where as many ways as are kept are known: answers mostly begin in one or two."""
        if len(self._next) >= _NUM_OPENINGS:
            return None
        return self._next.setdefault(token_id, _Opening(matcher.deep_copy()))


class LlguidanceMatcher:
    def __init__(self, matcher: LLMatcher, eos_token_ids: Sequence[int], opening: _Opening | None = None) -> None:
        """`opening`: where it stands, if that is the beginning of a form that is kept."""
        self._matcher = matcher
        self._eos_token_ids = eos_token_ids
        self._opening = opening
        """Where it stands, if that is known: the beginning, or one token behind it."""
        self._is_at_beginning = opening is not None
        self._filled: TokenMask | None = None
        """Where the last mask was written, and its address: as a rule they are always written to the same place."""
        self._address = 0

    def accept(self, token_id: int) -> bool:
        beginning = self._opening if self._is_at_beginning else None
        self._opening, self._is_at_beginning = None, False
        if beginning is not None and (opening := beginning.behind(token_id)) is not None:
            self._matcher, self._opening = opening.matcher.deep_copy(), opening
            return True
        if self._matcher.is_stopped() or not self._matcher.consume_token(token_id):
            return False
        if beginning is not None:
            self._opening = beginning.keep_behind(token_id, self._matcher)
        return True

    def fill(self, mask: TokenMask) -> None:
        opening = self._opening
        if opening is not None and opening.mask is not None:
            mask[:] = opening.mask
            return
        self._find(mask)
        if opening is not None and not self._matcher.is_error():
            opening.mask = mask.copy()

    def _find(self, mask: TokenMask) -> None:
        if not self._matcher.is_stopped():
            if mask is not self._filled:
                self._filled, self._address = mask, mask.ctypes.data
            self._matcher.unsafe_compute_mask_ptr(self._address, mask.nbytes)
            return
        mask.fill(0)  # the form is complete, and nothing can follow
        for token_id in self._eos_token_ids:
            mask[token_id // BITS_PER_WORD] |= _bit(token_id)

    def may_end(self) -> bool:
        return not self._matcher.is_error() and self._matcher.is_accepting()

    def failure(self) -> str:
        return plain_failure(self._matcher.get_error()) if self._matcher.is_error() else ""


class _TokenSource:
    """A vocabulary as LLTokenizer reads it."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.token_bytes
        self.special_token_ids = vocabulary.special_token_ids
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def _bit(token_id: int) -> int:
    """As the signed number that a mask's word is."""
    bit = 1 << (token_id % BITS_PER_WORD)
    return bit - (1 << BITS_PER_WORD) if bit >> (BITS_PER_WORD - 1) else bit


def _control_tokens(vocabulary: Vocabulary) -> dict[str, int]:
    """Those that a tag can mean by their text: what stands in brackets, MiniMax's turned outwards, GigaChat's with its line
    breaks."""
    texts = {
        token_id: vocabulary.token_bytes[token_id].decode("utf-8", "replace") for token_id in vocabulary.special_token_ids
    }
    return {text: token_id for token_id, text in texts.items() if _IN_BRACKETS.fullmatch(text)}


def _choice(choices: Sequence[str]) -> str:
    """As one lexeme: of some thousand alternatives a parser would follow each by itself."""
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)


def _refusal(wanted: StructuredOutput, reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"{wanted.field} cannot be enforced: {plain_reason(wanted, reason)}", param=wanted.field)
