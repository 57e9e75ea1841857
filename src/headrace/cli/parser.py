"""How a command line is read: unknown words are errors, with the nearest right spelling. Knows no command."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NoReturn, TypeVar

from headrace.base.errors import nearest

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
        if word.startswith("-"):
            self.error(f"there is no option {word}{nearest(word, self._option_string_actions)}")
        self.error(f"{word!r} is one word too many")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


class _Formatter(argparse.HelpFormatter):
    """Long options get a line of their own sooner, so that the explanations stand in one column."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)


def one_of(choices: type[Choice]) -> Callable[[str], Choice]:
    """The type of an option whose values have names. Raises ArgumentTypeError, for which the option is named."""

    def read(text: str) -> Choice:
        try:
            return choices(text)
        except ValueError:
            known = [str(one) for one in choices]
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(known)}, not {text!r}{nearest(text, known)}"
            ) from None

    return read


def at_least_one(text: str) -> int:
    """The type of an option that counts. Raises ArgumentTypeError, for which the option is named."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def unknown_word(word: str, what: str, known: Iterable[str]) -> str:
    """The message for a word that is none of those known."""
    names = list(known)
    return f"there is no {what} {word!r}{nearest(word, names)} (known: {', '.join(names)})"
