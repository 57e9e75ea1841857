"""What a request type has at a place: which fields, or which words. For messages to clients who sent others.

Knows types as msgspec describes them, and its paths (`$.messages[0].role`). Looks at no request.
"""

import re
from collections.abc import Iterator

import msgspec
from msgspec.inspect import (
    DictType,
    EnumType,
    Field,
    ListType,
    LiteralType,
    Metadata,
    StructType,
    Type,
    UnionType,
    VarTupleType,
)

_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")


def fields_at(request_type: type, path: str) -> dict[str, Field]:
    """By name; of all objects that may stand there."""
    found: dict[str, Field] = {}
    for kind in _kinds_at(request_type, path):
        if isinstance(kind, StructType):
            found |= {field.encode_name: field for field in kind.fields}
    return found


def words_at(request_type: type, path: str) -> list[str]:
    """The only strings that may stand there; none where any may, or no string."""
    words: list[str] = []
    for kind in _kinds_at(request_type, path):
        if isinstance(kind, LiteralType):
            words += [value for value in kind.values if isinstance(value, str)]
        elif isinstance(kind, EnumType):
            words += [member.value for member in kind.cls if isinstance(member.value, str)]
    return words


def home_of(name: str, request_type: type, path: str) -> str:
    """The field of an object at this place in which a field of this name would be at home; empty unless there is one."""
    homes = [
        outer
        for outer, field in fields_at(request_type, path).items()
        if any(name == inner.encode_name for kind in _alternatives(field.type) for inner in _fields_of(kind))
    ]
    return homes[0] if len(homes) == 1 else ""


def _kinds_at(request_type: type, path: str) -> list[Type]:
    kinds = list(_alternatives(msgspec.inspect.type_info(request_type)))
    for step in _STEP.finditer(path):
        kinds = [inner for kind in kinds for inner in _inside(kind, step[1])]
    return kinds


def _inside(kind: Type, name: str | None) -> Iterator[Type]:
    """What may stand in it under this name; without one, as an item."""
    for field in _fields_of(kind):
        if field.encode_name == name:
            yield from _alternatives(field.type)
    if name is None:
        if isinstance(kind, ListType | VarTupleType):
            yield from _alternatives(kind.item_type)
        elif isinstance(kind, DictType):
            yield from _alternatives(kind.value_type)


def _fields_of(kind: Type) -> tuple[Field, ...]:
    return kind.fields if isinstance(kind, StructType) else ()


def _alternatives(kind: Type) -> Iterator[Type]:
    match kind:
        case UnionType(types=types):
            for one in types:
                yield from _alternatives(one)
        case Metadata(type=described):
            yield from _alternatives(described)
        case _:
            yield kind
