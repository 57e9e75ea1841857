"""The command line's manners: what it does not know it says, and its exit status tells which kind of thing went wrong."""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from headrace.base.errors import CheckpointError, ConfigurationError, EngineDeadError, HeadraceError, OverloadedError
from headrace.cli import main as command_line
from headrace.cli.main import main


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said of words that are refused."""
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_a_misspelt_option_is_refused_with_the_right_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean '--max-model-len'?" in refused(["serve", "--max-model-length", "5"], capsys)


def test_an_abbreviated_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no option --max-model" in refused(["serve", "--max-model", "5"], capsys)


def test_a_misspelt_command_is_refused_with_the_right_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'serve'?" in refused(["srve"], capsys)


@pytest.mark.parametrize("command", ["serve", "pull", "roofline", "calibrate", "plan"])
def test_who_gives_the_model_by_an_option_is_told_where_it_stands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    needed = ["x", "--workload", "w", "--slo", "ttft:1"] if command == "plan" else []
    said = refused([command, *needed, "--model", "org/model"], capsys)
    assert f"is given without --model: headrace {command}" in said


def test_a_word_too_many_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'model-b' is one word too many" in refused(["serve", "model-a", "model-b"], capsys)


def test_a_bad_value_names_its_option_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(["serve", "--kv-cache-memory", "lots"], capsys)
    assert "--kv-cache-memory" in said
    assert "'lots' is not a size; write for example 512M or 2GiB" in said


def test_a_misspelt_choice_is_refused_with_the_right_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'bfloat16'?" in refused(["serve", "--dtype", "bflaot16"], capsys)


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--num-seeds"],
        ["bench", "--num-prompts"],
        ["calibrate", "--num-rounds"],
        ["plan", "--max-replicas"],
        ["roofline", "--context"],
    ],
)
def test_what_is_no_count_is_refused_in_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {words[1]}: 'many' is not a whole number" in refused([*words, "many"], capsys)
    assert f"argument {words[1]}: must be at least 1, not 0" in refused([*words, "0"], capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("fleet.toml --workload w --engine e.json", "no use for --engine with a fleet"),
        ("fleet.toml --case all", "no use for --case with a fleet"),
        ("--html page.html", "no use for --html with drawn scenarios"),
        ("--engine e.json --result r.json", "no use for --engine and --result with drawn scenarios"),
        ("--case all --workload w", "no use for --workload with --case"),
        ("--workload w --seed 3", "no use for --seed with --workload without a fleet"),
        ("--replay steps --num-seeds 3", "no use for --num-seeds with --replay"),
    ],
)
def test_options_of_simulate_that_would_be_left_unheard_are_refused(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words.split()]) == 2
    assert f"headrace: there is {told}" in capsys.readouterr().err


def test_no_command_is_refused_and_help_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert "headrace --help" in refused([], capsys)


@pytest.mark.parametrize(
    "words", [["--help"], ["serve", "--help"], ["pull", "--help"], ["simulate", "--help"], ["--version"]]
)
def test_help_is_given_and_is_no_failure(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    assert "headrace" in capsys.readouterr().out


def test_version_says_what_a_bug_report_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("headrace ")
    assert "Python" in said
    assert "torch" in said


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigurationError("an option"), 2),
        (CheckpointError("a model"), 3),
        (EngineDeadError("an engine"), 4),
        (OverloadedError("anything else"), 1),
    ],
)
def test_an_operating_error_is_one_plain_line_and_a_status_of_its_kind(
    error: HeadraceError, status: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(options: argparse.Namespace) -> int:
        raise error

    monkeypatch.setitem(command_line._COMMANDS, "version", _command(fail))
    assert main(["version"]) == status
    assert capsys.readouterr().err == f"headrace: {error}\n"


def test_an_interruption_is_no_stack_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(command_line._COMMANDS, "version", _command(interrupt))
    assert main(["version"]) == 130
    assert capsys.readouterr().err == "headrace: interrupted\n"


_TALKERS = [["--help"], ["serve", "--help"], ["version"], ["simulate", "--num-requests", "3"], ["bench", "--help"]]
"""Commands that write something and need nothing."""


def ended_into(output: int, words: list[str]) -> tuple[int, str]:
    """Exit status, and what it said besides, of a command that writes where it is told to."""
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    ended = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, check=False)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("words", _TALKERS, ids=" ".join)
def test_a_pipe_that_nobody_reads_any_more_ends_a_command_without_a_word(words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert ended_into(writer, words) == (0, "")
    finally:
        os.close(writer)


@pytest.mark.parametrize("words", _TALKERS, ids=" ".join)
def test_output_that_finds_no_room_is_told_in_one_line(words: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        assert ended_into(full, words) == (1, "headrace: the output cannot be written: No space left on device\n")
    finally:
        os.close(full)


_INTERRUPTED_AT_AN_IMPORT = """
import os, signal, sys
from headrace.cli.main import main
left = int(sys.argv.pop(1))
def count(event, _):
    global left
    if event == "import":
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(count)
sys.exit(main())
"""


@pytest.mark.parametrize("command", [["serve", "--port", "0"], ["version"]])
@pytest.mark.parametrize("number", [1, 2, 4, 8, 16])
def test_ctrl_c_before_a_command_is_read_ends_it_without_a_word(command: list[str], number: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_AT_AN_IMPORT, str(number), *command], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_nothing_of_ours_is_imported_before_ctrl_c_ends_a_command_without_a_word() -> None:
    script = "import headrace.cli.main, sys; print(*(name for name in sys.modules if name.startswith('headrace')))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["headrace", "headrace.cli", "headrace.cli.main"]


def _command(run: Callable[[argparse.Namespace], int]) -> Callable[[command_line.Commands], None]:
    def add_parser(commands: command_line.Commands) -> None:
        commands.add_parser("version").set_defaults(run=run)

    return add_parser
