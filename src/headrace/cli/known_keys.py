"""Keys and values of a file against the structs that it describes, also where a struct would let an unknown key pass:
messages name the table as the file does, and what was probably meant."""

import math
from typing import Any

from msgspec import inspect

from headrace.base.errors import ConfigurationError, nearest


def check_keys(raw: Any, kind: inspect.Type, *, what: str, table: str = "") -> None:
    """Raises ConfigurationError where a key is not known, a table lacks one or a value is of another kind. `what`: the file
    describes, for messages. What a struct says of its own numbers is left to it."""
    match kind:
        case inspect.StructType(fields=fields) if isinstance(raw, dict):
            known = {field.encode_name: field.type for field in fields}
            for key, value in raw.items():
                if key not in known:
                    where = f"in [{table}]" if table else "at the top"
                    raise ConfigurationError(
                        f"there is no key {key!r} {where}{nearest(key, known)} (known: {', '.join(known)})"
                    )
                _check_value(value, known[key], name=f"{key} in [{table}]" if table else key)
                check_keys(value, known[key], what=what, table=f"{table}.{key}".lstrip("."))
            if missing := [field.encode_name for field in fields if field.required and field.encode_name not in raw]:
                raise ConfigurationError(f"{f'[{table}]' if table else what} needs {' and '.join(missing)}")
        case inspect.UnionType(types=alternatives):
            for inner in alternatives:
                check_keys(raw, inner, what=what, table=table)
        case inspect.DictType(value_type=inner) if isinstance(raw, dict):
            for key, value in raw.items():
                _check_value(value, inner, name=f"{key} in [{table}]")
                check_keys(value, inner, what=what, table=f"{table}.{key}")
        case inspect.VarTupleType(item_type=inner) if isinstance(raw, list):
            for value in raw:
                check_keys(value, inner, what=what, table=table)


def _check_value(value: Any, kind: inspect.Type, *, name: str) -> None:
    if isinstance(kind, inspect.UnionType):
        if value is None and kind.includes_none:
            return
        (kind,) = [one for one in kind.types if not isinstance(one, inspect.NoneType)] if kind.includes_none else [kind]
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    match kind:
        case inspect.IntType():
            is_right, wanted = is_whole, "a whole number"
        case inspect.FloatType():
            is_right, wanted = is_whole or isinstance(value, float), "a number"
        case inspect.BoolType():
            is_right, wanted = isinstance(value, bool), "true or false"
        case inspect.StrType():
            is_right, wanted = isinstance(value, str), "words in quotes"
        case inspect.EnumType(cls=choices):
            names = [str(one.value) for one in choices]
            is_right, wanted = value in names, f"one of {', '.join(names)}"
        case inspect.StructType() | inspect.DictType():
            is_right, wanted = isinstance(value, dict), "a table"
        case inspect.VarTupleType():
            is_right, wanted = isinstance(value, (list, tuple)), "a list"
        case _:
            return
    if not is_right:
        raise ConfigurationError(f"{name} must be {wanted}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{name} must be a finite number, not {value}")
