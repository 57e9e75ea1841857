"""Public traces as workloads. Every reader takes lines or parsed data; none opens a file. What a trace says that makes no
sense is a ConfigurationError, whatever it is: these files come from elsewhere.

A trace's block hashes become segments with those keys, so a server that caches prefixes finds again exactly what the trace
says was seen before.
"""

import ast
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, TypeGuard, TypeVar

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream
from headrace.measure.workload.lengths import Empirical, Fixed, Lengths
from headrace.measure.workload.request import ChatPrompt, Prompt, Segment, TextPrompt, TokenPrompt, WorkloadRequest

_T = TypeVar("_T")

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Wait = Annotated[float, msgspec.Meta(ge=0)]
_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]

MOONCAKE_BLOCK_SIZE = 512
_USUAL_ANSWER = Fixed(128)


class _MooncakeRow(msgspec.Struct):
    timestamp: _Wait  # milliseconds
    input_length: _AtLeastOne
    output_length: _Count
    hash_ids: list[int]


def read_mooncake(lines: Iterable[str | bytes], *, block_size: int = MOONCAKE_BLOCK_SIZE) -> list[WorkloadRequest]:
    """Requests with the hashes of their prompts' blocks. The last block of a prompt may be a part of one."""
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows = (_decoded(decoder, line, number) for number, line in enumerate(lines, start=1) if line.strip())
    return [
        WorkloadRequest(
            request_id=f"t{index}",
            prompt=_blocks(row.hash_ids, row.input_length, block_size, scope="block"),
            num_output_tokens=max(1, row.output_length),
            at_s=row.timestamp / 1000,
        )
        for index, row in enumerate(rows)
    ]


def _blocks(hash_ids: Sequence[int], num_tokens: int, block_size: int, *, scope: str) -> TokenPrompt:
    """Blocks by name, the last one cut; tokens beyond the last hash are the request's own, under all the hashes before."""
    segments = []
    for index, hash_id in enumerate(hash_ids):
        length = min(block_size, num_tokens - index * block_size)
        if length > 0:
            segments.append(Segment(f"{scope}{hash_id}", length))
    rest = num_tokens - len(hash_ids) * block_size
    if rest > 0:
        segments.append(Segment(f"{scope}{hash_ids[-1] if hash_ids else ''}/rest", rest))
    return TokenPrompt(tuple(segments))


def read_azure(lines: Iterable[str]) -> list[WorkloadRequest]:
    """Arrivals and lengths (TIMESTAMP,ContextTokens,GeneratedTokens); the trace says nothing of content."""
    requests: list[WorkloadRequest] = []
    start: float | None = None
    for number, line in enumerate(lines, start=1):
        cells = line.strip().split(",")
        if number == 1 or cells == [""]:
            continue
        try:
            moment = datetime.fromisoformat(cells[0].split("+")[0][:26]).timestamp()
            num_prompt_tokens, num_output_tokens = int(cells[1]), int(cells[2])
        except (ValueError, IndexError):
            raise ConfigurationError(
                f"line {number} is not TIMESTAMP,ContextTokens,GeneratedTokens: {line.strip()!r}"
            ) from None
        start = moment if start is None else start
        requests.append(
            WorkloadRequest(
                request_id=f"t{len(requests)}",
                prompt=TokenPrompt((Segment(f"t{len(requests)}", max(1, num_prompt_tokens)),)),
                num_output_tokens=max(1, num_output_tokens),
                at_s=round(moment - start, 6),
            )
        )
    return requests


def read_servegen_client(
    name: str,
    rate_lines: Iterable[str],
    histograms: Mapping[str, Mapping[str, str]],
    *,
    from_s: float = 0.0,
    until_s: float = float("inf"),
    seed: int = 0,
) -> list[WorkloadRequest]:
    """One client's requests, drawn from its windows: `start,rate,cv,family,p1,p2` and histograms of lengths by window.

    Gaps are Gamma or Weibull with the window's fitted shape and scale, or exponential where nothing was fitted. A window
    without histograms takes those of the last window that had some.
    """
    if not isinstance(histograms, dict):
        raise ConfigurationError("a ServeGen data set is a JSON object of windows, each with histograms of lengths")
    windows = [_ServeGenWindow(line, number) for number, line in enumerate(rate_lines, start=1) if line.strip()]
    if not windows:
        raise ConfigurationError("there is no window: lines are start,rate,cv,family,shape,scale")
    rng = stream(seed, f"servegen {name}")
    requests: list[WorkloadRequest] = []
    lengths: tuple[Empirical, Empirical] | None = None
    for index, window in enumerate(windows):
        lengths = _servegen_lengths(histograms.get(f"{window.start_s:g}", {})) or lengths
        end_s = windows[index + 1].start_s if index + 1 < len(windows) else window.start_s + 600
        if window.rate <= 0 or lengths is None or end_s <= from_s or window.start_s >= until_s:
            continue
        now = max(window.start_s, from_s)
        while (now := now + window.draw_gap(rng)) < min(end_s, until_s):
            request_id = f"{name}.{len(requests)}"
            requests.append(
                WorkloadRequest(
                    request_id=request_id,
                    prompt=TokenPrompt((Segment(request_id, lengths[0].draw(rng)),)),
                    num_output_tokens=lengths[1].draw(rng),
                    at_s=round(now - from_s, 6),
                )
            )
    return requests


