"""The fleet file: TOML, read strictly. Knows how to say which key is wrong and what was probably meant."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError, nearest
from headrace.cli.engine_file import read_engine_file
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
        _check_keys(raw, msgspec.inspect.type_info(FleetSpec), table="")
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


def _check_keys(raw: Any, kind: msgspec.inspect.Type, *, table: str) -> None:
    """Of every table, also where its struct would let an unknown one pass: a message that names the table as a file does."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if isinstance(raw, dict):
            known = {field.encode_name: field.type for field in fields}
            for key, value in raw.items():
                if key not in known:
                    where = f"in [{table}]" if table else "at the top"
                    raise ConfigurationError(
                        f"there is no key {key!r} {where}{nearest(key, known)} (known: {', '.join(known)})"
                    )
                _check_keys(value, known[key], table=f"{table}.{key}".lstrip("."))
            if missing := [field.encode_name for field in fields if field.required and field.encode_name not in raw]:
                raise ConfigurationError(f"{f'[{table}]' if table else 'a fleet'} needs {' and '.join(missing)}")
        case msgspec.inspect.UnionType(types=alternatives):
            for inner in alternatives:
                _check_keys(raw, inner, table=table)
        case msgspec.inspect.DictType(value_type=inner) if isinstance(raw, dict):
            for key, value in raw.items():
                _check_keys(value, inner, table=f"{table}.{key}")
        case msgspec.inspect.VarTupleType(item_type=inner) if isinstance(raw, list):
            for value in raw:
                _check_keys(value, inner, table=table)
