"""Files that a command reads: what is wrong with one is told with its name, whether it is missing, damaged or of another
kind. Knows files; not what is in them."""

import gzip
import lzma
import tarfile
import tomllib
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from headrace.base.errors import ConfigurationError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around whatever reads the file. Raises ConfigurationError that names it for all that may be wrong with it."""
    try:
        yield
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise ConfigurationError(f"{path} cannot be unpacked, it is damaged or cut off: {error}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is no text in UTF-8: {error}") from None
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path} is not what it should be: {error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def opened(path: Path) -> IO[bytes]:
    """Unpacked, where its name says that it is packed."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
