"""How models write calls of tools: a writer for each format, and answers as models really give them.

Knows the formats from the models' own templates and model cards. Does not know how they are parsed.
"""

# ruff: noqa: E501 (an answer stands on one line, as the model wrote it)

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.server.parsing.events import Parsed
from headrace.server.tools.formats import FORMATS
from headrace.server.tools.parser import ToolParser
from headrace.server.tools.schemas import Tools

Arguments = dict[str, Any]
Calls = Sequence[tuple[str, Arguments]]
Writer = Callable[[str, Calls], str]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"type": "string"}},
        "where": {"type": "object"},
    },
    "required": ["city"],
}
TOOLS = Tools({"get_weather": WEATHER, "math.add": {"type": "object"}, "stop": {}, "python": {}})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _objects(calls: Calls, arguments: str = "arguments") -> list[str]:
    return [f'{{"name": {_json(name)}, "{arguments}": {_json(given)}}}' for name, given in calls]


def _hermes(content: str, calls: Calls) -> str:
    return content + "\n".join(f"\n<tool_call>\n{call}\n</tool_call>" for call in _objects(calls))


def _in_one_pair_of_tags(content: str, calls: Calls) -> str:
    return content + "<tool_calls>\n" + "\n".join(_objects(calls)) + "\n</tool_calls>"


def _granite(content: str, calls: Calls) -> str:
    return content + "<|tool_call|>[" + ", ".join(_objects(calls)) + "]"


def _phi4(content: str, calls: Calls) -> str:
    return content + "functools[" + ", ".join(_objects(calls)) + "]"


def _llama3_json(content: str, calls: Calls) -> str:
    return (content and content + "\n") + "; ".join(_objects(calls, "parameters"))


def _python_tag(content: str, calls: Calls) -> str:
    return content + "<|python_tag|>" + "; ".join(_objects(calls, "parameters"))


def _generic_json(content: str, calls: Calls) -> str:
    return (content and content + "\n") + "[" + ",\n ".join(_objects(calls)) + "]"


def _python_calls(calls: Calls) -> str:
    written = (f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})" for name, given in calls)
    return f"[{', '.join(written)}]"


def _pythonic(content: str, calls: Calls) -> str:
    return (content and content + "\n") + _python_calls(calls)


def _lfm2(content: str, calls: Calls) -> str:
    return f"<|tool_call_start|>{_python_calls(calls)}<|tool_call_end|>{content}"


def _mistral_list(content: str, calls: Calls) -> str:
    objects = [call[:-1] + ', "id": "9aXb3cD4e"}' for call in _objects(calls)]
    return content + "[TOOL_CALLS][" + ", ".join(objects) + "]"


def _mistral_names(content: str, calls: Calls) -> str:
    return content + "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(given)}" for name, given in calls)


