"""Every option of every command is explained with its default, and refuses in words what it cannot be."""

import argparse
from collections.abc import Iterator

import pytest

from headrace.cli import main as command_line
from headrace.cli.main import main
from headrace.cli.parser import Parser

ENOUGH = {
    "plan": ["llama-3.1-8b", "--workload", "w.jsonl", "--slo", "ttft:500"],
    "compare": ["a.json", "b.json"],
}
"""Words without which a command is refused for another reason."""


def every_option() -> Iterator[tuple[str, Parser, argparse.Action]]:
    commands = Parser(prog="headrace").add_subparsers()
    for name, add_parser in command_line._COMMANDS.items():
        add_parser(commands)
        parser = commands.choices[name]
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction):
                yield name, parser, action


OPTIONS = list(every_option())


def is_a_number(action: argparse.Action) -> bool:
    try:
        made = action.type("3") if callable(action.type) else None
    except (ValueError, argparse.ArgumentTypeError):
        return False
    return isinstance(made[0] if isinstance(made, list) and made else made, (int, float)) and action.nargs != 0


NUMBERS = [option for option in OPTIONS if option[2].option_strings and is_a_number(option[2])]
CHOICES = [option for option in OPTIONS if option[2].choices]


def named(options: list[tuple[str, Parser, argparse.Action]]) -> pytest.MarkDecorator:
    """As parameters of a test, by command and option."""
    return pytest.mark.parametrize(
        ("name", "parser", "action"),
        [pytest.param(*one, id=f"{one[0]} {'/'.join(one[2].option_strings) or one[2].dest}") for one in options],
    )


def refusal(name: str, action: argparse.Action, value: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        main([name, *ENOUGH.get(name, []), f"{action.option_strings[-1]}={value}"])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {'/'.join(action.option_strings)}: " in said
    return said


@named(OPTIONS)
def test_an_option_is_explained_and_where_it_has_a_default_that_is_told(
    name: str, parser: Parser, action: argparse.Action
) -> None:
    explanation = parser._get_formatter()._get_help_string(action)
    assert explanation
    is_told_by_what_it_is = action.default in (None, "", (), [], {}) or action.default is False
    assert is_told_by_what_it_is or "default" in explanation


@named(NUMBERS)
@pytest.mark.parametrize("value", ["many", "nan", "-1e999", "1e999x", ""])
def test_what_is_no_number_is_refused_in_words(
    name: str, parser: Parser, action: argparse.Action, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(name, action, value, capsys)
    assert "invalid" not in said
    assert value in said


@named(CHOICES)
def test_a_misspelt_choice_is_refused_with_the_nearest(
    name: str, parser: Parser, action: argparse.Action, capsys: pytest.CaptureFixture[str]
) -> None:
    assert action.choices is not None
    right = str(next(iter(action.choices)))
    assert f"did you mean {right!r}?" in refusal(name, action, right + "e", capsys)
