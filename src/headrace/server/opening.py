"""What chat and text completions do alike: the request is read and judged, the engine is asked, the answer is delivered.

Knows the order of these. Does not know the two formats: `chat.py` and `completions.py` each bring their own.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from headrace.engine.mind.structured_output import StructuredOutput
from headrace.protocol.openai import ChatCompletion, Completion, GenerationFields
from headrace.server.answers import AnswerIdentity, answer_identity, generations
from headrace.server.decoding import RequestDecoder
from headrace.server.door import Call, Reply
from headrace.server.prompts import Prompt, truncated
from headrace.server.streaming import Chunks, EventWriter, stream_answer
from headrace.server.validation import Asked, Limits, check_common

R = TypeVar("R", bound=GenerationFields)


class Begun(NamedTuple):
    """An answer that the engine is asked for."""

    prompts: list[Prompt]
    """As long as the request lets them be."""
    identity: AnswerIdentity
    chunks: list[Chunks]
    """For each prompt."""


def read_request(call: Call, decoder: RequestDecoder[R]) -> tuple[R, StructuredOutput | None]:
    """The request, as far as it can be judged without its prompt, and the form that it asks for. Raises
    InvalidRequestError."""
    request, form = call.services.known_schemas.read(call.body, decoder)
    check_common(request, call.services.engine.facts, call.services.config)
    return request, form


def begin(
    call: Call, request: GenerationFields, prompts: Sequence[Prompt], *, kind: str, limits: Limits, asked: Asked
) -> Begun:
    """`kind`: what the answer's identifier begins with. Nothing is generated before the chunks are asked for."""
    max_model_len = call.services.engine.facts.max_model_len
    fitted = [truncated(one, request, max_model_len=max_model_len, max_tokens=limits.max_tokens) for one in prompts]
    identity = answer_identity(call, request, kind)
    chunks = generations(call, request, fitted, answer_id=identity.id, limits=limits, asked=asked)
    return Begun(fitted, identity, chunks)


async def deliver(
    request: GenerationFields,
    chunks: Sequence[Chunks],
    reply: Reply,
    *,
    writer: Callable[[], EventWriter],
    whole: Callable[[], Awaitable[ChatCompletion | Completion]],
) -> None:
    """As a stream, or in one piece."""
    if request.stream:
        await stream_answer(chunks, writer(), reply, interval=request.stream_interval or 1)
    else:
        await reply.whole(msgspec.json.encode(await whole()))
