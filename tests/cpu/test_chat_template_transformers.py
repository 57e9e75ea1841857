"""Real models' chat templates, rendered here and by transformers: the same text, and refusals where it refuses.

The templates lie in a folder of public data that not everyone has; without it these tests are skipped.
"""

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.chat_template import ChatTemplate

TEMPLATES = Path(__file__).resolve().parents[3] / "shared" / "data" / "suites" / "llama.cpp" / "templates"
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


CONVERSATIONS = {
    "one question": [turn("user", "Hi")],
    "with a system prompt": [turn("system", "Be <b>&\"nice'"), turn("user", "Hi\nthere, é ")],
    "several turns": [
        turn("user", "a"),
        turn("assistant", "b"),
        turn("user", " c "),
        turn("assistant", "d"),
        turn("user", "e"),
    ],
    "all roles": [turn("system", "s"), turn("user", "a"), turn("assistant", "b"), turn("user", "c")],
    "nothing said": [turn("user", "")],
    "an empty answer": [turn("user", "a"), turn("assistant", ""), turn("user", "c")],
    "reasoned": [turn("user", "a"), turn("assistant", "<think>\nx\n</think>\n\ny"), turn("user", "z")],
    "reasoned apart": [turn("user", "a"), turn("assistant", "y") | {"reasoning_content": "x"}, turn("user", "z")],
    "open at the end": [turn("user", "a"), turn("assistant", "once upon ")],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "turn_wheel",
            "description": "Turns the <wheel>.",
            "parameters": {
                "type": "object",
                "properties": {"rpm": {"type": "number", "description": "speed"}},
                "required": [],
            },
        },
    }
]


def template_names() -> list[str]:
    return sorted(path.stem for path in TEMPLATES.glob("*.jinja")) or ["none"]


def theirs(source: str, messages: list[dict[str, Any]], **options: Any) -> str | None:
    """transformers' text; None where it raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        return str(render_jinja_template([messages], chat_template=source, **SPECIAL_TOKENS, **options)[0][0])
    except Exception:
        return None


def ours(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str | None:
    try:
        return template.render(messages, **options)
    except InvalidRequestError:
        return None


@pytest.fixture(params=template_names())
def source(request: pytest.FixtureRequest) -> str:
    path = TEMPLATES / f"{request.param}.jinja"
    if not path.is_file():
        pytest.skip("needs ../shared/data/suites/llama.cpp/templates")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("with_tools", [False, True], ids=["plain", "tools"])
def test_conversations_render_as_transformers_renders_them(source: str, with_tools: bool) -> None:
    template = ChatTemplate(source, SPECIAL_TOKENS)
    tools = {"tools": TOOLS} if with_tools else {}
    for name, messages in CONVERSATIONS.items():
        for add_generation_prompt in (True, False):
            options = {"add_generation_prompt": add_generation_prompt, **tools}
            assert ours(template, messages, **options) == theirs(source, messages, **options), name


def test_most_conversations_render_at_all_with_tools_or_without(source: str) -> None:
    """Some templates are for tools alone, some stumble over them, some refuse a system prompt."""
    template = ChatTemplate(source, SPECIAL_TOKENS)
    plain = [ours(template, messages) for messages in CONVERSATIONS.values()]
    tools = [ours(template, messages, tools=TOOLS) for messages in CONVERSATIONS.values()]
    assert max(len(texts) - texts.count(None) for texts in (plain, tools)) >= len(CONVERSATIONS) - 2


def test_an_open_last_message_renders_as_transformers_renders_it(source: str) -> None:
    template = ChatTemplate(source, SPECIAL_TOKENS)
    for name in ("open at the end", "with a system prompt"):
        for tools in (None, TOOLS):
            options = {"add_generation_prompt": False, "continue_final_message": True, "tools": tools}
            assert ours(template, CONVERSATIONS[name], **options) == theirs(source, CONVERSATIONS[name], **options), name


def test_text_parts_say_what_the_text_says(source: str) -> None:
    template = ChatTemplate(source, SPECIAL_TOKENS)
    for tools in (None, TOOLS):
        as_text = ours(template, [turn("user", "Hi")], tools=tools)
        as_parts = ours(template, [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], tools=tools)
        assert as_parts == as_text
