"""What a request says of reasoning: how much effort, and how many tokens at most.

Knows the fields `reasoning_effort` and `thinking_token_budget`. Does not know templates, beyond which variables they name,
nor how a budget is kept: the engine's workers do that.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import Tokenizer
from headrace.engine.mind.sampling_params import ThinkingBudget
from headrace.protocol.openai import ChatCompletionRequest, GenerationFields
from headrace.server.reasoning.formats import ReasoningFormat

_UNLIMITED = -1
_HARMONY_EFFORTS = ("low", "medium", "high")
_NEIGHBOURS = (("", " ", "\n", "\n\n", ".", ".\n", ".\n\n", "!", "?"), ("", " ", "\n", "\n\n"))
"""What may stand before a mark, and after it, in one token with a part of it."""


def effort_variables(
    request: ChatCompletionRequest, template: str | None, *, is_reasoner: bool, is_harmony: bool
) -> dict[str, Any]:
    """What the chat template hears of `reasoning_effort`. `template`: its source; `is_reasoner`: answers of this model are
    read for reasoning. Raises InvalidRequestError where it would change nothing."""
    effort = request.reasoning_effort
    if effort is None:
        return {}
    if is_harmony and effort not in _HARMONY_EFFORTS:
        raise InvalidRequestError(
            f"reasoning_effort is one of {', '.join(_HARMONY_EFFORTS)} for this model, not {effort!r}",
            param="reasoning_effort",
        )
    source = template or ""
    knows_effort, knows_switch = "reasoning_effort" in source, "enable_thinking" in source
    if not (knows_effort or knows_switch):
        if effort == "none" and not is_reasoner:
            return {}
        raise InvalidRequestError(
            "this model's chat template knows neither reasoning_effort nor enable_thinking, so it would change nothing: "
            "leave reasoning_effort out",
            param="reasoning_effort",
            code="unsupported_parameter",
        )
    variables: dict[str, Any] = {"reasoning_effort": effort}
    if "enable_thinking" not in (request.chat_template_kwargs or {}):
        variables["enable_thinking"] = effort != "none"
    return variables


def thinking_budget(
    request: GenerationFields,
    marks: ReasoningFormat | None,
    prompt_token_ids: Sequence[int],
    prompt_text: str | None,
    tokenizer: Tokenizer,
) -> ThinkingBudget | None:
    """`marks`: the model's; None where it has none that could be written for it. `prompt_text`: of a rendered conversation,
    whose end says whether the reasoning has begun; None: the tokens say so.

    Raises InvalidRequestError where the budget could not be kept.
    """
    most = request.thinking_token_budget
    if most is None or most == _UNLIMITED:
        return None
    if most < 0:
        raise InvalidRequestError(
            f"thinking_token_budget must be at least 0, or -1 for no limit, not {most}", param="thinking_token_budget"
        )
    if marks is None:
        raise InvalidRequestError(
            "thinking_token_budget needs a model whose reasoning ends with a mark, and none is known of this one: start the "
            "server with --reasoning-parser if it has one",
            param="thinking_token_budget",
            code="unsupported_parameter",
        )
    if prompt_text is not None and prompt_text.rstrip().endswith(marks.closing):
        return None  # the prompt has ended the reasoning
    opening, closing = (
        tuple(dict.fromkeys(ids for mark in group for ids in _spellings(mark, tokenizer)))
        for group in (marks.opening, marks.closing)
    )
    if prompt_text is not None:
        num_spent = 0 if marks.is_begun_by(prompt_text) else -1
    else:
        begun, ended = _last_end(prompt_token_ids, opening), _last_end(prompt_token_ids, closing)
        num_spent = len(prompt_token_ids) - begun if begun > ended else -1
    return ThinkingBudget(
        max_tokens=most,
        closing_token_ids=closing[0],
        other_closing_token_ids=closing[1:],
        opening_token_ids=opening,
        num_spent=num_spent,
    )


def _spellings(mark: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """How the tokenizer writes a mark: alone first, then joined to what may stand beside it. A token of its own is never
    joined to anything."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False, parse_special=True)

    alone = encode(mark)
    if len(alone) == 1:
        return [(alone[0],)]
    spelt = {tuple(alone): None}
    for before, after in product(*_NEIGHBOURS):
        token_ids = encode(before + mark + after)
        first, room = 0, len(before)
        while first < len(token_ids) and (size := len(tokenizer.token_bytes(token_ids[first]))) <= room:
            first, room = first + 1, room - size
        end, room = len(token_ids), len(after)
        while end > first and (size := len(tokenizer.token_bytes(token_ids[end - 1]))) <= room:
            end, room = end - 1, room - size
        spelt[tuple(token_ids[first:end])] = None
    return [one for one in spelt if one]


def _last_end(token_ids: Sequence[int], marks: Sequence[tuple[int, ...]]) -> int:
    """Where the last of the marks ends; -1 where there is none."""
    for end in range(len(token_ids), 0, -1):
        for mark in marks:
            if end >= len(mark) and tuple(token_ids[end - len(mark) : end]) == mark:
                return end
    return -1
