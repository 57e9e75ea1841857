"""How a command line is read: unknown words are errors, with the nearest right spelling. Knows no command."""

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn, TypeVar

from headrace.base.errors import nearest

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

EXIT_USAGE = 2
Choice = TypeVar("Choice", bound=StrEnum)


class Parser(argparse.ArgumentParser):
    """argparse's, without abbreviations (a new option must not change what an old script means) and with suggestions."""

    def __init__(self, *args: object, **options: object) -> None:
        options.setdefault("allow_abbrev", False)
        options.setdefault("formatter_class", _Formatter)
        super().__init__(*args, **options)  # type: ignore[arg-type]

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """What the words say. Exits with `EXIT_USAGE` where they say nothing known, as argparse does."""
        options, unknown = self.parse_known_args(words)
        if unknown:
            speaker = getattr(options, "parser", self)
            speaker.refuse(unknown)
        return options

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        word = unknown[0].split("=", 1)[0]
        for action in self._actions:
            if not action.option_strings and word == f"--{action.dest}":
                what = action.metavar or action.dest
                self.error(f"{what} is given without {word}: {self.prog} {what}")
        if word.startswith("-"):
            self.error(f"there is no option {word}{nearest(word, self._option_string_actions)}")
        self.error(f"{word!r} is one word too many")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """argparse's, with a suggestion."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, _none_of(str(value), [str(one) for one in action.choices]))

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """argparse's would keep silent where there is no room for it, or nobody who reads it."""
        if message:
            (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


class _Formatter(argparse.HelpFormatter):
    """Long options get a line of their own sooner, so that the explanations stand in one column. A default is told, unless
    the explanation has it in words."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _get_help_string(self, action: argparse.Action) -> str:
        explanation, default = action.help or "", action.default
        is_nothing = default in (None, argparse.SUPPRESS, "", (), [], {}) or default is False
        if is_nothing or "default" in explanation:
            return explanation
        items = default if isinstance(default, (list, tuple)) else [default]
        words = " ".join(f"{item:g}" if isinstance(item, float) else str(item) for item in items)
        return f"{explanation} (default {words})"


def one_of(choices: type[Choice]) -> Callable[[str], Choice]:
    """The type of an option whose values have names. Raises ArgumentTypeError, for which the option is named."""

    def read(text: str) -> Choice:
        try:
            return choices(text)
        except ValueError:
            raise argparse.ArgumentTypeError(_none_of(text, [str(one) for one in choices])) from None

    return read


def count(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that is a whole number of at least `least`. Raises ArgumentTypeError, for which the option is
    named."""

    def read(text: str) -> int:
        number = whole_number(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, not {number}")
        if most is not None and number > most:
            raise argparse.ArgumentTypeError(f"must be at most {most}, not {number}")
        return number

    return read


at_least_one = count()


def whole_number(text: str) -> int:
    """The type of an option that may be any whole number, such as a seed. Raises ArgumentTypeError."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def number(
    *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf, may_be_infinite: bool = False
) -> Callable[[str], float]:
    """The type of an option that is a number between limits; `above` is none itself. Raises ArgumentTypeError, for which the
    option is named."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if math.isnan(value) or (math.isinf(value) and not may_be_infinite):
            raise argparse.ArgumentTypeError(f"must be a finite number, not {text}")
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, not {text}")
        if value <= above:
            raise argparse.ArgumentTypeError(f"must be above {above:g}, not {text}")
        if value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:g}, not {text}")
        return value

    return read


def unknown_word(word: str, what: str, known: Iterable[str]) -> str:
    """The message for a word that is none of those known."""
    names = list(known)
    return f"there is no {what} {word!r}{nearest(word, names)} (known: {', '.join(names)})"


def _none_of(word: str, known: Sequence[str]) -> str:
    return f"must be one of {', '.join(known)}, not {word!r}{nearest(word, known)}"
