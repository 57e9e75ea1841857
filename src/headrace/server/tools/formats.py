"""Which format of tool calls a model speaks: by name, or by what its chat template shows.

Knows the formats and the traces that they leave in templates. Does not know how any is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.errors import ConfigurationError
from headrace.server.echo import suggestion
from headrace.server.tools.apertus import ApertusParser
from headrace.server.tools.cohere import CohereParser
from headrace.server.tools.deepseek import DeepSeekParser
from headrace.server.tools.functionary import FunctionaryV31Parser, FunctionaryV32Parser
from headrace.server.tools.gemma4 import Gemma4Parser
from headrace.server.tools.generic_json import GenericJsonParser
from headrace.server.tools.gigachat import GigaChatParser
from headrace.server.tools.glm import GlmParser, HunyuanParser
from headrace.server.tools.granite import GraniteParser
from headrace.server.tools.harmony import HarmonyParser
from headrace.server.tools.hermes import HermesParser
from headrace.server.tools.invocations import DsmlParser, MiniMaxM2Parser
from headrace.server.tools.kimi_k2 import KimiK2Parser
from headrace.server.tools.llama3_json import Llama3JsonParser
from headrace.server.tools.minimax_m3 import MiniMaxM3Parser
from headrace.server.tools.mistral import MistralParser
from headrace.server.tools.parser import ToolParser
from headrace.server.tools.phi4 import Phi4Parser
from headrace.server.tools.pythonic import PythonicParser
from headrace.server.tools.qwen3_coder import Qwen3CoderParser
from headrace.server.tools.solar import SolarParser


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One way to write calls."""

    parser: type[ToolParser]
    reason: str
    """Why it has a parser of its own."""
    signs: tuple[tuple[str, ...], ...] = ()
    """A template that holds all strings of any of these speaks it."""
    is_always_on: bool = False
    """It marks plain answers too, so that they must be read even without tools."""
    separates_reasoning: bool = False
    short_ids: bool = False
    """Its templates take no ids but those of nine letters and digits."""


