"""From a request's bytes to a typed request, or to an error that names the field at fault by its path.

Knows JSON, the request types and the table of refusals. Does not know ranges, models or answers.
"""

import re
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from headrace.base.errors import InvalidRequestError
from headrace.protocol.openai import ChatCompletionRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from headrace.server import refusals
from headrace.server.echo import shortened, suggestion
from headrace.server.refusals import Refusal
from headrace.server.request_types import fields_at, home_of, words_at

T = TypeVar("T", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`(?: - at `(?P<path>\$.*)`)?$", re.DOTALL)
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>[^`]*)`(?: - at `(?P<path>\$.*)`)?$")
_PLACE = re.compile(r"(?P<problem>.*) - at (?P<key>`key` in )?`(?P<path>\$.*)`$", re.DOTALL)
_WRONG_WORD = re.compile(r"Invalid enum value (?P<quote>['\"])(?P<word>.*)(?P=quote)$", re.DOTALL)
_KEPT_ENDS = 400


class ClientGone(Exception):
    """The client closed the connection before it had sent its request."""


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int) -> bytes:
    """The request's body. Raises InvalidRequestError unless it is plain JSON by its headers, HTTPException(413) where it
    is too large: by its own word before anything is read, else as soon as it has grown so far."""
    headers = {name: value.decode("latin-1").strip() for name, value in scope["headers"]}
    _check_is_json(headers)
    _check_size(int(length) if (length := headers.get(b"content-length", "")).isdecimal() else 0, max_bytes)
    pieces: list[bytes] = []
    num_bytes = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        num_bytes += len(pieces[-1])
        _check_size(num_bytes, max_bytes)
        more = message.get("more_body", False)
    return b"".join(pieces)


def _check_is_json(headers: Mapping[bytes, str]) -> None:
    content_type = headers.get(b"content-type", "")
    kind, _, parameters = content_type.partition(";")
    if kind.strip().lower() != "application/json":
        raise InvalidRequestError(
            f"the body must be sent with `Content-Type: application/json`, not {content_type!r}",
            param="content-type",
        )
    charset = re.search(r'charset\s*=\s*"?([^";\s]*)', parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise InvalidRequestError(f"JSON is UTF-8; the body claims to be {charset[1]!r}", param="content-type")
    encoding = headers.get(b"content-encoding", "identity")
    if encoding.lower() != "identity":
        raise InvalidRequestError(f"the body must not be compressed (got {encoding!r})", param="content-encoding")


def _check_size(num_bytes: int, max_bytes: int) -> None:
    if num_bytes > max_bytes:
        raise HTTPException(413, f"the request's body exceeds {max_bytes} bytes (max_body_bytes)")


class RequestDecoder(Generic[T]):
    """Decodes one type of request."""

    def __init__(self, request_type: type[T], refused: Mapping[str, Refusal]) -> None:
        self._type = request_type
        self._refused = refused
        self._decoder = msgspec.json.Decoder(request_type)

    def decode(self, body: bytes) -> T:
        """Raises InvalidRequestError for whatever is wrong; nothing else."""
        try:
            return self._decoder.decode(body)
        except msgspec.ValidationError:
            # Rare: look again, slowly, for parameters that are known but refused, and let harmless values through.
            return self._decode_with_refusals(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error, body) from None

    def _decode_with_refusals(self, body: bytes) -> T:
        try:
            fields = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _not_json(error, body) from None
        if not isinstance(fields, dict):
            raise InvalidRequestError("the body must be a JSON object")
        try:
            # Written anew rather than converted: a type may want parts of it unread.
            return self._decoder.decode(msgspec.json.encode(self._without_refused(fields)))
        except (msgspec.ValidationError, RecursionError) as error:
            raise self._explain(error) from None

    def _without_refused(self, fields: dict[str, Any]) -> dict[str, Any]:
        kept = _strip(fields, self._refused, path="")
        if isinstance(options := kept.get("stream_options"), dict):
            kept["stream_options"] = _strip(options, refusals.STREAM_OPTIONS, path="stream_options.")
        if isinstance(messages := kept.get("messages"), list):
            kept["messages"] = [_strip_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
        return kept

    def _explain(self, error: Exception) -> InvalidRequestError:
        text = _condensed(str(error))
        if unknown := _UNKNOWN_FIELD.match(text):
            place, name = unknown["path"] or "$", unknown["name"]
            path = _path(place, name)
            return InvalidRequestError(
                f"unknown parameter {shortened(path)!r}{self._suggest(name, place)}",
                param=shortened(path),
                code="unknown_parameter",
            )
        if missing := _MISSING_FIELD.match(text):
            path = _path(missing["path"] or "$", missing["name"])
            return InvalidRequestError(f"{path} is required", param=path, code="missing_required_parameter")
        if place := _PLACE.match(text):
            path = _path(place["path"])
            problem = shortened(place["problem"][0].lower() + place["problem"][1:])
            if wrong_word := _WRONG_WORD.match(place["problem"]):
                words = words_at(self._type, place["path"])
                near = suggestion(wrong_word["word"], words)
                problem = f"{shortened(wrong_word['word'])!r} is none of {', '.join(words)}{near}"
            return InvalidRequestError(
                f"{path}: {'its keys: ' if place['key'] else ''}{problem}", param=path, code="invalid_type"
            )
        return InvalidRequestError(f"the request is not valid: {shortened(text)}")

    def _suggest(self, name: str, place: str) -> str:
        """`place`: the path of the object that it was found in."""
        is_nested = place != "$"
        if not is_nested and (synonym := refusals.SYNONYMS.get(name)):
            return f"; here it is called {synonym!r}"
        if home := home_of(name, self._type, place):
            return f"; it belongs in {_path(place, home)!r}"
        return suggestion(name, (*fields_at(self._type, place), *(() if is_nested else self._refused)))


def _strip(fields: dict[str, Any], refused: Mapping[str, Refusal], *, path: str) -> dict[str, Any]:
    """The fields without those that change nothing. Raises InvalidRequestError where a refused one would."""
    for name, value in fields.items():
        if name in refused and not refused[name].changes_nothing(value, fields):
            raise InvalidRequestError(
                f"{path}{name} is not supported: {refused[name].reason}",
                param=f"{path}{name}",
                code="unsupported_parameter",
            )
    return {name: value for name, value in fields.items() if name not in refused}


def _strip_message(message: Any, path: str) -> Any:
    if not isinstance(message, dict):
        return message
    parts = message.get("content")
    for i, part in enumerate(parts if isinstance(parts, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise InvalidRequestError(
                f"{path}.content[{i}] is of type {shortened(kind)!r}, which is not supported: the model reads text only",
                param=f"{path}.content[{i}].type",
                code="unsupported_parameter",
            )
    kept = _strip(message, refusals.MESSAGE, path=f"{path}.")
    if isinstance(calls := kept.get("tool_calls"), list):
        kept["tool_calls"] = [_strip_call(call, f"{path}.tool_calls[{i}]") for i, call in enumerate(calls)]
    return kept


def _strip_call(call: Any, path: str) -> Any:
    if not isinstance(call, dict):
        return call
    kept = _strip(call, refusals.TOOL_CALL, path=f"{path}.")
    if isinstance(function := kept.get("function"), dict):
        kept["function"] = _strip(function, refusals.CALLED_FUNCTION, path=f"{path}.function.")
    return kept


def _condensed(text: str) -> str:
    """An error's text without the middle of what the client sent: the problem stands first, the path last."""
    return text if len(text) <= 2 * _KEPT_ENDS else f"{text[:_KEPT_ENDS]}…{text[-_KEPT_ENDS:]}"


def _path(path: str, name: str = "") -> str:
    """`$.messages[0]` and `content` as `messages[0].content`."""
    return ".".join(part for part in (path.removeprefix("$").removeprefix("."), name) if part)


def _not_json(error: Exception, body: bytes) -> InvalidRequestError:
    if not body.strip():
        return InvalidRequestError("the body is empty: send a JSON object", code="invalid_json")
    if isinstance(error, RecursionError):
        return InvalidRequestError("the body is nested too deeply", code="invalid_json")
    return InvalidRequestError(f"the body is not valid JSON: {error}", code="invalid_json")


CHAT = RequestDecoder(ChatCompletionRequest, refusals.CHAT)
COMPLETION = RequestDecoder(CompletionRequest, refusals.COMPLETION)
TOKENIZE = RequestDecoder(TokenizeRequest, refusals.TOKENIZE)
DETOKENIZE = RequestDecoder(DetokenizeRequest, refusals.DETOKENIZE)
