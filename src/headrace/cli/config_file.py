"""A TOML file with the options of `headrace serve`, spelt as on the command line but with underscores:

    model = "org/model"
    max_model_len = 4096
    kv_cache_memory = "2GiB"
    served_model_name = ["small", "default"]

Knows files; the options themselves are in `serve_options.py`.
"""

import tomllib
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigurationError
from headrace.cli.serve_options import values_of_table


def read_config_file(path: Path) -> dict[str, Any]:
    """The options that the file gives. Raises ConfigurationError where it cannot be read or says something unknown."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {path} is no TOML: {error}") from None
    return values_of_table(table, str(path))
