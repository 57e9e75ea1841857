"""What a person sees while a server starts, and once it serves. Knows words and colours; starts nothing."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.status import Status
from rich.text import Text

from headrace.base.clock import Clock
from headrace.base.units import format_bytes, seconds
from headrace.engine.host.generation import EngineFacts
from headrace.engine.host.messages import StartupPhase

_LABELS = {
    "start_process": "start the engine process",
    "open_checkpoint": "read the model's description",
    "load_weights": "load weights",
    "allocate_kv_cache": "allocate the KV cache",
    "warm_up": "warm up",
    "load_tokenizer": "load the tokenizer",
}
"""Phases in the order of a start, but for the last, which runs beside the others."""

_LABEL_WIDTH = max(map(len, _LABELS.values())) + 2
_QUESTION = "Why does a mill need a headrace?"


class StartupDisplay:
    """A line for each phase that is over, and on a terminal the one that runs now, moving."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._began = clock.now()
        self._waiting = [name for name in _LABELS if name != "load_tokenizer"]
        self._status: Status | None = None

    def begin(self, model: str) -> None:
        self._console.print(Text.assemble("starting ", (model, "bold")), soft_wrap=True)
        self._show_next()

    def phase_over(self, phase: StartupPhase) -> None:
        label = _LABELS.get(phase.name, phase.name)
        line = Text.assemble(
            ("  ✓ ", "green"), label.ljust(_LABEL_WIDTH), (f"{phase.seconds:6.2f} s  ", "cyan"), (phase.detail, "dim")
        )
        self._console.print(line, soft_wrap=True)
        if phase.name in self._waiting:
            self._waiting.remove(phase.name)
        self._show_next()

    def end(self) -> None:
        """No phase runs any more, whether all are over or not."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ready(self, facts: EngineFacts, *, max_num_seqs: int, kv_bytes: int) -> None:
        """The facts, and how long it took."""
        took = seconds(self._clock.now() - self._began)
        name = facts.served_model_names[0]
        self._console.print()
        self._console.print(Text.assemble((name, "bold"), " is ready after ", (f"{took:.1f} s", "cyan")), soft_wrap=True)
        tokens = facts.num_blocks * facts.block_size
        rows = {
            "model": facts.model_path,
            "computes": f"{facts.dtype}, {facts.device}",
            "KV cache": f"{tokens:,} tokens in blocks of {facts.block_size}, {format_bytes(kv_bytes)}",
            "sequences": f"up to {facts.max_model_len:,} tokens each, {max_num_seqs} at once",
        }
        for label, value in rows.items():
            self._console.print(Text.assemble((f"  {label:<11}", "dim"), value), soft_wrap=True)

    def _show_next(self) -> None:
        if not self._console.is_terminal or not self._waiting:
            self.end()
            return
        label = f"{_LABELS[self._waiting[0]]} …"
        if self._status is None:
            self._status = self._console.status(label)
            self._status.start()
        else:
            self._status.update(label)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What to try once the server answers."""

    url: str
    model_name: str
    can_chat: bool
    needs_key: bool

    def show(self, console: Console) -> None:
        console.print()
        for label, path in (("chat page", "/"), ("API", "/docs"), ("metrics", "/metrics")):
            console.print(Text.assemble((f"  {label:<11}", "dim"), (f"{self.url}{path}", "underline")), soft_wrap=True)
        self._show_code(console, "Try in a shell:", [self.curl()])
        self._show_code(console, "or in Python:", self.python())
        console.print()
        console.print(Text("Ctrl-C stops it: open answers may end first. Twice, and it stops at once.", "dim"))

    def curl(self) -> str:
        """A command that answers as it stands."""
        path, body = (
            "/v1/completions",
            {"model": self.model_name, "prompt": "A mill needs a headrace because", "max_tokens": 64},
        )
        if self.can_chat:
            message = {"role": "user", "content": _QUESTION}
            path, body = "/v1/chat/completions", {"model": self.model_name, "messages": [message]}
        key = ' -H "Authorization: Bearer $HEADRACE_API_KEY"' if self.needs_key else ""
        return f"curl {self.url}{path} -H 'Content-Type: application/json'{key} -d {shlex.quote(json.dumps(body))}"

    def python(self) -> Sequence[str]:
        """A program that answers as it stands, given the `openai` package."""
        key = 'os.environ["HEADRACE_API_KEY"]' if self.needs_key else '"none"'
        lines = ["import os", ""] if self.needs_key else []
        lines += ["from openai import OpenAI", "", f'client = OpenAI(base_url="{self.url}/v1", api_key={key})']
        if self.can_chat:
            lines += [
                f'messages = [{{"role": "user", "content": "{_QUESTION}"}}]',
                f'answer = client.chat.completions.create(model="{self.model_name}", messages=messages)',
                "print(answer.choices[0].message.content)",
            ]
        else:
            lines += [
                f'answer = client.completions.create(model="{self.model_name}", prompt="A mill needs", max_tokens=64)',
                "print(answer.choices[0].text)",
            ]
        return lines

    def _show_code(self, console: Console, title: str, lines: Sequence[str]) -> None:
        console.print()
        console.print(Text(f"  {title}", "dim"))
        for line in lines:
            console.print(Text(f"    {line}"), soft_wrap=True)
