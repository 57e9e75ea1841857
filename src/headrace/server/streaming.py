"""Answers as server-sent events, and several generations as one. Knows framing and order; not what the events say."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec.structs import replace

from headrace.base.errors import EngineDeadError, HeadraceError, InvalidRequestError
from headrace.engine.host.generation import OutputChunk
from headrace.engine.mind.step import is_requests_own
from headrace.engine.mind.update import FinishReason
from headrace.server.door import Reply

DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()

Chunks = AsyncGenerator[OutputChunk, None]


class EventWriter(Protocol):
    """One format of a streamed answer."""

    def events(self, place: int, chunk: OutputChunk) -> bytes:
        """What a chunk of the engine tells the client; empty where it holds nothing to tell yet."""
        ...

    def closing_events(self) -> bytes:
        """What comes after the last chunk."""
        ...


async def stream_answer(generations: Sequence[Chunks], writer: EventWriter, reply: Reply, *, interval: int = 1) -> None:
    """Sends each chunk's events in one piece as it comes; with an `interval`, once it holds so many tokens. What a
    continuation begins and ends with does not wait."""
    held: dict[tuple[int, int], OutputChunk] = {}
    begun: set[tuple[int, int]] = set()
    async with aclosing(merged(generations)) as chunks:
        async for place, chunk in chunks:
            key = (place, chunk.index)
            if key in held:
                chunk = joined(held.pop(key), chunk)
            if key in begun and chunk.finish_reason is None and len(chunk.token_ids) < interval:
                held[key] = chunk
                continue
            begun.add(key)
            events = writer.events(place, chunk)
            if events:
                await reply.events(events)
    await reply.events(writer.closing_events(), last=True)


def joined(first: OutputChunk, second: OutputChunk) -> OutputChunk:
    """Two chunks of one continuation, the second of which follows the first, as one."""
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        prompt_logprobs=first.prompt_logprobs + second.prompt_logprobs,
    )


def event(value: msgspec.Struct) -> bytes:
    """One server-sent event. JSON holds no line breaks, so one `data:` line is enough."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def raise_failure(chunk: OutputChunk) -> None:
    """An answer that the engine could not complete is an error, not a finish reason that clients would not know. Where the
    request itself leaves no way to go on, it is a caller's error: who asks again, or another replica, fares no better."""
    if chunk.finish_reason is FinishReason.ERROR:
        if is_requests_own(chunk.error):
            raise InvalidRequestError(f"this answer could not be completed: {chunk.error}")
        raise HeadraceError(f"the engine could not complete this answer: {chunk.error or 'no reason given'}")
    if chunk.finish_reason is FinishReason.ABORT:
        raise EngineDeadError("the engine stopped before this answer was complete")


async def merged(generations: Sequence[Chunks]) -> AsyncGenerator[tuple[int, OutputChunk], None]:
    """The chunks of all generations as they come, each with its generation's place.

    The first failure of one ends all. Closing this, or cancelling who waits for it, closes them.
    """
    if len(generations) == 1:  # nearly always: no tasks needed
        async with aclosing(generations[0]) as chunks:
            async for chunk in chunks:
                raise_failure(chunk)
                yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, OutputChunk] | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pump(i, chunks, queue)) for i, chunks in enumerate(generations)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                raise_failure(item[1])
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(place: int, chunks: Chunks, queue: asyncio.Queue[tuple[int, OutputChunk] | BaseException | None]) -> None:
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                queue.put_nowait((place, chunk))
    except Exception as error:
        queue.put_nowait(error)
    else:
        queue.put_nowait(None)
