"""Real models' chat templates and tools: turns with calls render as transformers renders them, the format is found, and
what a template writes for an earlier call is what the parser reads of a new one.

The templates lie in a folder of public data that not everyone has; without it these tests are skipped.
"""

import itertools
import json
from typing import Any

import pytest
from tests.cpu.test_chat_template_transformers import SPECIAL_TOKENS, TEMPLATES, ours, template_names, theirs
from tests.tool_formats import parsed

from headrace.engine.host.chat_template import ChatTemplate
from headrace.server.reasoning import formats as reasoning_formats
from headrace.server.tools import formats
from headrace.server.tools.schemas import Tools

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "exact": {"type": "boolean", "description": "Whether."},
        "places": {"type": "array", "items": {"type": "string"}, "description": "Which."},
    },
    "required": ["city"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": WEATHER}}
    for name in ("get_weather", "stop_wheel")
]
ARGUMENTS: list[dict[str, Any]] = [
    {"city": "Zürich", "days": 3},
    {"city": 'a "b" <c>\n{d}', "exact": True, "places": ["x", "y"]},
]
CALLS: list[dict[str, Any]] = [
    {"id": f"abcdefgh{i}", "type": "function", "function": {"name": tool["function"]["name"], "arguments": given}}
    for i, (tool, given) in enumerate(zip(TOOLS, ARGUMENTS, strict=True))
]
ASKED = {"role": "user", "content": "How is it?"}

FORMATS = {
    "Apertus-8B-Instruct": "apertus",
    "ByteDance-Seed-OSS": "qwen3_coder",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "glm",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "Kimi-K2-Instruct": "kimi_k2",
    "Kimi-K2-Thinking": "kimi_k2",
    "LFM2-8B-A1B": "pythonic",
    "LFM2.5-8B-A1B": "pythonic",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "hermes",
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-Nano-v2": "hermes",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek",
    "deepseek-ai-DeepSeek-V4": "dsml",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "dsml",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "google-gemma-2-2b-it": "generic_json",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek",
    "meetkai-functionary-medium-v3.1": "functionary_v3_1",
    "meetkai-functionary-medium-v3.2": "functionary_v3_2",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3_json",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3_json",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "openai-gpt-oss-120b": "harmony",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "tencent-Hy3": "hunyuan",
    "unsloth-Apriel-1.5": "hermes",
    "upstage-Solar-Open-100B": "solar",
}
"""What each template's model speaks; those that speak a format without a parser of its own are not listed."""

REASONS = {
    "Apertus-8B-Instruct": "apertus",
    "ByteDance-Seed-OSS": "seed_oss",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "think",
    "GigaChat3-10B-A1.8B": None,
    "GigaChat3.1-10B-A1.8B": None,
    "Kimi-K2-Instruct": None,
    "Kimi-K2-Thinking": "kimi_k2",
    "LFM2-8B-A1B": None,
    "LFM2.5-8B-A1B": "think",
    "MiMo-VL": None,
    "MiniMax-M3": "minimax_m3",
    "Mistral-Small-3.2-24B-Instruct-2506": None,
    "NVIDIA-Nemotron-Nano-v2": "think",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": None,
    "Qwen-QwQ-32B": "think",
    "Qwen-Qwen2.5-7B-Instruct": None,
    "Qwen3-Coder": None,
    "Qwen3.5-4B": "think",
    "Spark2.5": "think",
    "StepFun3.5-Flash": "think",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "think",
    "deepseek-ai-DeepSeek-V3.1": "think",
    "deepseek-ai-DeepSeek-V4": "think",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "think",
    "google-gemma-2-2b-it": None,
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": None,
    "inclusionai-ling-3.0-flash": "think",
    "llama-cpp-deepseek-r1": "think",
    "meetkai-functionary-medium-v3.1": None,
    "meetkai-functionary-medium-v3.2": None,
    "meta-llama-Llama-3.2-3B-Instruct": None,
    "meta-llama-Llama-3.3-70B-Instruct": None,
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": None,
    "openai-gpt-oss-120b": None,
    "poolside-Laguna-S-2.1": "think",
    "poolside-Laguna-XS-2.1": "think",
    "tencent-Hy3": "hunyuan",
    "upstage-Solar-Open-100B": None,
}
"""How each template's model tells its reasoning, where a parser reads that; None: it does not reason, or the format of its
calls tells it apart. Those whose reasoning no parser reads are not listed."""


@pytest.fixture(params=template_names())
def name(request: pytest.FixtureRequest) -> str:
    if not (TEMPLATES / f"{request.param}.jinja").is_file():
        pytest.skip("needs ../shared/data/suites/llama.cpp/templates")
    return str(request.param)


