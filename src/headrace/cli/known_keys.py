"""Keys of a file against the structs that it describes, also where a struct would let an unknown one pass: a message that
names the table as the file does, and what was probably meant."""

import math
from typing import Any

import msgspec

from headrace.base.errors import ConfigurationError, nearest


def check_keys(raw: Any, kind: msgspec.inspect.Type, *, what: str, table: str = "") -> None:
    """Raises ConfigurationError where a key is not known or a table lacks one. `what`: the file describes, for messages."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if isinstance(raw, dict):
            known = {field.encode_name: field.type for field in fields}
            for key, value in raw.items():
                if key not in known:
                    where = f"in [{table}]" if table else "at the top"
                    raise ConfigurationError(
                        f"there is no key {key!r} {where}{nearest(key, known)} (known: {', '.join(known)})"
                    )
                if isinstance(value, float) and not math.isfinite(value):
                    where = f" in [{table}]" if table else ""
                    raise ConfigurationError(f"{key}{where} must be a finite number, not {value}")
                check_keys(value, known[key], what=what, table=f"{table}.{key}".lstrip("."))
            if missing := [field.encode_name for field in fields if field.required and field.encode_name not in raw]:
                raise ConfigurationError(f"{f'[{table}]' if table else what} needs {' and '.join(missing)}")
        case msgspec.inspect.UnionType(types=alternatives):
            for inner in alternatives:
                check_keys(raw, inner, what=what, table=table)
        case msgspec.inspect.DictType(value_type=inner) if isinstance(raw, dict):
            for key, value in raw.items():
                check_keys(value, inner, what=what, table=f"{table}.{key}")
        case msgspec.inspect.VarTupleType(item_type=inner) if isinstance(raw, list):
            for value in raw:
                check_keys(value, inner, what=what, table=table)
