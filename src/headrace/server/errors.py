"""From exceptions to what a client sees: a status and OpenAI's error object. The only place that knows both.

A caller's fault is 4xx and names the field. The server's own is 5xx, and a bug's details go to the log, not to the client.
"""

import logging
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from headrace.base.errors import (
    EngineDeadError,
    HeadraceError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
)
from headrace.protocol.openai import ErrorBody, ErrorResponse

INVALID = "invalid_request_error"
SERVER = "server_error"

_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
}

_logger = logging.getLogger("headrace.server")


def describe(error: BaseException) -> tuple[int, ErrorBody]:
    """The status and the error object for anything that was raised. Logs what is nobody's operating error: bugs."""
    match error:
        case ModelNotFoundError():
            return 404, ErrorBody(str(error), INVALID, error.param, error.code)
        case InvalidRequestError():
            return 400, ErrorBody(str(error), INVALID, error.param, error.code)
        case OverloadedError():
            return 503, ErrorBody(str(error), SERVER, code="overloaded")
        case EngineDeadError():
            return 503, ErrorBody(str(error), SERVER, code="engine_unavailable")
        case HTTPException():
            kind = INVALID if error.status_code < 500 else SERVER
            return error.status_code, ErrorBody(error.detail, kind, code=_CODES.get(error.status_code))
        case HeadraceError():
            return 500, ErrorBody(str(error), SERVER, code="engine_error")
    _logger.error("a bug ended a request", exc_info=error)
    return 500, ErrorBody("an internal error ended this request; the server's log has the details", SERVER, code="bug")


def encode_error(body: ErrorBody) -> bytes:
    return msgspec.json.encode(ErrorResponse(body))


def error_response(error: BaseException, headers: Mapping[str, str] | None = None) -> Response:
    """The same as a response of its own."""
    status, body = describe(error)
    return Response(encode_error(body), status, headers=dict(headers or {}), media_type="application/json")
