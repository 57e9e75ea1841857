"""Stand-ins for the engine that other rooms test against: deterministic, small, in this process.

`FakeEngine` keeps every promise of `engine.host.generation.Engine` (limits, stop strings, half characters,
log-probabilities, cached prefixes, aborts) over a model that is a list of words. It knows nothing of tensors, processes
or the mind.
"""

import asyncio
import codecs
import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from headrace.base.errors import ContextLengthError, EngineDeadError, InvalidRequestError
from headrace.base.ids import RequestId
from headrace.base.rng import stream
from headrace.base.system_clock import SystemClock
from headrace.engine.host.generation import EngineFacts, GenerationRequest, OutputChunk, TokenLogprob
from headrace.engine.mind.update import FinishReason, SequenceTimes

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIAL_TOKENS = {BOS: "<|bos|>", EOS: "<|eos|>", IM_START: "<|im_start|>", IM_END: "<|im_end|>"}
WORDS = ("river", "wheel", "mill", "water", "flows", "early", "naïve", "café", "水", "輪", "🌊", "turns.", "Then,", "once")
BLOCK_SIZE = 16

SPECIAL_IDS = {text: token for token, text in SPECIAL_TOKENS.items()}


class ByteTokenizer:
    """One token per UTF-8 byte, and four control tokens: a real tokenizer, if a wasteful one."""

    @property
    def vocab_size(self) -> int:
        return 256 + len(SPECIAL_TOKENS)

    @property
    def bos_token_id(self) -> int | None:
        return BOS

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (EOS, IM_END)

    @property
    def chat_template(self) -> str | None:
        return None

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        tokens = [BOS] if add_special_tokens else []
        start = 0
        pattern = re.compile("|".join(re.escape(text) for text in SPECIAL_IDS))
        for match in pattern.finditer(text) if parse_special else ():
            tokens += text[start : match.start()].encode()
            tokens.append(SPECIAL_IDS[match.group()])
            start = match.end()
        return tokens + list(text[start:].encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        kept = (t for t in token_ids if not (skip_special_tokens and self.is_special(t)))
        return b"".join(self.token_bytes(token) for token in kept).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return SPECIAL_TOKENS[token_id].encode() if token_id in SPECIAL_TOKENS else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in SPECIAL_TOKENS


class FakeChatTemplate:
    """ChatML, as many small models speak it. `enable_thinking=False` is a variable that it knows."""

    def __init__(self, source: str | None = "chatml") -> None:
        self._source = source

    @property
    def source(self) -> str | None:
        """What the server reads formats of calls and reasoning from; here it says nothing of how this renders."""
        return self._source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        if messages[0]["role"] == "tool":
            raise InvalidRequestError("a conversation cannot begin with a tool's answer", param="messages")
        told = f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n" if tools else ""
        turns = [f"<|im_start|>{message['role']}\n{_text(message)}<|im_end|>\n" for message in messages]
        text = told + "".join(turns)
        if continue_final_message:
            return text.removesuffix("<|im_end|>\n")
        if add_generation_prompt:
            text += "<|im_start|>assistant\n"
        thinking = kwargs.get("enable_thinking")
        return text + ("<think></think>" if thinking is False else "<think>\n" if thinking is True else "")


def _text(message: Mapping[str, Any]) -> str:
    content = message["content"] or ""
    said = content if isinstance(content, str) else "\n".join(part["text"] for part in content)
    reasoning = f"<think>{message['reasoning']}</think>" if "reasoning" in message else ""
    calls = [f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in message.get("tool_calls", ())]
    return reasoning + said + "".join(calls)


def words_answer(request: GenerationRequest, index: int) -> list[int]:
    """Words that depend on the prompt alone where sampling is greedy, else on the seed and the index too."""
    sampling = request.sampling
    draw = (0, 0) if sampling.is_greedy else (sampling.seed, index)
    digest = hashlib.blake2b(repr((tuple(request.prompt_token_ids), draw)).encode(), digest_size=8).digest()
    rng = stream(int.from_bytes(digest, "big"), "answer")
    text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 12)))
    return [*text.encode(), IM_END]


def fixed_answer(text: str) -> Callable[[GenerationRequest, int], list[int]]:
    """A model that always says the same and then ends."""
    return lambda request, index: [*text.encode(), IM_END]


@dataclass
class _Sequence:
    """One continuation in progress."""

    index: int
    script: list[int]
    arrived: int
    first_token: int = 0
    token_ids: list[int] = field(default_factory=list)
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    held: str = ""
    """Text that may be the beginning of a stop string."""
    finished: bool = False


