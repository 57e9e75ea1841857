"""The OpenAPI document, generated from the types that decode and encode what it describes.

Knows every operation in words. Does not know how any is carried out; a test holds the routes against this list.
"""

import functools
from dataclasses import dataclass
from typing import Any

import msgspec

import headrace
from headrace.protocol import openai as wire

_REFERENCE = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path, for readers."""

    method: str
    path: str
    tag: str
    summary: str
    description: str
    request: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct] | None = None
    """None: the answer is text, or nothing."""
    event: type[msgspec.Struct] | None = None
    """With `stream`: what each server-sent event holds."""
    path_parameter: str | None = None
    example: dict[str, Any] | None = None


OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        tag="Generate",
        summary="Continue a conversation",
        description="The conversation is rendered by the model's chat template and continued. With `stream`, the answer "
        "comes as server-sent events: first the role, then text, reasoning and calls of tools as they are generated, "
        "then why it ended, then `[DONE]`. "
        "Parameters that are not listed are refused by name, unless their value asks for nothing (null, an empty list).",
        request=wire.ChatCompletionRequest,
        response=wire.ChatCompletion,
        event=wire.ChatCompletionChunk,
        example={
            "messages": [{"role": "user", "content": "Why does a mill need a headrace?"}],
            "max_tokens": 128,
            "stream": True,
        },
    ),
    Operation(
        method="post",
        path="/v1/completions",
        tag="Generate",
        summary="Continue a text",
        description="One or several prompts, as text or token ids, are continued without a chat template. With `stream`, "
        "the answer comes as server-sent events that end with `[DONE]`.",
        request=wire.CompletionRequest,
        response=wire.Completion,
        event=wire.Completion,
        example={"prompt": "The water ran down the headrace and", "max_tokens": 32},
    ),
    Operation(
        method="get",
        path="/v1/models",
        tag="Models",
        summary="List the models",
        description="Every name under which a model is served here.",
        response=wire.ModelList,
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        tag="Models",
        summary="Describe a model",
        description="One of the models that the list names.",
        response=wire.ModelCard,
        path_parameter="model",
    ),
    Operation(
        method="post",
        path="/tokenize",
        tag="Tokens",
        summary="Turn text into token ids",
        description="A text, or a conversation as the chat template renders it. Takes vLLM's fields and llama.cpp's.",
        request=wire.TokenizeRequest,
        response=wire.TokenizeResponse,
        example={"prompt": "Hello, world", "return_token_strs": True},
    ),
    Operation(
        method="post",
        path="/detokenize",
        tag="Tokens",
        summary="Turn token ids into text",
        description="Control tokens are written out.",
        request=wire.DetokenizeRequest,
        response=wire.DetokenizeResponse,
        example={"tokens": [1, 2, 3]},
    ),
    Operation(
        method="get",
        path="/health",
        tag="Operate",
        summary="Does the engine serve?",
        description="200 if it does, 503 with the reason if it does not, or if the model still loads. Needs no API key.",
        response=wire.Health,
    ),
    Operation(
        method="get",
        path="/ping",
        tag="Operate",
        summary="The same as /health",
        description="For platforms that ask under this name; POST works too. Needs no API key.",
        response=wire.Health,
    ),
    Operation(
        method="get",
        path="/version",
        tag="Operate",
        summary="Which version answers",
        description="The version of Headrace.",
        response=wire.Version,
    ),
    Operation(
        method="get",
        path="/load",
        tag="Operate",
        summary="How many requests are in progress",
        description="Those that this server has read and not yet answered completely.",
        response=wire.Load,
    ),
    Operation(
        method="get",
        path="/metrics",
        tag="Operate",
        summary="Metrics for Prometheus",
        description="In Prometheus's text format, under vLLM's names.",
    ),
    Operation(
        method="post",
        path="/reset_prefix_cache",
        tag="Operate",
        summary="Forget cached prompts",
        description="Drops every cached KV block that no running request holds. The answer is empty.",
    ),
)


@functools.cache
def encoded_document() -> bytes:
    """The document as JSON; it is the same for every engine."""
    return msgspec.json.encode(document())


def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document as plain data."""
    types = {
        kind: None
        for operation in OPERATIONS
        for kind in (operation.request, operation.response, operation.event, wire.ErrorResponse)
        if kind is not None
    }
    _, schemas = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headrace",
            "version": headrace.__version__,
            "description": "Serves a language model over the API that OpenAI's clients speak, with vLLM's additions.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_')}",
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "responses": {"200": _success(operation), "default": _failure()},
    }
    if operation.request is not None:
        content: dict[str, Any] = {"schema": _reference(operation.request)}
        if operation.example is not None:
            content["example"] = operation.example
        described["requestBody"] = {"required": True, "content": {"application/json": content}}
    if operation.path_parameter is not None:
        described["parameters"] = [
            {"name": operation.path_parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return described


def _success(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None:
        content["application/json"] = {"schema": _reference(operation.response)}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _reference(operation.event)}
    if operation.path == "/metrics":
        content["text/plain"] = {"schema": {"type": "string"}}
    return {"description": "Success", "content": content} if content else {"description": "Success"}


def _failure() -> dict[str, Any]:
    content = {"application/json": {"schema": _reference(wire.ErrorResponse)}}
    return {"description": "What went wrong, naming the field at fault", "content": content}


def _reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REFERENCE.format(name=kind.__name__)}
