"""The tools and calls of a public suite, written in every format and read back: the same calls.

The suite lies in a folder of public data that not everyone has; without it these tests are skipped.
"""

import json
import tarfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from tests.tool_formats import WRITERS, Calls, calls_of, parsed

from headrace.engine.host.chat_template import ChatTemplate
from headrace.protocol.openai import ToolDefinition
from headrace.server.tools.request import calls_schema, template_tools
from headrace.server.tools.schemas import Tools

SUITES = Path(__file__).resolve().parents[3] / "shared" / "data" / "suites"
ARCHIVE = SUITES / "bfcl" / "bfcl_v4_data.tar.xz"
TEMPLATES = SUITES / "llama.cpp" / "templates"
PARTS = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple", "live_parallel")

pytestmark = pytest.mark.skipif(not ARCHIVE.is_file(), reason="needs ../shared/data/suites/bfcl")

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_NO_TYPE = {"any"}
_TYPED_BY_SCHEMAS = {"glm", "hunyuan", "minimax_m2", "minimax_m3", "qwen3_coder"}


def schema_of(theirs: Any) -> Any:
    """A JSON Schema: the suite names some types as Python does."""
    if isinstance(theirs, list):
        return [schema_of(one) for one in theirs]
    if not isinstance(theirs, dict):
        return theirs
    schema = {key: schema_of(value) for key, value in theirs.items()}
    if isinstance(kind := schema.get("type"), str):
        if kind.lower() in _NO_TYPE:
            del schema["type"]
        else:
            schema["type"] = _TYPES.get(kind, kind)
    return schema


Task = tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]


@cache
def tasks() -> list[Task]:
    """Tools as a request gives them, and calls that the suite takes for right."""
    with tarfile.open(ARCHIVE) as archive:
        return [task for part in PARTS for task in _tasks_of(archive, part)]


def _tasks_of(archive: tarfile.TarFile, part: str) -> Iterator[Task]:
    answers = {line["id"]: line["ground_truth"] for line in _lines(archive, f"possible_answer/BFCL_v4_{part}.json")}
    for line in _lines(archive, f"BFCL_v4_{part}.json"):
        tools = [
            {"type": "function", "function": {**one, "parameters": schema_of(one["parameters"])}} for one in line["function"]
        ]
        calls = [
            (name, {key: _first(values) for key, values in given.items() if values != [] and _first(values) != ""})
            for call in answers.get(line["id"], [])
            for name, given in call.items()
        ]
        if calls:
            yield tools, calls


def _first(values: Any) -> Any:
    """The first answer that the suite accepts; within objects, too, values mostly stand in lists."""
    value = values[0] if isinstance(values, list) else values
    return {key: _first(inner) for key, inner in value.items() if inner != []} if isinstance(value, dict) else value


def _lines(archive: tarfile.TarFile, name: str) -> Iterator[dict[str, Any]]:
    file = archive.extractfile(f"bfcl_eval/data/{name}")
    assert file is not None
    for line in file:
        yield json.loads(line)


def _is_typed(calls: Calls, schemas: Mapping[str, Any]) -> bool:
    """Whether calls are what their schemas say: bare text means what its schema makes of it."""
    return all(
        name in schemas and Draft202012Validator(schemas[name]).is_valid(given) and _are_all_known(schemas[name], given)
        for name, given in calls
    )


def _are_all_known(schema: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return all("type" in schema.get("properties", {}).get(key, {}) for key in given)


@pytest.mark.parametrize("name", WRITERS)
def test_every_call_of_the_suite_comes_back_as_it_was_written(name: str) -> None:
    format_name, write = WRITERS[name]
    num_read = num_left_out = 0
    for tools, calls in tasks():
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        if format_name in _TYPED_BY_SCHEMAS and not _is_typed(calls, schemas):
            num_left_out += 1
            continue
        text = write("", calls)
        pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
        answer = parsed(format_name, pieces, Tools(schemas))
        assert calls_of(answer) == calls
        assert answer.content == ""
        num_read += 1
    assert num_read > 1_900
    assert num_left_out < 100


def test_every_tool_of_the_suite_is_taken_and_makes_a_form_that_its_calls_have() -> None:
    num_valid = 0
    for tools, calls in tasks():
        assert template_tools(msgspec.convert(tools, list[ToolDefinition])) == tools
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        form = calls_schema(schemas, is_limited_to_one=len(calls) == 1)
        Draft202012Validator.check_schema(form)
        written = [{"name": name, "parameters": given} for name, given in calls]
        if _is_typed(calls, schemas):
            assert Draft202012Validator(form).is_valid(written)
            assert not Draft202012Validator(form).is_valid([])
            assert not Draft202012Validator(form).is_valid([{"name": "no_such_tool", "parameters": {}}])
            num_valid += 1
    assert num_valid > 1_900


def test_tools_of_the_suite_render_in_the_templates_that_take_tools() -> None:
    paths = sorted(TEMPLATES.glob("Qwen*.jinja")) + sorted(TEMPLATES.glob("meta-llama*.jinja"))
    if not paths:
        pytest.skip("needs ../shared/data/suites/llama.cpp/templates")
    for path in paths:
        template = ChatTemplate(path.read_text(encoding="utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
        for tools, _ in tasks()[::40]:
            text = template.render([{"role": "user", "content": "x"}], tools=tools)
            assert all(tool["function"]["name"] in text for tool in tools)
