"""How the text of an answer is read: reasoning is told from words first, then calls of tools are found in the words.

Knows which formats apply to a request. Does not know what any looks like, nor how answers are written to clients.
"""

import functools
import secrets
import string
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import Tokenizer
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.server.config import ServerConfig
from headrace.server.parsing.events import CallArguments, CallStart, Content, Event, Reasoning
from headrace.server.reasoning import formats as reasoning_formats
from headrace.server.reasoning.formats import ReasoningFormat
from headrace.server.reasoning.parser import ReasoningParser
from headrace.server.tools import formats as tool_formats
from headrace.server.tools.answer_form import answer_form
from headrace.server.tools.formats import ToolFormat
from headrace.server.tools.parser import ToolParser
from headrace.server.tools.request import ToolUse
from headrace.server.tools.schemas import Tools

_NO_TOOLS = Tools({})
_SHORT_ID_CHARACTERS = string.ascii_letters + string.digits
_SHORT_ID_LENGTH = 9


class AnswerParser:
    """One answer's text to events. What its events say, concatenated, does not depend on how the text was cut."""

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        calls: ToolParser | None,
        *,
        shows_reasoning: bool = True,
        max_calls: int | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._calls = calls
        self._shows_reasoning = shows_reasoning
        self._max_calls = max_calls
        self._last_call = _ObjectWatch()
        """Looks for the end of the last call that may be."""
        self.num_calls = 0
        self.is_over = False
        """The last call that may be is complete: the answer ended with it."""

    def push(self, text: str) -> list[Event]:
        words: list[Event] = [Content(text)] if text else []
        return self._limited(self._read(words if self._reasoning is None else self._reasoning.push(text)))

    def finish(self) -> list[Event]:
        rest = self._read([] if self._reasoning is None else self._reasoning.finish())
        return self._limited([*rest, *([] if self._calls is None else self._calls.finish())])

    def _read(self, events: list[Event]) -> list[Event]:
        """Looks for calls in the words."""
        if self._calls is None:
            return events
        read: list[Event] = []
        for event in events:
            read += self._calls.push(event.text) if isinstance(event, Content) else [event]
        return read

    def _limited(self, events: list[Event]) -> list[Event]:
        shown: list[Event] = []
        for event in events:
            if isinstance(event, CallStart):
                self.is_over = self.is_over or self.num_calls == self._max_calls
                self.num_calls += not self.is_over
            if self.is_over:
                break
            if self._shows_reasoning or not isinstance(event, Reasoning):
                shown.append(event)
            if isinstance(event, CallArguments) and self.num_calls == self._max_calls:
                self.is_over = self._last_call.ends_in(event.text)
        return shown


class _ObjectWatch:
    """Finds the end of a JSON object whose text comes in pieces: the brace that closes the first."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def ends_in(self, text: str) -> bool:
        for char in text:
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_in_string:
                self._is_escaped = char == "\\"
                self._is_in_string = char != '"'
            elif char == '"':
                self._is_in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return True
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """How the answers to one request are read."""

    tools: Tools | None
    tool_format: ToolFormat | None
    """None: nothing in the answers is a call."""
    form: StructuredOutput | None
    """What the answers must be, if anything."""
    reasoning_format: ReasoningFormat | None
    """None: the model does not reason, or the tool format tells it apart."""
    separates_reasoning: bool = False
    """The tool format tells reasoning apart."""
    shows_reasoning: bool = True
    max_calls: int | None = None

    def parser(self, prompt: str) -> AnswerParser:
        """For one answer to this prompt, which may have begun the reasoning."""
        calls = None
        if self.tool_format is not None:
            new_id = _new_short_id if self.tool_format.short_ids else _new_id
            calls = self.tool_format.parser(self.tools or _NO_TOOLS, new_id)
        return AnswerParser(
            None if self.reasoning_format is None else self.reasoning_format.parser(prompt),
            calls,
            shows_reasoning=self.shows_reasoning,
            max_calls=self.max_calls,
        )

    def shown_special_token_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that are marks of these formats: they must not be left out of the text."""
        marks: list[str] = []
        if self.tool_format is not None:
            marks += (*self.tool_format.parser.markers, *self.tool_format.parser.shown_tokens)
        if self.reasoning_format is not None:
            marks += self.reasoning_format.marks
        return frozenset(_special_tokens(tokenizer, marks))

    def form_after_reasoning(self, prompt: str, tokenizer: Tokenizer) -> StructuredOutput | None:
        """The form, beginning behind the reasoning if the prompt has begun one."""
        if self.form is None or self.reasoning_format is None or not self.reasoning_format.is_begun_by(prompt):
            return self.form
        mark = self.reasoning_format.closing[0]
        mark_ids = tuple(tokenizer.encode(mark, add_special_tokens=False, parse_special=True))
        return msgspec.structs.replace(self.form, begins_after=mark_ids)


def answer_reading(use: ToolUse, config: ServerConfig, template: str | None, *, shows_reasoning: bool) -> AnswerReading:
    """`template`: the source of the chat template that renders the request.

    Raises InvalidRequestError where tools were given to a model that nobody tells of them, or what is asked of its calls
    cannot be enforced.
    """
    if use.for_template and template is not None and "tool" not in template and config.tool_call_parser is None:
        raise InvalidRequestError(
            "this model's chat template does not write tools into the prompt, so the model would not know of them: serve it "
            "with a template that does (--chat-template), or serve a model that was made for tools",
            param="tools",
            code="unsupported_parameter",
        )
    tool_format = _tool_format(config.tool_call_parser, template)
    tool_format, form = answer_form(use, tool_format, template or "", enforces_tags=config.enforces_tags)
    separates = tool_format is not None and tool_format.separates_reasoning
    is_read = use.tools is not None or (tool_format is not None and tool_format.is_always_on)
    return AnswerReading(
        tools=use.tools,
        tool_format=tool_format if is_read else None,
        form=form,
        reasoning_format=None if separates else reasoning_format(config, template),
        separates_reasoning=separates,
        shows_reasoning=shows_reasoning,
        max_calls=1 if use.is_limited_to_one else None,
    )


@functools.lru_cache(maxsize=16)
def _tool_format(name: str | None, template: str | None) -> ToolFormat | None:
    if name is not None:
        return tool_formats.format_named(name)
    return None if template is None else tool_formats.format_of_template(template)


def reasoning_format(config: ServerConfig, template: str | None) -> ReasoningFormat | None:
    """The marks around the reasoning of a model with this chat template; None where it has none."""
    return _reasoning_format(config.reasoning_parser, template)


@functools.lru_cache(maxsize=16)
def _reasoning_format(name: str | None, template: str | None) -> ReasoningFormat | None:
    if name is not None:
        return reasoning_formats.format_named(name)
    return None if template is None else reasoning_formats.format_of_template(template)


def _special_tokens(tokenizer: Tokenizer, marks: Iterable[str]) -> Iterable[int]:
    for mark in marks:
        token_ids = tokenizer.encode(mark, add_special_tokens=False, parse_special=True)
        yield from (token_id for token_id in token_ids if tokenizer.is_special(token_id))


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _new_short_id() -> str:
    return "".join(secrets.choice(_SHORT_ID_CHARACTERS) for _ in range(_SHORT_ID_LENGTH))