class _ServeGenWindow:
    def __init__(self, line: str, number: int) -> None:
        try:
            start, rate, _cv, self.family, shape, scale = line.strip().split(",")
            figures = [float(start), float(rate), float(shape or 0), float(scale or 0)]
        except ValueError:
            figures = [math.nan]
        if not all(map(math.isfinite, figures)):
            raise ConfigurationError(f"line {number} is not start,rate,cv,family,shape,scale: {line.strip()!r}")
        self.start_s, self.rate, self.shape, self.scale = figures

    def draw_gap(self, rng: Any) -> float:
        """At least a microsecond, so that a degenerate fit still ends."""
        if self.family == "Gamma" and self.shape > 0 and self.scale > 0:
            gap = rng.gammavariate(self.shape, self.scale)
        elif self.family == "Weibull" and self.shape > 0 and self.scale > 0:
            gap = rng.weibullvariate(self.scale, self.shape)
        else:
            gap = rng.expovariate(self.rate)
        return max(1e-6, float(gap))


def _servegen_lengths(window: Mapping[str, str]) -> tuple[Empirical, Empirical] | None:
    """Histograms are Python dictionaries written as text; `literal_eval` reads literals and runs nothing."""
    if "input_tokens" not in window or "output_tokens" not in window:
        return None
    try:
        inputs, outputs = (
            msgspec.convert(ast.literal_eval(window[name]), dict[int, float]) for name in ("input_tokens", "output_tokens")
        )
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ConfigurationError(f"a histogram of lengths cannot be read: {error}") from None
    return (Empirical(inputs), Empirical(outputs)) if inputs and outputs else None


class _AgenticSession(msgspec.Struct):
    id: str
    block_size: _AtLeastOne
    requests: list[dict[str, Any]]


class _AgenticTurn(msgspec.Struct):
    num_prompt_tokens: _Count = msgspec.field(name="in")
    num_output_tokens: _Count = msgspec.field(name="out")
    hash_ids: list[int]
    think_time: float = 0.0  # seconds


class _Subagent(msgspec.Struct):
    agent_id: str
    requests: list[dict[str, Any]]


def read_agentic_session(document: Mapping[str, Any]) -> list[WorkloadRequest]:
    """A coding agent's session: turns that follow one another after tools and thought, and subagents that run beside it.

    A turn starts its recorded think time after the end of the turn before it. A subagent's first turn waits for the turn
    that started it; the main session goes on when its own next turn would, not when the subagent ends.
    """
    session = _converted(document, _AgenticSession, "a session")
    return _agentic_turns(session.requests, session.id, f"{session.id}/", session.block_size, parent="")


def _agentic_turns(
    rows: Sequence[Mapping[str, Any]], name: str, scope: str, block_size: int, *, parent: str
) -> list[WorkloadRequest]:
    made: list[WorkloadRequest] = []
    before = parent
    for index, row in enumerate(rows):
        if row.get("type") == "subagent":
            subagent = _converted(row, _Subagent, f"request {index} of {name}")
            made += _agentic_turns(subagent.requests, f"{name}.{subagent.agent_id}", scope, block_size, parent=before)
            continue
        turn = _converted(row, _AgenticTurn, f"request {index} of {name}")
        request_id = f"{name}.{index}"
        made.append(
            WorkloadRequest(
                request_id=request_id,
                prompt=_blocks(turn.hash_ids, max(1, turn.num_prompt_tokens), block_size, scope=scope),
                num_output_tokens=max(1, turn.num_output_tokens),
                after=before,
                at_s=max(0.0, turn.think_time) if before else 0.0,
            )
        )
        before = request_id
    return made


def read_messages(lines: Iterable[str | bytes], *, outputs: Lengths = _USUAL_ANSWER, seed: int = 0) -> list[WorkloadRequest]:
    """Any JSON lines with `messages` (OpenAI's), `prompt` (a text), or `conversations` (ShareGPT's, its first human turn).

    `output_tokens` or `max_tokens` of a row, where it is there, says how long its answer may be; elsewhere that is drawn.
    """
    rng = stream(seed, "lengths")
    requests: list[WorkloadRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _decoded(msgspec.json.Decoder(dict[str, Any]), line, number)
        length = row.get("output_tokens") or row.get("max_tokens") or outputs.draw(rng)
        if not isinstance(length, int) or length < 1:
            raise ConfigurationError(f"line {number}: an answer has a whole number of tokens, at least 1, not {length!r}")
        requests.append(
            WorkloadRequest(
                request_id=f"m{len(requests)}",
                prompt=_message_prompt(row, number),
                num_output_tokens=length,
                ignore_eos=False,
            )
        )
    return requests


def _message_prompt(row: Mapping[str, Any], number: int) -> Prompt:
    if _is_list_of_objects(messages := row.get("messages")):
        return ChatPrompt(tuple(messages))
    if isinstance(row.get("prompt"), str):
        return TextPrompt(row["prompt"])
    if _is_list_of_objects(turns := row.get("conversations")):
        for turn in turns:
            if turn.get("from") in ("human", "user") and isinstance(turn.get("value"), str):
                return ChatPrompt(({"role": "user", "content": turn["value"]},))
    raise ConfigurationError(f"line {number} has neither `messages`, nor `prompt`, nor `conversations` with a human turn")


def _is_list_of_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _converted(row: Any, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what} cannot be read: {error}") from None


def _decoded(decoder: "msgspec.json.Decoder[_T]", line: str | bytes, number: int) -> _T:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"line {number} of the trace cannot be read: {error}") from None


def speeded(requests: Sequence[WorkloadRequest], factor: float) -> list[WorkloadRequest]:
    """All waiting divided by `factor`; above 1 is a denser workload."""
    if not factor > 0:
        raise ConfigurationError(f"a trace is sped up by a factor above 0, not {factor:g}")
    return [msgspec.structs.replace(request, at_s=request.at_s / factor) for request in requests]