def _deepseek_v3(content: str, calls: Calls) -> str:
    written = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(given)}\n```<｜tool▁call▁end｜>"
        for name, given in calls
    )
    return f"{content}<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _deepseek_v31(content: str, calls: Calls) -> str:
    written = "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(given)}<｜tool▁call▁end｜>" for name, given in calls)
    return f"{content}<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"


def _kimi_k2(content: str, calls: Calls) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{_json(given)}<|tool_call_end|>"
        for i, (name, given) in enumerate(calls)
    )
    return f"{content}<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def _glm(content: str, calls: Calls) -> str:
    written = content
    for name, given in calls:
        pairs = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{_bare(value)}</arg_value>\n" for key, value in given.items())
        written += f"\n<tool_call>{name}\n{pairs}</tool_call>"
    return written


def _qwen3_coder(content: str, calls: Calls) -> str:
    written = content
    for name, given in calls:
        pairs = "".join(f"<parameter={key}>\n{_bare(value)}\n</parameter>\n" for key, value in given.items())
        written += f"\n<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"
    return written


def _functionary_v3_1(content: str, calls: Calls) -> str:
    return content + "".join(f"<function={name}>{_json(given)}</function>" for name, given in calls)


def _functionary_v3_2(content: str, calls: Calls) -> str:
    parts = [f"all\n{content}"] if content else []
    return ">>>".join([*parts, *(f"{name}\n{_json(given)}" for name, given in calls)])


def _harmony(content: str, calls: Calls) -> str:
    said = f"<|channel|>commentary<|message|>{content}<|end|><|start|>assistant" if content else ""
    written = "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(given)}<|call|>"
        for name, given in calls
    )
    return said + written


def _harmony_early_address(content: str, calls: Calls) -> str:
    said = f"<|channel|>final<|message|>{content}<|end|><|start|>assistant" if content else ""
    written = "<|start|>assistant".join(
        f" to=functions.{name}<|channel|>commentary json<|message|>{_json(given)}<|call|>" for name, given in calls
    )
    return said + written


def _dsml(content: str, calls: Calls) -> str:
    def parameter(key: str, value: Any) -> str:
        is_string = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{is_string}">{_bare(value)}</｜DSML｜parameter>\n'

    written = "".join(
        f'<｜DSML｜invoke name="{name}">\n'
        + ("".join(parameter(key, value) for key, value in given.items()) or "\n")
        + "</｜DSML｜invoke>\n"
        for name, given in calls
    )
    return f"{content}\n\n<｜DSML｜tool_calls>\n{written}</｜DSML｜tool_calls>"


def _minimax_m2(content: str, calls: Calls) -> str:
    written = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{_bare(value)}</parameter>\n' for key, value in given.items())
        + "</invoke>\n"
        for name, given in calls
    )
    return f"{content}\n<minimax:tool_call>\n{written}</minimax:tool_call>"


def _cohere(content: str, calls: Calls) -> str:
    objects = ",".join(
        f'\n    {{"tool_call_id": "{i}", "tool_name": {_json(name)}, "parameters": {_json(given)}}}'
        for i, (name, given) in enumerate(calls)
    )
    return f"{content}<|START_ACTION|>[{objects}\n]<|END_ACTION|>"


def _apertus(content: str, calls: Calls) -> str:
    objects = ", ".join(f"{{{_json(name)}: {_json(given)}}}" for name, given in calls)
    return f"{content}<|tools_prefix|>[{objects}]<|tools_suffix|>"


def _gemma_value(value: Any, quote: str, key_quote: str = "") -> str:
    match value:
        case str():
            return quote + value + quote
        case dict():
            pairs = (f"{key_quote}{key}{key_quote}:{_gemma_value(one, quote, key_quote)}" for key, one in value.items())
            return "{" + ",".join(pairs) + "}"
        case list():
            return "[" + ",".join(_gemma_value(one, quote, key_quote) for one in value) + "]"
    return _json(value)


_GEMMA_QUOTE = '<|"|>'


def _gemma4(content: str, calls: Calls) -> str:
    return content + "".join(
        f"<|tool_call>call:{name}{_gemma_value(given, _GEMMA_QUOTE)}<tool_call|>" for name, given in calls
    )


def _function_gemma(content: str, calls: Calls) -> str:
    return content + "".join(
        f"<start_function_call>call:{name}{_gemma_value(given, '<escape>')}<end_function_call>" for name, given in calls
    )


def _seed(content: str, calls: Calls) -> str:
    written = content
    for name, given in calls:
        pairs = "".join(f"<parameter={key}>{_bare(value)}</parameter>\n" for key, value in given.items())
        written += f"\n<seed:tool_call>\n<function={name}>\n{pairs}</function>\n</seed:tool_call>"
    return written


def _hunyuan(content: str, calls: Calls) -> str:
    def pair(key: str, value: Any) -> str:
        return (
            f"<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{_bare(value)}</arg_value:opensource>\n"
        )

    written = "".join(
        f"<tool_call:opensource>{name}<tool_sep:opensource>\n"
        + "".join(pair(key, value) for key, value in given.items())
        + "</tool_call:opensource>\n"
        for name, given in calls
    )
    return f"{content}<tool_calls:opensource>\n{written}</tool_calls:opensource>"


def _solar(content: str, calls: Calls) -> str:
    said = f"<|content|>{content}<|end|><|begin|>assistant" if content else ""
    written = "".join(
        f"<|tool_call:begin|>a1b2c3d4e{i}<|tool_call:name|>{name}<|tool_call:args|>{_json(given)}<|tool_call:end|>"
        for i, (name, given) in enumerate(calls)
    )
    return f"{said}<|tool_calls|>{written}<|calls|>"


def _gigachat(content: str, calls: Calls) -> str:
    """One after the other, though its template writes no more than one."""
    return content + "".join(f"<|function_call|>{call}" for call in _objects(calls))


def _gigachat_role(content: str, calls: Calls) -> str:
    return content + "".join(f"<|message_sep|>\n\nfunction call<|role_sep|>\n{call}" for call in _objects(calls))


_MINIMAX = "]<]minimax[>["


def _minimax_m3_value(value: Any) -> str:
    match value:
        case dict():
            return "".join(
                f"{_MINIMAX}<{key}>{_minimax_m3_value(one)}{_MINIMAX}</{key}>"
                for key, one in value.items()
                if one is not None
            )
        case list():
            return "".join(f"{_MINIMAX}<item>{_minimax_m3_value(one)}{_MINIMAX}</item>" for one in value)
    return _bare(value)


def _minimax_m3(content: str, calls: Calls) -> str:
    written = "".join(
        f'{_MINIMAX}<invoke name="{name}">{_minimax_m3_value(given)}{_MINIMAX}</invoke>\n' for name, given in calls
    )
    return f"{content}{_MINIMAX}<tool_call>\n{written}{_MINIMAX}</tool_call>"


WRITERS: dict[str, tuple[str, Writer]] = {
    "hermes": ("hermes", _hermes),
    "hermes, one pair of tags": ("hermes", _in_one_pair_of_tags),
    "granite": ("granite", _granite),
    "phi4": ("phi4", _phi4),
    "llama3_json": ("llama3_json", _llama3_json),
    "llama3_json, behind its mark": ("llama3_json", _python_tag),
    "generic_json": ("generic_json", _generic_json),
    "generic_json, in tags": ("generic_json", _hermes),
    "pythonic": ("pythonic", _pythonic),
    "pythonic, in marks": ("pythonic", _lfm2),
    "mistral, a list": ("mistral", _mistral_list),
    "mistral, names": ("mistral", _mistral_names),
    "deepseek v3": ("deepseek", _deepseek_v3),
    "deepseek v3.1": ("deepseek", _deepseek_v31),
    "kimi_k2": ("kimi_k2", _kimi_k2),
    "glm": ("glm", _glm),
    "qwen3_coder": ("qwen3_coder", _qwen3_coder),
    "qwen3_coder, seed": ("qwen3_coder", _seed),
    "hunyuan": ("hunyuan", _hunyuan),
    "dsml": ("dsml", _dsml),
    "minimax_m2": ("minimax_m2", _minimax_m2),
    "minimax_m3": ("minimax_m3", _minimax_m3),
    "cohere": ("cohere", _cohere),
    "gigachat": ("gigachat", _gigachat),
    "gigachat, as a role": ("gigachat", _gigachat_role),
    "solar": ("solar", _solar),
    "apertus": ("apertus", _apertus),
    "gemma4": ("gemma4", _gemma4),
    "gemma4, function_gemma": ("gemma4", _function_gemma),
    "functionary_v3_1": ("functionary_v3_1", _functionary_v3_1),
    "functionary_v3_2": ("functionary_v3_2", _functionary_v3_2),
    "harmony": ("harmony", _harmony),
    "harmony, addressed early": ("harmony", _harmony_early_address),
}
"""By what they write: the format, and how."""


def parser_of(format_name: str, tools: Tools = TOOLS) -> ToolParser:
    """With ids that count."""
    numbers = itertools.count()
    return FORMATS[format_name].parser(tools, lambda: f"id{next(numbers)}")


def parsed(format_name: str, pieces: Iterable[str], tools: Tools = TOOLS) -> Parsed:
    parser, answer = parser_of(format_name, tools), Parsed()
    for piece in pieces:
        answer.add(parser.push(piece))
    answer.add(parser.finish())
    return answer


def calls_of(answer: Parsed) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def everything(answer: Parsed) -> str:
    """All that an answer shows, as one text; arguments also as what they mean, where they can be read."""
    shown = [answer.content, answer.reasoning]
    for call in answer.calls:
        shown += [call.id, call.name, call.arguments, call.arguments.encode().decode("unicode_escape", "replace")]
    return "\n".join(shown)


@dataclass(frozen=True)
class Sample:
    """What a model wrote, and what it said by that."""

    format: str
    text: str
    content: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    reasoning: str = ""


PARIS = ("get_weather", {"city": "Paris"})

SAMPLES = [
    # Hermes and its kin
    Sample("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>', "", (PARIS,)),
    Sample(
        "hermes",
        'I shall look.\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "São </tool_call> Paulo \\"centro\\" {[",'
        ' "where": {"a": [1, -2.5e3, {"b": null}], "ü": true}}}\n</tool_call>\n<tool_call>\n{"arguments": {}, "name": "stop"}'
        "\n</tool_call>",
        "I shall look.",
        (
            (
                "get_weather",
                {"city": 'São </tool_call> Paulo "centro" {[', "where": {"a": [1, -2500.0, {"b": None}], "ü": True}},
            ),
            ("stop", {}),
        ),
    ),
    Sample("hermes", "Write <tool_call> before it, and </tool_call> behind.", "Write <tool_call> before it, and </tool_call> behind."),
    Sample("hermes", '<tool_call>{"name": "stop", "arguments": {}}</tool_call> Done.', "Done.", (("stop", {}),)),
    Sample("hermes", '<tool_call>{"name": "stop"}</tool_call>', "", (("stop", {}),)),
    Sample("hermes", '<tool_call>{"name": "stop", "arguments": null}</tool_call>', "", (("stop", {}),)),
    Sample("hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", (PARIS,)),
    Sample(
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}</tool_call>',
        "",
        (PARIS,),
    ),
    Sample("hermes", '<tool_call>{"name": "stop", "argu": {}}</tool_call>', '<tool_call>{"name": "stop", "argu": {}}</tool_call>'),
    Sample(
        "hermes",
        '<tool_call>{"name": "stop", "arguments": {}, "why": "I must"}</tool_call>',
        ', "why": "I must"}</tool_call>',
        (("stop", {}),),
    ),
    Sample("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb"}}</tool_call>', "", (("get_weather", {"city": "a\nb"}),)),
    Sample("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "\\ud83c\\udf0a\\u00e9"}}</tool_call>', "", (("get_weather", {"city": "🌊é"}),)),
    Sample("hermes", '<TOOLCALL>[{"name": "stop", "arguments": {}}]</TOOLCALL>', "", (("stop", {}),)),
    # Granite, Phi
    Sample("granite", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "stop", "arguments": {}}]', "", (PARIS, ("stop", {}))),
    Sample("granite", "<|tool_call|>[] and <|tool_call|>", "<|tool_call|>[] and <|tool_call|>"),
    Sample("phi4", 'functools[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", (PARIS,)),
    Sample("phi4", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]<|/tool_call|>', "", (PARIS,)),
    Sample("phi4", "from functools import partial; functools[0]", "from functools import partial; functools[0]"),
    # Llama
    Sample("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", (PARIS,)),
    Sample("llama3_json", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "stop", "parameters": {}}', "", (PARIS, ("stop", {}))),
    Sample("llama3_json", '{"name": "Bob", "parameters": {"age": 3}}', '{"name": "Bob", "parameters": {"age": 3}}'),
    Sample("llama3_json", 'Like {"name": "stop", "parameters": {}}', 'Like {"name": "stop", "parameters": {}}'),
    Sample("llama3_json", "int main() {\n{\n}\n}", "int main() {\n{\n}\n}"),
    # Python
    Sample("pythonic", "[get_weather(city='Paris', days=3), math.add(a=1.5, b=[-2, None], c={'x': (True, \"y'\")})]", "",
           (("get_weather", {"city": "Paris", "days": 3}), ("math.add", {"a": 1.5, "b": [-2, None], "c": {"x": [True, "y'"]}}))),
    Sample("pythonic", "[1, 2, 3]", "[1, 2, 3]"),
    Sample("pythonic", "[other(x=1)]", "[other(x=1)]"),
    Sample("pythonic", "<|tool_call_start|>[stop()]<|tool_call_end|>Stopped.", "Stopped.", (("stop", {}),)),
    Sample("pythonic", r"""[get_weather(city="a\n\"b\" \u00e9 \x41 \q")]""", "", (("get_weather", {"city": 'a\n"b" é A \\q'}),)),
    # Mistral
    Sample("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "9aXb3cD4e"}]', "", (PARIS,)),
    Sample("mistral", '[TOOL_CALLS] [{"name": "stop", "arguments": {}}]', "", (("stop", {}),)),
    Sample("mistral", 'Well:[TOOL_CALLS]get_weather[CALL_ID]9aXb3cD4e[ARGS]{"city": "Paris"}[TOOL_CALLS]stop[ARGS]{}', "Well:", (PARIS, ("stop", {}))),
    Sample("mistral", 'get_weather{"city": "Paris"} or [TOOL_CALLS] nothing', 'get_weather{"city": "Paris"} or [TOOL_CALLS] nothing'),
    Sample("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', "", (PARIS,)),
    # DeepSeek, Kimi
    Sample("deepseek", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "", (PARIS,)),
    Sample("deepseek", 'Yes.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>', "Yes.", (PARIS, ("stop", {}))),
    Sample("deepseek", '<｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>', "", (("stop", {}),)),
    Sample("deepseek", "<｜tool▁calls▁begin｜>oh", "<｜tool▁calls▁begin｜>oh"),
    Sample("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>', "", (PARIS,)),
    Sample("kimi_k2", "<|tool_calls_section_begin|>?", "<|tool_calls_section_begin|>?"),
    # Tags
    Sample("glm", '\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n<arg_key>places</arg_key>\n<arg_value>["a", "b"]</arg_value>\n</tool_call>', "",
           (("get_weather", {"city": "Paris", "days": 3, "places": ["a", "b"]}),)),
    Sample("glm", "<tool_call>stop</tool_call>", "", (("stop", {}),)),
    Sample("glm", "A <tool_call>tag says it.", "A <tool_call>tag says it."),
    Sample("qwen3_coder", '<tool_call>\n<function=get_weather>\n<parameter=city>\nline 1\nif x < 3: </parameter> "q"\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=limit>\nnull\n</parameter>\n</function>\n</tool_call>', "",
           (("get_weather", {"city": 'line 1\nif x < 3: </parameter> "q"', "days": 3, "exact": True, "limit": None}),)),
    Sample("qwen3_coder", "<function=stop>\n</function>", "", (("stop", {}),)),
    Sample("qwen3_coder", "<tool_call>\n<function=math.add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\nb c\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=stop>\n</function>\n</tool_call>", "", (("math.add", {"a": 1, "b": "b c"}), ("stop", {}))),
    Sample("qwen3_coder", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris</parameter>\n</function>\n</seed:tool_call>", "", (PARIS,)),
    Sample("qwen3_coder", "<tool_call>\nnothing", "<tool_call>\nnothing"),
    # Invocations
    Sample("dsml", 'Wait.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">12</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n<｜DSML｜parameter name="where" string="false">{"a": [1]}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="stop">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>', "Wait.",
           (("get_weather", {"city": "12", "days": 3, "where": {"a": [1]}}), ("stop", {}))),
    Sample("dsml", '<｜DSML｜function_calls>\n<｜DSML｜invoke name="stop">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>', "", (("stop", {}),)),
    Sample("dsml", '<｜DSML｜tool_calls> is how it begins', '<｜DSML｜tool_calls> is how it begins'),
    Sample("dsml", '<｜DSML｜tool_calls><｜DSML｜invoke name="math.add"><｜DSML｜parameter name="a" string="false">"q"</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>', "", (("math.add", {"a": "q"}),)),
    Sample("minimax_m2", '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">New\nYork</parameter>\n<parameter name="days">2</parameter>\n<parameter name="places">["a", "b"]</parameter>\n</invoke>\n</minimax:tool_call>', "",
           (("get_weather", {"city": "New\nYork", "days": 2, "places": ["a", "b"]}),)),
    Sample("minimax_m2", '<minimax:tool_call>?', '<minimax:tool_call>?'),
    # Cohere, Apertus, Gemma
    Sample("cohere", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Paris"}},\n    {"tool_call_id": "1", "tool_name": "stop", "parameters": {}}\n]<|END_ACTION|>', "", (PARIS, ("stop", {}))),
    Sample("cohere", "<|START_ACTION|>[]<|END_ACTION|>", "<|START_ACTION|>[]<|END_ACTION|>"),
    Sample("apertus", 'So:<|tools_prefix|>[{"get_weather": {"city": "Paris"}}, {"stop": {}}]<|tools_suffix|>', "So:", (PARIS, ("stop", {}))),
    Sample("apertus", '<|tools_prefix|>[{"stop": 1}]<|tools_suffix|>', '<|tools_prefix|>[{"stop": 1}]<|tools_suffix|>'),
    Sample("gemma4", '<|tool_call>call:get_weather{city:<|"|>São "Paulo", {x:1}<|"|>,days:3,exact:true,limit:null,places:[<|"|>a<|"|>,<|"|><|"|>],where:{x:{y:[]}}}<tool_call|><|tool_call>call:stop{}<tool_call|>', "",
           (("get_weather", {"city": 'São "Paulo", {x:1}', "days": 3, "exact": True, "limit": None, "places": ["a", ""], "where": {"x": {"y": []}}}), ("stop", {}))),
    Sample("gemma4", "<start_function_call>call:get_weather{city:<escape>Paris<escape>,limit:None}<end_function_call>", "", (("get_weather", {"city": "Paris", "limit": None}),)),
    Sample("gemma4", "<|tool_call>call me", "<|tool_call>call me"),
    Sample("gemma4", '<|tool_call>call:math.add{<|"|>a<|"|>:-1.5e3, b: False}<tool_call|>!', "!", (("math.add", {"a": -1500.0, "b": False}),)),
    # Hunyuan, MiniMax M3, GigaChat, Solar
    Sample("hunyuan", '<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Paris</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>stop<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>', "", (PARIS, ("stop", {}))),
    Sample("hunyuan", 'Well.<tool_call:opensource>stop<tool_sep:opensource></tool_call:opensource>', "Well.", (("stop", {}),)),
    Sample("hunyuan", "<tool_calls:opensource>\n<tool_call:opensource>stop</tool_call:opensource>", "<tool_calls:opensource>\n<tool_call:opensource>stop</tool_call:opensource>"),
    Sample("hunyuan", "<tool_calls> are not <tool_call:open", "<tool_calls> are not <tool_call:open"),
    Sample("minimax_m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<city>São "Paulo" <b>]<]minimax[>[</city>]<]minimax[>[<days>3]<]minimax[>[</days>]<]minimax[>[<places>]<]minimax[>[<item>a]<]minimax[>[</item>]<]minimax[>[<item>]<]minimax[>[</item>]<]minimax[>[</places>]<]minimax[>[<where>]<]minimax[>[<x>]<]minimax[>[<item>1.5]<]minimax[>[</item>]<]minimax[>[</x>]<]minimax[>[</where>]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="stop">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>', "",
           (("get_weather", {"city": 'São "Paulo" <b>', "days": 3, "places": ["a", ""], "where": {"x": [1.5]}}), ("stop", {}))),
    Sample("minimax_m3", 'So:]<]minimax[>[<tool_call>]<]minimax[>[<invoke name="get_weather">\n]<]minimax[>[<city>Paris]<]minimax[>[</city>\n]<]minimax[>[<where>]<]minimax[>[</where>]<]minimax[>[<places>]<]minimax[>[</places>]<]minimax[>[</invoke>', "So:", (("get_weather", {"city": "Paris", "where": {}, "places": []}),)),
    Sample("minimax_m3", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="get_weather">]<]minimax[>[<where>{"x": [null]}]<]minimax[>[</where>]<]minimax[>[<limit>null]<]minimax[>[</limit>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>', "", (("get_weather", {"where": {"x": [None]}, "limit": None}),)),
    Sample("minimax_m3", "A ]<]minimax[>[ and ]<]minimax[>[<tool_call> are odd", "A ]<]minimax[>[ and ]<]minimax[>[<tool_call> are odd"),
    Sample("gigachat", 'Now.<|function_call|>{"name": "get_weather", "arguments": {"city": "Paris"}}', "Now.", (PARIS,)),
    Sample("gigachat", '\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris"}}', "", (PARIS,)),
    Sample("gigachat", 'a function call, a function call<|role_sep|>\n{"city": "Paris"}', 'a function call, a function call<|role_sep|>\n{"city": "Paris"}'),
    Sample("gigachat", "<|function_call|>?", "<|function_call|>?"),
    Sample("gigachat", 'Now.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "get_weather", "arguments": {"city": "Paris"}}', "Now.", (PARIS,)),
    Sample("gigachat", "<|message_sep|>\n\nfunction call me", "<|message_sep|>\n\nfunction call me"),
    Sample("solar", '<|think|>The user wants weather.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{"city": "Paris"}<|tool_call:end|><|tool_call:begin|>b1b2c3d4e5<|tool_call:name|>stop<|tool_call:args|>{}<|tool_call:end|><|calls|>', "", (PARIS, ("stop", {})), "The user wants weather."),
    Sample("solar", "<|think|>A.<|end|><|begin|>assistant<|content|>It is C.<|end|>", "It is C.", (), "A."),
    Sample("solar", "<|content|>It is C.", "It is C."),
    Sample("solar", "<|begin|>user and <|tool_calls|> alike", "<|begin|>user and <|tool_calls|> alike"),
    Sample("solar", "No mark at all.", "No mark at all."),
    Sample("qwen3_coder", "<seed:tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n\n</parameter>\n</function>\n</seed:tool_call>", "", (("get_weather", {"city": "\nParis\n\n"}),)),
    # Functionary
    Sample("functionary_v3_1", 'Now <function=get_weather>{"city": "Paris"}</function>', "Now", (PARIS,)),
    Sample("functionary_v3_1", '<|python_tag|>print("hi")', "", (("python", {"code": 'print("hi")'}),)),
    Sample("functionary_v3_1", "<function=get_weather>no</function>", "<function=get_weather>no</function>"),
    Sample("functionary_v3_2", "all\nIn Python:\n>>> 1 + 1", "In Python:\n>>> 1 + 1"),
    Sample("functionary_v3_2", 'get_weather\n{"city": "Paris"}>>>python\nx = 1\n>>> x', "", (PARIS, ("python", {"code": "x = 1\n>>> x"}))),
    Sample("functionary_v3_2", "no address", "no address"),
    # Harmony
    Sample("harmony", '<|channel|>analysis<|message|>The user wants weather.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}', "", (PARIS,), "The user wants weather."),
    Sample("harmony", "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|end|><|start|>assistant<|channel|>final<|message|>It is C.", "It is C.", (), "A.\nB."),
    Sample("harmony", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Paris"}', "", (PARIS,)),
    Sample("harmony", "<|channel|>odd one<|message|>Hm", "<|channel|>odd one<|message|>Hm"),
    Sample("harmony", "No channel at all.", "No channel at all."),
    # Anything
    Sample("generic_json", '{"name": "get_weather", "arguments": {"city": "Paris"}}', "", (PARIS,)),
    Sample("generic_json", 'So:\n[{"tool_name": "stop", "parameters": {}}, {"name": "get_weather", "arguments": {"city": "Paris"}}]', "So:", (("stop", {}), PARIS)),
    Sample("generic_json", '{"city": "Paris", "name": "stop"}', '{"city": "Paris", "name": "stop"}'),
]  # fmt: skip
