"""How much a model reasons: what `reasoning_effort` tells the template, and what `thinking_token_budget` asks for."""

from typing import Any, ClassVar

import pytest
from tests.fakes import ByteTokenizer, FakeChatTemplate, FakeEngine
from tests.unit.server.asgi import chat, complete, error_of, make_app

from headrace.engine.host.chat_template import ChatTemplate
from headrace.engine.mind.sampling_params import ThinkingBudget
from headrace.protocol.openai import CompletionRequest
from headrace.server.config import ServerConfig
from headrace.server.reasoning.formats import FORMATS
from headrace.server.reasoning.request import thinking_budget

OPEN, CLOSE = tuple(b"<think>"), tuple(b"</think>")
SWITCH = FakeChatTemplate("<think></think> {{ enable_thinking }}")
"""Ends the prompt with `<think>` where told to think, with `<think></think>` where told not to."""
EFFORT = ChatTemplate("{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}|<think></think>", {})
PLAIN = FakeChatTemplate("chatml")
HARMONY = FakeChatTemplate("<|channel|><|message|> reasoning_effort")


def app_of(template: Any, **config: Any) -> tuple[Any, FakeEngine]:
    engine = FakeEngine()
    return make_app(engine, ServerConfig(access_log=False, **config), chat_template=template), engine


def prompt(template: Any, **fields: Any) -> str:
    app, engine = app_of(template)
    response = chat(app, **fields)
    assert response.status_code == 200, response.text
    return engine.tokenizer.decode(engine.requests[-1].prompt_token_ids, skip_special_tokens=False)


def budget(template: Any, **fields: Any) -> ThinkingBudget | None:
    app, engine = app_of(template)
    response = chat(app, **fields)
    assert response.status_code == 200, response.text
    return engine.requests[-1].sampling.thinking_budget


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high", "xhigh", "max"])
def test_effort_reaches_the_template_and_turns_thinking_on(effort: str) -> None:
    assert prompt(EFFORT, reasoning_effort=effort).startswith(f"hello|{effort}|True")
    assert prompt(SWITCH, reasoning_effort=effort).endswith("<think>\n")


def test_no_effort_turns_thinking_off() -> None:
    assert prompt(EFFORT, reasoning_effort="none").startswith("hello|none|False")
    assert prompt(SWITCH, reasoning_effort="none").endswith("<think></think>")
    assert prompt(EFFORT).startswith("hello|||"), "without the field the template decides"


def test_what_the_client_says_of_thinking_itself_counts() -> None:
    fields: dict[str, Any] = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(EFFORT, **fields).startswith("hello|high|False")


def test_effort_that_would_change_nothing_is_refused() -> None:
    for template, effort in ((PLAIN, "low"), (FakeChatTemplate("<think></think>"), "none"), (HARMONY, "none")):
        app, _ = app_of(template)
        assert error_of(chat(app, reasoning_effort=effort), 400)["param"] == "reasoning_effort"
    app, _ = app_of(HARMONY)
    assert "low, medium, high" in error_of(chat(app, reasoning_effort="max"), 400)["message"]
    assert error_of(chat(app, reasoning_effort="much"), 400)["param"] == "reasoning_effort"


def test_a_model_that_does_not_reason_can_be_told_not_to() -> None:
    assert prompt(PLAIN, reasoning_effort="none") == prompt(PLAIN)


def test_a_budget_begins_with_the_reasoning() -> None:
    begun = budget(SWITCH, thinking_token_budget=9, chat_template_kwargs={"enable_thinking": True})
    assert begun == ThinkingBudget(max_tokens=9, closing_token_ids=CLOSE, opening_token_ids=(OPEN,), num_spent=0)
    open_yet = budget(SWITCH, thinking_token_budget=9)
    assert open_yet == ThinkingBudget(max_tokens=9, closing_token_ids=CLOSE, opening_token_ids=(OPEN,), num_spent=-1)
    assert budget(SWITCH, thinking_token_budget=9, chat_template_kwargs={"enable_thinking": False}) is None
    assert budget(SWITCH, thinking_token_budget=-1) is None


class JoiningTokenizer(ByteTokenizer):
    """Writes a mark's end and what follows it as one token, and a full stop and the mark's beginning, as real ones do."""

    JOINED: ClassVar[dict[bytes, int]] = {b".<": 300, b">\n": 301, b">\n\n": 302}

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        raw, ids = text.encode(), []
        while raw:
            piece = next((one for one in sorted(self.JOINED, key=len, reverse=True) if raw.startswith(one)), raw[:1])
            ids.append(self.JOINED.get(piece, piece[0]))
            raw = raw[len(piece) :]
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return {number: piece for piece, number in self.JOINED.items()}.get(token_id) or super().token_bytes(token_id)


def test_a_mark_of_several_tokens_is_known_however_its_neighbours_are_joined_to_it() -> None:
    request = CompletionRequest(prompt="", thinking_token_budget=4)
    asked = thinking_budget(request, FORMATS["think"], (), None, JoiningTokenizer())
    assert asked is not None
    assert asked.closing_token_ids == CLOSE, "it is written plainly"
    middle = tuple(b"/think")
    begins, ends = ((ord("<"),), (300,)), ((ord(">"),), (301,), (302,))
    assert {CLOSE, *asked.other_closing_token_ids} == {(*begin, *middle, *end) for begin in begins for end in ends}


def test_in_completions_the_prompts_tokens_say_whether_reasoning_has_begun() -> None:
    app, engine = app_of(PLAIN, reasoning_parser="think")
    spent = []
    for text in ("<think>ab", "<think>a</think>b", "b", "</think><think>"):
        assert complete(app, prompt=text, thinking_token_budget=4).status_code == 200
        asked = engine.requests[-1].sampling.thinking_budget
        spent.append(None if asked is None else asked.num_spent)
    assert spent == [2, -1, -1, 0]


def test_a_budget_that_could_not_be_kept_is_refused() -> None:
    for template in (PLAIN, HARMONY):
        for door in (chat, complete):
            error = error_of(door(app_of(template)[0], thinking_token_budget=4), 400)
            assert error["param"] == "thinking_token_budget"
    assert error_of(chat(app_of(SWITCH)[0], thinking_token_budget=-2), 400)["param"] == "thinking_token_budget"
