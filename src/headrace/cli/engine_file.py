"""The engine file: what `headrace calibrate` writes, or a person; JSON by its name's ending, TOML otherwise."""

from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.sim.cost_model import EngineModel, read_engine


def read_engine_file(path: Path) -> EngineModel:
    """Raises ConfigurationError that names the file."""
    try:
        return read_engine(path.read_bytes(), is_json=path.suffix == ".json")
    except OSError as error:
        raise ConfigurationError(f"the engine file {path} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
