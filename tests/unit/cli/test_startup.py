"""What a starting server shows: each phase with its seconds, the facts, and words to try that work as they stand."""

import ast
import io
import json
import shlex

import pytest
from rich.console import Console

from headrace.base.clock import ManualClock
from headrace.base.units import MIB, NANOS_PER_SECOND
from headrace.cli.startup import Invitation, StartupDisplay
from headrace.engine.host.generation import EngineFacts
from headrace.engine.host.messages import StartupPhase


def invitation(*, can_chat: bool = True, needs_key: bool = False) -> Invitation:
    return Invitation(url="http://127.0.0.1:8000", model_name="it's", can_chat=can_chat, needs_key=needs_key)


def test_phases_are_shown_with_their_seconds_and_a_new_one_under_its_own_name() -> None:
    output = io.StringIO()
    clock = ManualClock()
    display = StartupDisplay(Console(file=output, width=40), clock)
    display.begin("some-model")
    display.phase_over(StartupPhase("load_weights", 1.234, "float32"))
    display.phase_over(StartupPhase("dig_the_channel", 0.5))
    clock.advance(3 * NANOS_PER_SECOND)
    facts = EngineFacts(
        served_model_names=("some-model",), model_path="a/path", max_model_len=2048, vocab_size=10, block_size=16,
        num_blocks=100, dtype="float32", device="torch on CPU", policy="fcfs", execution_identity="ab", started_unix_s=0,
    )  # fmt: skip
    display.ready(facts, max_num_seqs=64, kv_bytes=5 * MIB)
    display.end()
    shown = output.getvalue()
    assert "load weights" in shown
    assert "1.23 s  float32" in shown
    assert "dig_the_channel" in shown
    assert "ready after 3.0 s" in shown
    assert "1,600 tokens in blocks of 16, 5.0 MiB" in shown
    assert "\x1b" not in shown, "no colours where nobody sees them"


@pytest.mark.parametrize("can_chat", [True, False])
def test_the_command_to_try_is_one_that_a_shell_understands(can_chat: bool) -> None:
    words = shlex.split(invitation(can_chat=can_chat).curl())
    assert words[0] == "curl"
    assert words[1].endswith("/v1/chat/completions" if can_chat else "/v1/completions")
    assert json.loads(words[-1])["model"] == "it's"


@pytest.mark.parametrize("needs_key", [True, False])
@pytest.mark.parametrize("can_chat", [True, False])
def test_the_program_to_try_is_one_that_python_understands(can_chat: bool, needs_key: bool) -> None:
    program = "\n".join(invitation(can_chat=can_chat, needs_key=needs_key).python())
    assert ast.parse(program)
    assert ("HEADRACE_API_KEY" in program) == needs_key


def test_long_lines_are_not_broken_so_that_they_can_be_copied() -> None:
    output = io.StringIO()
    invitation().show(Console(file=output, width=30))
    assert invitation().curl() in output.getvalue()
