"""The engine file: what `headrace calibrate` writes, or a person; JSON by its name's ending, TOML otherwise."""

from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.known_keys import check_keys
from headrace.sim.cost_model import EngineModel, read_engine


def read_engine_file(path: Path) -> EngineModel:
    """Raises ConfigurationError that names the file."""
    try:
        content, is_json = path.read_bytes(), path.suffix == ".json"
        check_keys(_raw(content, is_json), msgspec.inspect.type_info(EngineModel), what="an engine")
        return read_engine(content, is_json=is_json)
    except OSError as error:
        raise ConfigurationError(f"the engine file {path} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _raw(content: bytes, is_json: bool) -> Any:
    try:
        return msgspec.json.decode(content) if is_json else msgspec.toml.decode(content)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"it describes no engine: {error}") from None
