"""Messages to a prompt, as the model's own chat template writes it.

Knows Jinja as `transformers.apply_chat_template` speaks it, whose text this equals. Does not know tokens or requests. A
template comes with a checkpoint and is not trusted: it runs sandboxed, on plain data, and for a bounded number of steps.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from headrace.base.errors import CheckpointError, InvalidRequestError
from headrace.base.system_clock import unix_seconds
from headrace.engine.host.generation import Tokenizer

Message = Mapping[str, Any]

_MAX_STEPS = 1_000_000
"""Loop passes and macro calls of one rendering: under a second. Thousands of messages take some ten thousand."""
_MACRO_STEPS = 10
"""A macro's call costs as much as so many passes of a loop."""
_MAX_PRODUCT = 1_000_000
"""Most elements of a repeated text or list (`'-' * 40`): more is memory, not layout."""
_MAX_EXPONENT = 64
"""Largest exponent: numbers beyond it take no steps to write, but forever to compute."""
_STEP = "_headrace_step"
_BUDGET = "_headrace_budget"
_CONTINUATION_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """One model's template, compiled once. Rendering is safe from several threads."""

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        *,
        file: str = "",
        now_unix_s: Callable[[], int] = unix_seconds,
    ) -> None:
        """`special_tokens`: by role, as `TextTokenizer.special_tokens` gives them; the template sees them as variables.

        `file`: where the source stands, if it stands in one. `now_unix_s` is the clock that the template's `strftime_now`
        reads. Raises CheckpointError, which names the file, where the source is no valid template.
        """
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._now_unix_s = now_unix_s
        self._template = None
        if source is not None:
            self._template = _compile(source, file, lambda: datetime.fromtimestamp(self._now_unix_s()))
        self._call_style: _CallStyle | None = None
        """Found out when the first call is rendered: most conversations hold none."""
        self._takes_text, self._takes_parts = (True, False) if self._template is None else self._probe()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "ChatTemplate":
        """The template of a tokenizer, with the special tokens that nearly every template is content with."""
        ids = {"bos_token": tokenizer.bos_token_id, "eos_token": next(iter(tokenizer.eos_token_ids), None)}
        texts = {role: tokenizer.token_text(token_id) for role, token_id in ids.items() if token_id is not None}
        return cls(tokenizer.chat_template, texts)

    @classmethod
    def of_request(cls, source: str, special_tokens: Mapping[str, str]) -> "ChatTemplate":
        """A template that a client sent: raises InvalidRequestError where it is none."""
        try:
            return cls(source, special_tokens)
        except CheckpointError as error:
            raise InvalidRequestError(str(error), param="chat_template") from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> str:
        """The prompt. `kwargs` are variables for the template (`enable_thinking`); they go before the special tokens.

        `continue_final_message` leaves the last message open, for the model to go on with; it excludes
        `add_generation_prompt`. Raises InvalidRequestError where the template refuses the messages, with its own words.
        """
        if not messages:
            raise InvalidRequestError("messages must not be empty", param="messages")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message and add_generation_prompt exclude each other: the first goes on with the last "
                "message, the second begins a new one",
                param="continue_final_message",
            )
        prepared = [self._prepare(message) for message in messages]
        variables = {
            "tools": _listed(tools),
            "documents": _listed(documents),
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        if not continue_final_message:
            return self._run(prepared, variables)
        prepared[-1], final_text = _mark_end(prepared[-1])
        return _cut_at_mark(self._run(prepared, variables), final_text)

    def _run(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        if self._template is None:
            raise InvalidRequestError(
                "this model has no chat template, so it cannot take messages: use /v1/completions with a prompt, or serve "
                "a checkpoint that has one (chat_template.jinja, or chat_template in tokenizer_config.json)",
                param="messages",
            )
        try:
            return self._template.render({**self._special_tokens, "messages": messages, **variables, _BUDGET: _Budget()})
        except jinja2.TemplateError as error:
            raise InvalidRequestError(error.message or "the chat template failed", param="messages") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            # What a template does not check, it stumbles over: a message without content, a number where text belongs.
            raise InvalidRequestError(
                f"the model's chat template cannot render these messages: {type(error).__name__}: {error}", param="messages"
            ) from error

    # Messages as the template wants them

    def _prepare(self, message: Message) -> dict[str, Any]:
        """A copy without empty fields (templates would print `None`), with reasoning under every name it has been given,
        and with content in the form that the template wants.
        """
        prepared = {key: value for key, value in message.items() if value is not None}
        reasoning = next((prepared[key] for key in _REASONING_FIELDS if key in prepared), None)
        if reasoning is not None:
            prepared = {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
        content = prepared.get("content")
        if isinstance(content, str) and not self._takes_text and self._takes_parts:
            prepared["content"] = [{"type": "text", "text": content}]
        elif isinstance(content, (list, tuple)):
            texts = [_part_text(part) for part in content]
            parts = [{"type": "text", "text": text} for text in texts]
            prepared["content"] = parts if self._takes_parts else "\n".join(texts)
        if prepared.get("tool_calls"):
            if self._call_style is None:
                self._call_style = self._probe_calls()
            return self._call_style.applied_to(prepared)
        return prepared

    def _probe(self) -> tuple[bool, bool]:
        """Whether content may be a text, and whether it may be a list of parts: seen by rendering both."""
        word = "probe7f3a"
        as_text = self._try([{"role": "user", "content": word}])
        as_parts = self._try([{"role": "user", "content": [{"type": "text", "text": word}]}])
        takes_text = as_text is not None and word in as_text
        # A template that does not look into the list prints it whole, brackets and all.
        takes_parts = as_parts is not None and word in as_parts and (as_parts == as_text or not takes_text)
        return takes_text or not takes_parts, takes_parts

    def _probe_calls(self) -> "_CallStyle":
        """In which form the template writes a call with its arguments: seen by rendering one in each."""
        call_id, argument = "probe0000", "probe7f3a"  # some templates take no ids but those of nine letters
        call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": {"x": argument}}}
        turns: list[dict[str, Any]] = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        # One that renders a call that was answered goes before one that renders a call only where nothing follows it, and
        # one that does not fail, where the template writes no calls, before one that does.
        for written in (argument, ""):
            for answers in ([{"role": "tool", "tool_call_id": call_id, "content": "done"}], []):
                for style in _CALL_STYLES:
                    text = self._try([turns[0], style.applied_to(turns[1]), *answers])
                    if text is not None and written in text and "None" not in text:
                        return style
        return _CALL_STYLES[0]

    def _try(self, messages: Sequence[Message]) -> str | None:
        try:
            return self._run(messages, {"add_generation_prompt": True})
        except InvalidRequestError:
            return None


_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _CallStyle:
    """How a template wants a message that calls tools."""

    arguments_as_text: bool
    no_content: Any
    """What stands for content where there is none."""

    def applied_to(self, message: dict[str, Any]) -> dict[str, Any]:
        styled = {**message, "tool_calls": [self._styled(call) for call in message["tool_calls"]]}
        if "content" not in styled and self.no_content is not _ABSENT:
            styled["content"] = self.no_content
        return styled

    def _styled(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call.get("function")
        if not self.arguments_as_text or function is None or isinstance(function.get("arguments"), str):
            return call
        return {**call, "function": {**function, "arguments": _tojson(function.get("arguments"))}}


_CALL_STYLES = tuple(
    _CallStyle(arguments_as_text, no_content) for arguments_as_text in (False, True) for no_content in (None, "", _ABSENT)
)
"""In the order of preference: arguments as an object, and null for content, are what templates are mostly written for."""


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") in ("text", "input_text") else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise InvalidRequestError(
            f"messages hold a content part of type {kind!r}; this model takes only parts of type 'text'", param="messages"
        )
    return text


def _listed(items: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    return None if items is None else list(items)


# Going on with the last message


def _mark_end(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The message with a mark where its text ends, and that text."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUATION_MARK}, content
    if isinstance(content, list) and content:
        last = content[-1]
        return {**message, "content": [*content[:-1], {**last, "text": last["text"] + _CONTINUATION_MARK}]}, last["text"]
    raise InvalidRequestError(
        "continue_final_message needs a last message with content to go on with", param="continue_final_message"
    )


def _cut_at_mark(rendered: str, final_text: str) -> str:
    """The prompt up to the mark. A template that trims contents has trimmed the mark's space: then the text's own too."""
    place = rendered.rfind(_CONTINUATION_MARK.strip())
    if place < 0 or final_text.strip() not in rendered:
        raise InvalidRequestError(
            "this model's chat template does not print the last message as it is, so it cannot be continued",
            param="continue_final_message",
        )
    kept_space = rendered.startswith(_CONTINUATION_MARK, place)
    return rendered[:place] if kept_space else rendered[:place].rstrip()


# The environment


def _compile(source: str, file: str, now: Callable[[], datetime]) -> jinja2.Template:
    environment = _BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
    environment.filters.update({"tojson": _tojson, _STEP: _step})
    environment.globals.update(
        raise_exception=_raise_exception,
        strftime_now=lambda layout: now().strftime(layout),
        dict=_TemplateDict(),
        namespace=_TemplateNamespace,
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        place = f"{file}: " if file else ""
        raise CheckpointError(f"{place}the chat template is damaged: line {error.lineno}: {error.message}") from error


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Counts what can repeat: every pass of a loop and every call of a macro first takes a step from the render's budget."""

    intercepted_binops = frozenset({"*", "**"})

    def _generate(self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False) -> str:
        # A filter, because the sandbox checks calls but not filters, which makes a step ten times as cheap.
        repeated = [(loop.body, loop.lineno, 1) for loop in source.find_all(nodes.For)]
        repeated += [(macro.body, macro.lineno, _MACRO_STEPS) for macro in source.find_all(nodes.Macro)]
        repeated += [(call.body, call.lineno, _MACRO_STEPS) for call in source.find_all(nodes.CallBlock)]
        for body, line, num_steps in repeated:
            budget = nodes.Name(_BUDGET, "load")
            step = nodes.Filter(budget, _STEP, [nodes.Const(num_steps)], [], None, None)
            body.insert(0, nodes.ExprStmt(step).set_lineno(line))
        return super()._generate(source, name, filename, defer_init)

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and (not isinstance(right, (int, float)) or abs(right) > _MAX_EXPONENT):
            raise SecurityError(f"the chat template raises a number to the power {right!r}; the limit is {_MAX_EXPONENT}")
        if operator == "*" and _num_elements(left, right) > _MAX_PRODUCT:
            raise SecurityError(f"the chat template repeats a text to more than {_MAX_PRODUCT} elements")
        return super().call_binop(context, operator, left, right)


def _num_elements(left: Any, right: Any) -> int:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(times, int):
            return len(sequence) * times
    return 0


class _Budget:
    """How many steps a rendering has left."""

    __slots__ = ("num_left",)

    def __init__(self) -> None:
        self.num_left = _MAX_STEPS


def _step(budget: _Budget, num_steps: int) -> None:
    budget.num_left -= num_steps
    if budget.num_left < 0:
        raise SecurityError(f"the chat template did not end within {_MAX_STEPS} steps")


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is only what it encloses."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance's)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _TemplateDict:
    """`dict(...)`, without the class's other attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """`namespace(...)`, closed to names that reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Jinja's own signature trick, so that `namespace(self=...)` works.
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        Namespace.__setitem__(self, name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the chat template stores {name!r} on a namespace; names may not begin with an underscore")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is: Jinja's own filter writes `<` as an escape, for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
