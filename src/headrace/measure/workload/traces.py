"""Public traces as workloads. Every reader takes lines or parsed data; none opens a file.

A trace's block hashes become segments with those keys, so a server that caches prefixes finds again exactly what the trace
says was seen before.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.base.rng import stream
from headrace.measure.workload.lengths import Empirical
from headrace.measure.workload.request import ChatPrompt, Prompt, Segment, TextPrompt, TokenPrompt, WorkloadRequest

_T = TypeVar("_T")

MOONCAKE_BLOCK_SIZE = 512


class _MooncakeRow(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int
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
    windows = [_ServeGenWindow(line) for line in rate_lines if line.strip()]
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
    def __init__(self, line: str) -> None:
        start, rate, _cv, family, shape, scale = line.strip().split(",")
        self.start_s, self.rate, self.family = float(start), float(rate), family
        self.shape, self.scale = float(shape or 0), float(scale or 0)

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
    inputs, outputs = ast.literal_eval(window["input_tokens"]), ast.literal_eval(window["output_tokens"])
    return (Empirical(inputs), Empirical(outputs)) if inputs and outputs else None


def read_agentic_session(document: Mapping[str, Any]) -> list[WorkloadRequest]:
    """A coding agent's session: turns that follow one another after tools and thought, and subagents that run beside it.

    A turn starts its recorded think time after the end of the turn before it. A subagent's first turn waits for the turn
    that started it; the main session goes on when its own next turn would, not when the subagent ends.
    """
    scope, block_size = f"{document['id']}/", int(document["block_size"])
    return _agentic_turns(document["requests"], str(document["id"]), scope, block_size, parent="")


def _agentic_turns(
    rows: Sequence[Mapping[str, Any]], name: str, scope: str, block_size: int, *, parent: str
) -> list[WorkloadRequest]:
    made: list[WorkloadRequest] = []
    before = parent
    for index, row in enumerate(rows):
        if row["type"] == "subagent":
            made += _agentic_turns(row["requests"], f"{name}.{row['agent_id']}", scope, block_size, parent=before)
            continue
        request_id = f"{name}.{index}"
        made.append(
            WorkloadRequest(
                request_id=request_id,
                prompt=_blocks(row["hash_ids"], max(1, row["in"]), block_size, scope=scope),
                num_output_tokens=max(1, row["out"]),
                after=before,
                at_s=max(0.0, float(row.get("think_time", 0.0))) if before else 0.0,
            )
        )
        before = request_id
    return made


def read_messages(lines: Iterable[str | bytes], *, num_output_tokens: int = 128) -> list[WorkloadRequest]:
    """Any JSON lines with `messages` (OpenAI's), `prompt` (a text), or `conversations` (ShareGPT's, its first human turn).

    `output_tokens` or `max_tokens` of a row, where it is there, says how long its answer may be.
    """
    requests: list[WorkloadRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _decoded(msgspec.json.Decoder(dict[str, Any]), line, number)
        length = row.get("output_tokens") or row.get("max_tokens") or num_output_tokens
        requests.append(
            WorkloadRequest(
                request_id=f"m{len(requests)}",
                prompt=_message_prompt(row, number),
                num_output_tokens=int(length),
                ignore_eos=False,
            )
        )
    return requests


def _message_prompt(row: Mapping[str, Any], number: int) -> Prompt:
    if isinstance(row.get("messages"), list):
        return ChatPrompt(tuple(row["messages"]))
    if isinstance(row.get("prompt"), str):
        return TextPrompt(row["prompt"])
    for turn in row.get("conversations") or ():
        if turn.get("from") in ("human", "user"):
            return ChatPrompt(({"role": "user", "content": turn["value"]},))
    raise ConfigurationError(f"line {number} has neither `messages`, nor `prompt`, nor `conversations` with a human turn")


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