def source_of(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def _with_arguments_as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def forms(turn: dict[str, Any]) -> list[dict[str, Any]]:
    """A turn with calls in every form that templates may want, the preferred first."""
    absent = {key: value for key, value in turn.items() if key != "content"}
    as_text = [_with_arguments_as_text(call) for call in turn["tool_calls"]]
    return [
        {**one, "tool_calls": calls}
        for calls in (turn["tool_calls"], as_text)
        for one in ({**absent, "content": None}, {**absent, "content": ""}, absent)
    ]


@pytest.mark.parametrize("num_calls", [1, 2])
@pytest.mark.parametrize("is_answered", [True, False])
def test_turns_with_calls_render_as_transformers_renders_them(name: str, num_calls: int, is_answered: bool) -> None:
    source, template = source_of(name), ChatTemplate(source_of(name), SPECIAL_TOKENS)
    turn: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": CALLS[:num_calls]}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "sunny"} for call in turn["tool_calls"]]
    later = [*results, {"role": "assistant", "content": "It is sunny."}, {"role": "user", "content": "Thanks"}]
    for tail in ([], later) if is_answered else ([],):
        for options in (dict[str, Any](tools=TOOLS), dict[str, Any]()):
            rendered = ours(template, [ASKED, turn, *tail], **options)
            options["add_generation_prompt"] = True
            candidates = [theirs(source, [ASKED, form, *tail], **options) for form in forms(turn)]
            assert rendered in candidates
            assert rendered is not None or candidates == [None] * len(candidates), (
                "a form that it can render was passed over"
            )
            assert rendered is None or "None" not in rendered or candidates.count(rendered) > 1


def test_content_that_was_said_beside_a_call_renders_as_transformers_renders_it(name: str) -> None:
    source, template = source_of(name), ChatTemplate(source_of(name), SPECIAL_TOKENS)
    turn: dict[str, Any] = {"role": "assistant", "content": "Let me see.", "tool_calls": CALLS[:1]}
    result = {"role": "tool", "tool_call_id": CALLS[0]["id"], "content": "sunny"}
    rendered = ours(template, [ASKED, turn, result], tools=TOOLS)
    as_text = {**turn, "tool_calls": forms(turn)[3]["tool_calls"]}
    expected = [theirs(source, [ASKED, one, result], add_generation_prompt=True, tools=TOOLS) for one in (turn, as_text)]
    assert rendered in expected


def test_the_format_is_found_in_the_template(name: str) -> None:
    found = formats.format_of_template(source_of(name))
    if name in FORMATS:
        assert found is formats.FORMATS[FORMATS[name]]
    if name in REASONS:
        reasoning = REASONS[name]
        expected = None if reasoning is None else reasoning_formats.FORMATS[reasoning]
        assert reasoning_formats.format_of_template(source_of(name)) is expected


WRITES_NO_CALLS = {"LFM2-8B-A1B", "google-gemma-2-2b-it", "ibm-granite-granite-3.3-2B-Instruct"}
REFUSED_BY_THE_SANDBOX = {"Kimi-K2-Instruct", "Kimi-K2-Thinking"}
"""They change a list, which transformers' sandbox does not allow either."""
CANNOT_RENDER_TOOLS = {"llama-cpp-deepseek-r1"}


def test_what_the_template_writes_of_a_call_is_what_the_parser_reads(name: str) -> None:
    if name not in FORMATS or name in WRITES_NO_CALLS | REFUSED_BY_THE_SANDBOX | CANNOT_RENDER_TOOLS:
        pytest.skip("this template writes no calls that a parser here is for")
    template = ChatTemplate(source_of(name), SPECIAL_TOKENS)
    prompt = template.render([ASKED], tools=TOOLS)
    num_read = 0
    for call in CALLS:
        answered = template.render(
            [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}], tools=TOOLS, add_generation_prompt=False
        )
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, answered, strict=False)))
        # Templates that open the reasoning in the prompt write an earlier turn otherwise: look a little further back.
        goes_on = FORMATS[name] in ("functionary_v3_2", "harmony")
        written = answered[shared if goes_on else max(0, shared - 12) :]
        for end in (
            "<|im_end|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "</s>",
            "<|end_of_text|>",
            "<｜end▁of▁sentence｜>",
            "<|message_sep|>",
        ):
            written = written.rstrip("\n").removesuffix(end)
        answer = parsed(FORMATS[name], [written], Tools({tool["function"]["name"]: WEATHER for tool in TOOLS}))
        assert [one.name for one in answer.calls] == [call["function"]["name"]], written
        assert json.loads(answer.calls[0].arguments) == call["function"]["arguments"], written
        num_read += 1
    assert num_read == len(CALLS)
