"""The fleet file: TOML, read strictly."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.cli.engine_file import read_engine_file
from headrace.cli.known_keys import check_keys
from headrace.sim.fleet_spec import FleetSpec


def read_fleet(path: Path) -> FleetSpec:
    """Raises ConfigurationError that names the file, the table and the key."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"the fleet file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the fleet file {path} is no TOML: {error}") from None
    pools = raw.get("pools")
    for name, pool in pools.items() if isinstance(pools, dict) else ():
        if isinstance(pool, dict) and "engine" in pool:
            _take_engine(pool, f"pools.{name}", path.parent)
    try:
        check_keys(raw, msgspec.inspect.type_info(FleetSpec), what="a fleet")
        return msgspec.convert(raw, FleetSpec)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _take_engine(pool: dict[str, Any], table: str, folder: Path) -> None:
    """Puts the content of the pool's engine file in the place of its name."""
    name = pool["engine"]
    if not isinstance(name, str):
        raise ConfigurationError(f"engine in [{table}] is the name of a file that `headrace calibrate` wrote, not {name!r}")
    engine = msgspec.to_builtins(read_engine_file(folder / name))
    pool["engine"] = engine
    stated = pool.get("scheduler", {})
    if isinstance(stated, dict):
        pool["scheduler"] = {**engine["scheduler"], **stated}
