"""Files that a command writes when its work is done: refused before it begins where they could not be written."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.base.errors import ConfigurationError


def output_file(text: str) -> Path:
    """The type of an option that names a file to write. Raises ArgumentTypeError, for which the option is named."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: there is no folder {path.parent}")
    return path


def write_output(path: Path, content: str | bytes) -> None:
    """Text as UTF-8. Raises ConfigurationError where it cannot be written, after all."""
    with writing(path):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around whatever writes the file. Raises ConfigurationError where it cannot be: no rights, no room."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