class FakeEngine:
    """A model of words behind the real engine's interface. Its switches are attributes; set them before a request."""

    def __init__(
        self,
        answer: Callable[[GenerationRequest, int], list[int]] = words_answer,
        *,
        max_model_len: int = 4096,
        policy: str = "fcfs",
        default_sampling: dict[str, float | int] | None = None,
        served_model_names: tuple[str, ...] = ("fake-model", "fake-alias"),
    ) -> None:
        self.answer = answer
        self.step_s = 0.0
        """How long a step of all sequences takes."""
        self.tokens_per_step = 1
        """How many tokens a chunk brings."""
        self.refusal: Exception | None = None
        """Raised in place of the first chunk."""
        self.hold_after: int | None = None
        """Answers stop growing after this many tokens, until aborted or until all `goes_on`."""
        self.goes_on = threading.Event()
        self.fail_after: tuple[int, Exception] | None = None
        """After this many tokens the engine raises."""
        self.broken_after: int | None = None
        """After this many tokens the answer cannot go on."""
        self.broken_by = "the logits are not finite"
        self.dead = ""
        """Why the engine cannot serve; empty while it can."""
        self.requests: list[GenerationRequest] = []
        self.aborted: list[RequestId] = []
        self.num_live = 0
        self.num_cache_resets = 0
        self._cached_blocks: dict[bytes, None] = {}
        self._clock = SystemClock()
        self._tokenizer = ByteTokenizer()
        self._facts = EngineFacts(
            served_model_names=served_model_names,
            model_path="models/fake",
            max_model_len=max_model_len,
            vocab_size=self._tokenizer.vocab_size,
            block_size=BLOCK_SIZE,
            num_blocks=1024,
            dtype="float32",
            device="no device",
            policy=policy,
            execution_identity="fa" * 32,
            started_unix_s=1_700_000_000,
            startup_seconds={"load": 0.25, "warm_up": 0.5},
            default_sampling=default_sampling or {},
        )

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    @property
    def tokenizer(self) -> ByteTokenizer:
        return self._tokenizer

    async def check_health(self) -> None:
        if self.dead:
            raise EngineDeadError(self.dead)

    async def reset_prefix_cache(self) -> None:
        await self.check_health()
        self.num_cache_resets += 1
        self._cached_blocks.clear()

    async def generate(self, request: GenerationRequest) -> AsyncIterator[OutputChunk]:
        await self.check_health()
        self._admit(request)
        num_cached = self._look_up_prefix(request)
        arrived = int(self._clock.now())
        sequences = [_Sequence(i, self.answer(request, i), arrived) for i in range(request.num_sequences)]
        self.num_live += 1
        try:
            while live := [sequence for sequence in sequences if not sequence.finished]:
                await asyncio.sleep(self.step_s)
                await self._obey_switches(len(live[0].token_ids))
                for sequence in live:
                    yield replace(self._advance(request, sequence), num_cached_tokens=num_cached)
                    if not sequence.finished and request.has_enough(sequence.index):
                        sequence.finished = True
                        yield OutputChunk(index=sequence.index, finish_reason=FinishReason.STOP, times=self._times(sequence))
        finally:
            self.num_live -= 1
            if not all(sequence.finished for sequence in sequences):
                self.aborted.append(request.request_id)

    def _admit(self, request: GenerationRequest) -> None:
        if self.refusal is not None:
            raise self.refusal
        if any(r.request_id == request.request_id for r in self.requests):
            raise InvalidRequestError(f"request id {request.request_id} was used before", param="request_id")
        total = len(request.prompt_token_ids) + request.sampling.max_tokens
        if total > self._facts.max_model_len:
            raise ContextLengthError(f"{total} tokens exceed {self._facts.max_model_len}")
        self.requests.append(request)

    def _look_up_prefix(self, request: GenerationRequest) -> int:
        """Tokens of the prompt whose full blocks, under the same salt, an earlier prompt began with."""
        chain = hashlib.blake2b(request.cache_salt.encode(), digest_size=16)
        num_cached = 0
        for end in range(BLOCK_SIZE, len(request.prompt_token_ids), BLOCK_SIZE):
            chain.update(repr(request.prompt_token_ids[end - BLOCK_SIZE : end]).encode())
            if chain.digest() in self._cached_blocks:
                num_cached = end
            self._cached_blocks[chain.digest()] = None
        return num_cached

    async def _obey_switches(self, num_tokens: int) -> None:
        while self.hold_after is not None and num_tokens >= self.hold_after and not self.goes_on.is_set():
            await asyncio.sleep(0.005)
        if self.fail_after is not None and num_tokens >= self.fail_after[0]:
            raise self.fail_after[1]

    def _advance(self, request: GenerationRequest, sequence: _Sequence) -> OutputChunk:
        if self.broken_after is not None and len(sequence.token_ids) >= self.broken_after:
            sequence.finished = True
            return OutputChunk(index=sequence.index, finish_reason=FinishReason.ERROR, error=self.broken_by)
        chunk = OutputChunk(index=sequence.index)
        scores: tuple[TokenLogprob, ...] = ()
        if request.sampling.prompt_logprobs >= 0 and sequence.index == 0 and not sequence.token_ids:
            scores = tuple(self._logprob(t, request.sampling.prompt_logprobs) for t in request.prompt_token_ids[1:])
        for _ in range(self.tokens_per_step):
            one = self._next_token(request, sequence)
            chunk = replace(
                one,
                text=chunk.text + one.text,
                token_ids=chunk.token_ids + one.token_ids,
                logprobs=chunk.logprobs + one.logprobs,
                prompt_logprobs=scores,
            )
            if sequence.finished:
                break
        return chunk

    def _next_token(self, request: GenerationRequest, sequence: _Sequence) -> OutputChunk:
        sampling = request.sampling
        position = len(sequence.token_ids)
        token = sequence.script[position % len(sequence.script)]
        ends = token in self._tokenizer.eos_token_ids and not sampling.ignore_eos
        stop_tokens = token in sampling.stop_token_ids
        if (ends or stop_tokens) and position < sampling.min_tokens:
            token, ends, stop_tokens = ord("."), False, False
        sequence.token_ids.append(token)
        sequence.first_token = sequence.first_token or int(self._clock.now())

        is_skipped = request.skip_special_tokens and token not in request.shown_special_token_ids
        hidden = self._tokenizer.is_special(token) and (is_skipped or ends)
        text = sequence.held + ("" if hidden else sequence.decoder.decode(self._tokenizer.token_bytes(token)))
        at_limit = position + 1 >= sampling.max_tokens
        over = ends or stop_tokens or at_limit
        if over:
            text += sequence.decoder.decode(b"", final=True)
        text, stopped_by = _cut_at_stop(text, request)
        sequence.held = "" if over or stopped_by else _possible_beginning(text, request.stop)
        text = text.removesuffix(sequence.held)
        sequence.finished = over or stopped_by is not None

        reason = None
        if sequence.finished:
            reason = FinishReason.STOP if ends or stop_tokens or stopped_by is not None else FinishReason.LENGTH
        return OutputChunk(
            index=sequence.index,
            text=text,
            token_ids=(token,),
            logprobs=(self._logprob(token, sampling.logprobs),) if sampling.logprobs >= 0 else (),
            finish_reason=reason,
            stop_reason=stopped_by if stopped_by is not None else (token if stop_tokens and not ends else None),
            times=self._times(sequence) if sequence.finished else None,
        )

    def _logprob(self, token: int, num_top: int) -> TokenLogprob:
        """The chosen token comes first with probability 1/2, its successors each with half of what is left."""
        candidates = [(token + i) % self._tokenizer.vocab_size for i in range(max(num_top, 1))]
        ranked = [
            TokenLogprob(
                token_id=candidate,
                text=self._tokenizer.token_text(candidate),
                raw=self._tokenizer.token_bytes(candidate),
                logprob=-0.6931471805599453 * rank,
                rank=rank,
            )
            for rank, candidate in enumerate(candidates, start=1)
        ]
        return replace(ranked[0], top=tuple(ranked[:num_top]))

    def _times(self, sequence: _Sequence) -> SequenceTimes:
        now = self._clock.now()
        arrived, first = type(now)(sequence.arrived), type(now)(sequence.first_token)
        return SequenceTimes(arrived=arrived, scheduled=arrived, first_token=first, finished=now)


def _cut_at_stop(text: str, request: GenerationRequest) -> tuple[str, str | None]:
    """The text up to the stop string that appears first, and that string."""
    found = [(text.find(stop), stop) for stop in request.stop if stop in text]
    if not found:
        return text, None
    start, stop = min(found)
    return text[: start + (len(stop) if request.include_stop_str_in_output else 0)], stop


def _possible_beginning(text: str, stops: Sequence[str]) -> str:
    """The longest end of `text` with which a stop string begins."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return text[-length:]
    return ""