FORMATS: dict[str, ToolFormat] = {
    # In the order in which templates are looked at: what is peculiar comes before what is common.
    "harmony": ToolFormat(
        parser=HarmonyParser,
        reason="gpt-oss puts every message on a channel, calls and reasoning alike",
        signs=(("<|channel|>", "<|message|>"),),
        is_always_on=True,
        separates_reasoning=True,
    ),
    "solar": ToolFormat(
        parser=SolarParser,
        reason="every message is marked as reasoning, answer or calls",
        signs=(("<|tool_call:begin|>", "<|think|>"),),
        is_always_on=True,
        separates_reasoning=True,
    ),
    "deepseek": ToolFormat(
        parser=DeepSeekParser,
        reason="V3, R1 and V3.1 mark sections and calls with special tokens; the last leaves out the type and the fence",
        signs=(("<｜tool▁calls▁begin｜>",), ("<｜tool▁call▁begin｜>",)),
    ),
    "dsml": ToolFormat(
        parser=DsmlParser,
        reason="DeepSeek V3.2 and V4: tags that carry a special token, parameters that say whether they are strings",
        signs=(("｜DSML｜",),),
    ),
    "minimax_m2": ToolFormat(
        parser=MiniMaxM2Parser,
        reason="invocations in plain tags inside a block of the maker's name",
        signs=(("<minimax:tool_call>",),),
    ),
    "minimax_m3": ToolFormat(
        parser=MiniMaxM3Parser,
        reason="arguments as tags all the way down, each behind a mark",
        signs=(("]<]minimax[>[",),),
    ),
    "cohere": ToolFormat(
        parser=CohereParser,
        reason="a list of objects behind a mark, numbered anew in every turn",
        signs=(("<|START_ACTION|>",),),
    ),
    "apertus": ToolFormat(
        parser=ApertusParser,
        reason="objects whose only key is the tool's name",
        signs=(("<|tools_prefix|>",),),
    ),
    "gemma4": ToolFormat(
        parser=Gemma4Parser,
        reason="bare keys, and marks for quotes",
        signs=(("<|tool_call>call:",), ("<start_function_call>",)),
    ),
    "kimi_k2": ToolFormat(
        parser=KimiK2Parser,
        reason="marks like DeepSeek's, with ids that the model numbers itself",
        signs=(("<|tool_calls_section_begin|>",),),
    ),
    "gigachat": ToolFormat(
        parser=GigaChatParser,
        reason="one object behind a mark, or behind a role of its own",
        signs=(("<|function_call|>", "<|role_sep|>"), ("function call", "<|role_sep|>")),
    ),
    "mistral": ToolFormat(
        parser=MistralParser,
        reason="one mark before a list of objects, in newer models before each name",
        signs=(("[TOOL_CALLS]",),),
        short_ids=True,
    ),
    "hunyuan": ToolFormat(
        parser=HunyuanParser,
        reason="GLM's keys and values, in a section, with a mark behind the name",
        signs=(("<tool_sep{}>", ":opensource"), ("<tool_sep:opensource>",)),
    ),
    "glm": ToolFormat(
        parser=GlmParser,
        reason="keys and values in tags of their own, the name bare behind the first tag",
        signs=(("<tool_call>", "<arg_key>"),),
    ),
    "qwen3_coder": ToolFormat(
        parser=Qwen3CoderParser,
        reason="arguments in tags, values as bare text whose type only the schema tells",
        signs=(("<function=", "<parameter="),),
    ),
    "functionary_v3_2": ToolFormat(
        parser=FunctionaryV32Parser,
        reason="every part of an answer is addressed, the first from within the prompt",
        signs=((">>>all",), (">>>${recipient}",)),
        is_always_on=True,
    ),
    "functionary_v3_1": ToolFormat(
        parser=FunctionaryV31Parser,
        reason="the name in a tag, the arguments as one JSON object behind it",
        signs=(("<function=", "</function>"),),
    ),
    "phi4": ToolFormat(
        parser=Phi4Parser,
        reason="a list behind the word `functools`, or between marks like Granite's",
        signs=(("functools[",), ("<|tool|>", "<|/tool|>")),
    ),
    "granite": ToolFormat(
        parser=GraniteParser,
        reason="a mark and a list, without a closing mark",
        signs=(("<|tool_call|>", "available_tools"), ("<function_call>",)),
    ),
    "pythonic": ToolFormat(
        parser=PythonicParser,
        reason="calls as Python writes them, announced by nothing",
        signs=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("<|python_start|>",), ("[func_name1(",), ("[func1(",)),
    ),
    "hermes": ToolFormat(
        parser=HermesParser,
        reason="the most common: JSON objects between tags",
        signs=(("<tool_call>",), ("<tool_calls>",), ("<TOOLCALL>",)),
    ),
    "llama3_json": ToolFormat(
        parser=Llama3JsonParser,
        reason="bare objects with `parameters`, told from other JSON only by the names of tools",
        signs=(("<|python_tag|>",), ("<|start_header_id|>ipython",), ('"parameters": ', "tool_calls")),
    ),
    "generic_json": ToolFormat(
        parser=GenericJsonParser,
        reason="for models that show no format of their own",
    ),
}

OTHER_NAMES = {
    "openai": "harmony",
    "gpt_oss": "harmony",
    "deepseek_v3": "deepseek",
    "deepseek_r1": "deepseek",
    "deepseek_v31": "deepseek",
    "deepseek_v32": "dsml",
    "deepseek_v4": "dsml",
    "minimax": "minimax_m2",
    "cohere_command3": "cohere",
    "gigachat3": "gigachat",
    "hunyuan_a13b": "hermes",
    "hy3": "hunyuan",
    "solar_open": "solar",
    "functiongemma": "gemma4",
    "gemma": "gemma4",
    "glm45": "glm",
    "glm47": "glm",
    "qwen3_xml": "qwen3_coder",
    "seed_oss": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "qwen": "hermes",
    "qwen25": "hermes",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "lfm2": "pythonic",
    "phi4_mini_json": "phi4",
    "json": "generic_json",
}
"""What other servers call them."""


def format_named(name: str) -> ToolFormat:
    """Raises ConfigurationError where there is none of this name."""
    found = FORMATS.get(OTHER_NAMES.get(name, name))
    if found is None:
        known = (*FORMATS, *OTHER_NAMES)
        raise ConfigurationError(
            f"tool_call_parser {name!r} is not known{suggestion(name, known)} (known: {', '.join(FORMATS)})"
        )
    return found


def format_of_template(source: str) -> ToolFormat:
    """The format that the template shows; the generic one where it shows none."""
    for one in FORMATS.values():
        if _shows(source, one.signs):
            return one
    return FORMATS["generic_json"]


def _shows(source: str, signs: Sequence[Sequence[str]]) -> bool:
    return any(all(sign in source for sign in signs_together) for signs_together in signs)
