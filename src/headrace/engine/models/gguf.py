"""GGUF files: metadata and tensors as llama.cpp writes them, memory-mapped.

Knows the container (versions 2 and 3, little endian, split into shards or not) and that its bytes may be damaged: whatever a
file holds, reading it ends in a `GgufFile` or a `CheckpointError`. Does not know what a key or a tensor means to a model:
`registry.py` and `weights.py` do.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from headrace.base.errors import CheckpointError
from headrace.engine.models.mapped_file import MappedFile
from headrace.engine.ops.storage import STORAGE_BLOCKS, storage_bytes

GgufValue = int | float | bool | str | list["GgufValue"]
"""A metadata value. Text that is not UTF-8 keeps its bytes as lone surrogates (Python's `surrogateescape`)."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_ARRAY_DEPTH = 4
_DEFAULT_ALIGNMENT = 32
_MAX_ALIGNMENT = 1 << 20
_MAX_SHARDS = 1000
_USUAL_STRING_BYTES = 40
"""Tokens and merges are shorter on average."""
_MAX_STRING_BYTES = 1 << 26
_MAX_ARRAY_ITEMS = 1 << 24
_MIN_KEY_VALUE_BYTES = 8 + 4 + 1
_MIN_TENSOR_INFO_BYTES = 8 + 4 + 4 + 8

_UINT64 = struct.Struct("<Q")
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING = 8
_ARRAY = 9

_TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
}  # fmt: skip

_DROPPED_TENSOR_TYPES = {
    4: "Q4_2 was removed from the format in 2023; convert the model again",
    5: "Q4_3 was removed from the format in 2023; convert the model again",
    9: "Q8_1 is an intermediate of computation that is never written to files",
    31: "Q4_0_4_4 is a repacked type that was removed from the format; use the model's Q4_0 file",
    32: "Q4_0_4_8 is a repacked type that was removed from the format; use the model's Q4_0 file",
    33: "Q4_0_8_8 is a repacked type that was removed from the format; use the model's Q4_0 file",
    36: "IQ4_NL_4_4 is a repacked type that was removed from the format; use the model's IQ4_NL file",
    37: "IQ4_NL_4_8 is a repacked type that was removed from the format; use the model's IQ4_NL file",
    38: "IQ4_NL_8_8 is a repacked type that was removed from the format; use the model's IQ4_NL file",
}

_SHARD_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies."""

    name: str
    storage: str
    """Its type's name, a key of `STORAGE_BLOCKS`."""
    shape: tuple[int, ...]
    """Outermost first; the file has it innermost first."""
    shard: int
    """Index into the checkpoint's files."""
    offset: int
    """Bytes from the beginning of that file."""
    num_bytes: int


class GgufFile:
    """An open GGUF checkpoint: one file, or all shards of a split one. Close it, or use it as a context manager."""

    def __init__(self, path: Path, *, without: frozenset[str] = frozenset()) -> None:
        """Reads headers only; raises CheckpointError where the file is missing, damaged or of an unknown kind.

        `without`: lists among the metadata that are read over and left empty, by key. A vocabulary's take longer to make
        than all else.
        """
        self.path = path
        self.metadata: dict[str, GgufValue] = {}
        """Of the first shard; the others repeat nothing but their own number."""
        self.tensors: dict[str, GgufTensor] = {}
        """By name, in the order of the files."""
        self._shards: list[_Shard] = []
        try:
            self._open(path, without)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path, without: frozenset[str]) -> None:
        for number, shard_path in enumerate(_shard_paths(path)):
            shard = _Shard(shard_path, number, without)
            self._shards.append(shard)
            if number == 0:
                self.metadata = shard.metadata
            for name, tensor in shard.tensors.items():
                if name in self.tensors:
                    raise CheckpointError(f"{shard_path}: tensor {name!r} is in another shard as well")
                self.tensors[name] = tensor
        self._check_shards()

    def _check_shards(self) -> None:
        count = self.metadata.get("split.count", 1)
        if count not in (0, len(self._shards)):
            raise CheckpointError(
                f"{self.path}: it is one of {count} shards (split.count), but {len(self._shards)} were found by name; "
                "shards must keep their names: -00001-of-00003.gguf and so on"
            )
        total = self.metadata.get("split.tensors.count", len(self.tensors))
        if len(self._shards) > 1 and total != len(self.tensors):
            raise CheckpointError(f"{self.path}: {len(self.tensors)} tensors in all shards, {total} announced")

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(shard.file.path for shard in self._shards)

    def header(self) -> Iterator[memoryview]:
        """Every shard's bytes before its tensor data: magic, metadata and tensor descriptions."""
        for shard in self._shards:
            yield shard.file.view[: shard.data_offset]

    def file_of(self, name: str) -> Path:
        return self._shards[self.tensors[name].shard].file.path

    def data(self, name: str) -> memoryview:
        """The tensor's bytes, in the file's own memory: no copy, read-only."""
        tensor = self.tensors[name]
        return self._shards[tensor.shard].file.view[tensor.offset : tensor.offset + tensor.num_bytes]

    def stored_bytes(self) -> Iterator[memoryview]:
        """Every tensor's bytes, in the order of their names."""
        for name in sorted(self.tensors):
            yield self.data(name)

    def forget_metadata(self) -> None:
        """Once it has been looked at: a vocabulary takes many megabytes."""
        for shard in self._shards:
            shard.metadata.clear()

    def release_pages(self) -> None:
        """Lets go of the memory that reading took; what is looked at again is read again."""
        for shard in self._shards:
            shard.file.release_pages()

    def close(self) -> None:
        """Gives the files back; the memory stays mapped for as long as views of it are held."""
        for shard in self._shards:
            shard.file.close()
        self._shards.clear()

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Shard:
    """One mapped file: its own metadata, tensor descriptions and bytes."""

    def __init__(self, path: Path, number: int, without: frozenset[str]) -> None:
        self.file = MappedFile(path)
        try:
            cursor = _Cursor(self.file)
            num_tensors = _read_preamble(cursor)
            self.metadata = _read_metadata(cursor, without)
            alignment = _alignment(path, self.metadata)
            infos = _read_tensor_infos(cursor, num_tensors)
            self.data_offset = min(-(-cursor.position // alignment) * alignment, self.file.num_bytes)
            self.tensors = _place_tensors(path, infos, number, self.data_offset, alignment, self.file.num_bytes)
        except BaseException:
            self.file.close()
            raise


class _Cursor:
    """Reads values one after another from bytes that may lie about their own lengths."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self.position = 0
        self._map = file.raw
        self._size = file.num_bytes

    @property
    def num_remaining(self) -> int:
        return self._size - self.position

    def fail(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: damaged GGUF file: {what} (at byte {self.position})")

    def scalars(self, code: str, count: int, what: str) -> tuple[int | float | bool, ...]:
        layout = struct.Struct(f"<{count}{code}")
        if layout.size > self.num_remaining:
            raise self.fail(f"{what} needs {layout.size} bytes, {self.num_remaining} are left")
        values = layout.unpack_from(self._map, self.position)
        self.position += layout.size
        return values

    def unsigned(self, code: str, what: str) -> int:
        return int(self.scalars(code, 1, what)[0])

    def count(self, what: str, min_bytes_each: int, *, limit: int | None = None) -> int:
        """A 64-bit number of things, each of which takes at least so many of the remaining bytes."""
        count = self.unsigned("Q", what)
        if count * min_bytes_each > self.num_remaining:
            raise self.fail(f"{what} is {count}, more than the {self.num_remaining} bytes left can hold")
        if limit is not None and count > limit:
            raise self.fail(f"{what} is {count}; the limit is {limit}")
        return count

    def raw(self, num_bytes: int, what: str) -> bytes:
        if num_bytes > self.num_remaining:
            raise self.fail(f"{what} needs {num_bytes} bytes, {self.num_remaining} are left")
        raw = self._map[self.position : self.position + num_bytes]
        self.position += num_bytes
        return raw

    def raw_string(self, what: str) -> bytes:
        return self.raw(self.count(f"the length of {what}", 1, limit=_MAX_STRING_BYTES), what)

    def name(self, what: str) -> str:
        """A string that is used as a name and therefore must be proper text."""
        try:
            return self.raw_string(what).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def strings(self, count: int, what: str, *, keep: bool) -> list[GgufValue]:
        """Many strings in one go: vocabularies hold hundreds of thousands, so this loop is kept bare. Without `keep` they
        are read over, and the list is empty."""
        short = self._short_strings(count, keep=keep)
        if short is not None:
            return short
        mapped, position, size, unpack = self._map, self.position, self._size, _UINT64.unpack_from
        values: list[GgufValue] = []
        append = values.append
        for number in range(count):
            start = position + 8
            if start > size:
                raise self.fail(f"{what} ends after {number} of {count} strings")
            end = start + unpack(mapped, position)[0]
            if end > size or end - start > _MAX_STRING_BYTES:
                raise self.fail(f"string {number} of {what} claims {end - start} bytes")
            if keep:
                append(mapped[start:end].decode("utf-8", "surrogateescape"))
            position = end
        self.position = position
        return values

    def _short_strings(self, count: int, *, keep: bool) -> list[GgufValue] | None:
        """The same in half the time where every string is short, as in vocabularies; None where it is not so simple.

        A length below 256 is one byte and seven zeros. Cut at the zeros, each piece is a string and the next one's length;
        if every piece is as long as the one before says, the pieces are the strings, whatever bytes they hold.
        """
        if count < 2:
            return None
        window = self._map[self.position : self.position + count * (8 + _USUAL_STRING_BYTES)]
        pieces = window.split(bytes(7), count)
        if len(pieces) <= count or len(pieces[0]) != 1 or not all(pieces[:count]):
            return None
        told = [piece[-1] for piece in pieces[:count]]
        found = [len(piece) - 1 for piece in pieces[1:count]]
        if told[:-1] != found or len(pieces[count]) < told[-1]:
            return None
        self.position += 8 * count + sum(told)
        if not keep:
            return []
        values: list[GgufValue] = [piece[:-1].decode("utf-8", "surrogateescape") for piece in pieces[1:count]]
        values.append(pieces[count][: told[-1]].decode("utf-8", "surrogateescape"))
        return values


def _shard_paths(path: Path) -> list[Path]:
    """The file itself, or all shards of the set it belongs to, in order."""
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= int(match["number"]) <= count <= _MAX_SHARDS:
        raise CheckpointError(f"{path}: its name numbers no shard of a set (at most {_MAX_SHARDS} are supported)")
    paths = [path.with_name(f"{match['stem']}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise CheckpointError(
            f"{path.parent}: {len(missing)} of {count} shards are missing, the first is {missing[0]}; download all of them"
        )
    return paths


def _read_preamble(cursor: _Cursor) -> int:
    """Magic and version; returns the number of tensors."""
    magic = cursor.raw(4, "the magic number")
    if magic != _MAGIC:
        raise CheckpointError(f"{cursor.path}: not a GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
    version = cursor.unsigned("I", "the version")
    if version not in _VERSIONS:
        kind = "big-endian GGUF" if version & 0xFFFF == 0 and version else f"GGUF version {version}"
        raise CheckpointError(f"{cursor.path}: {kind} is not supported; versions 2 and 3, little endian, are")
    return cursor.count("the number of tensors", 0)


def _read_metadata(cursor: _Cursor, without: frozenset[str]) -> dict[str, GgufValue]:
    metadata: dict[str, GgufValue] = {}
    for _ in range(cursor.count("the number of metadata entries", _MIN_KEY_VALUE_BYTES)):
        key = cursor.name("a metadata key")
        if key in metadata:
            raise cursor.fail(f"metadata key {key!r} appears twice")
        type_id = cursor.unsigned("I", f"the type of {key}")
        metadata[key] = _read_value(cursor, type_id, key, depth=0, keep=key not in without)
    return metadata


def _read_value(cursor: _Cursor, type_id: int, key: str, *, depth: int, keep: bool) -> GgufValue:
    if type_id in _SCALAR_FORMATS:
        return cursor.scalars(_SCALAR_FORMATS[type_id], 1, key)[0]
    if type_id == _STRING:
        return cursor.raw_string(key).decode("utf-8", "surrogateescape")
    if type_id != _ARRAY:
        raise cursor.fail(f"{key} has the unknown type {type_id}")
    return _read_array(cursor, key, depth=depth + 1, keep=keep)


def _read_array(cursor: _Cursor, key: str, *, depth: int, keep: bool) -> GgufValue:
    if depth > _MAX_ARRAY_DEPTH:
        raise cursor.fail(f"{key} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
    item_type = cursor.unsigned("I", f"the item type of {key}")
    if item_type in _SCALAR_FORMATS:
        code = _SCALAR_FORMATS[item_type]
        count = cursor.count(f"the length of {key}", struct.calcsize(f"<{code}"), limit=_MAX_ARRAY_ITEMS)
        values = cursor.scalars(code, count, key)
        return list(values) if keep else []
    if item_type == _STRING:
        return cursor.strings(cursor.count(f"the length of {key}", 8, limit=_MAX_ARRAY_ITEMS), key, keep=keep)
    if item_type == _ARRAY:
        count = cursor.count(f"the length of {key}", 4 + 8, limit=_MAX_ARRAY_ITEMS)
        arrays = [_read_array(cursor, key, depth=depth + 1, keep=keep) for _ in range(count)]
        return arrays if keep else []
    raise cursor.fail(f"{key} has items of the unknown type {item_type}")


def _alignment(path: Path, metadata: dict[str, GgufValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    is_power_of_two = type(alignment) is int and 0 < alignment <= _MAX_ALIGNMENT and alignment & (alignment - 1) == 0
    if not is_power_of_two:
        raise CheckpointError(f"{path}: general.alignment is {alignment!r}, not a power of two up to {_MAX_ALIGNMENT}")
    assert isinstance(alignment, int)
    return alignment


def _read_tensor_infos(cursor: _Cursor, count: int) -> list[tuple[str, str, tuple[int, ...], int]]:
    """Name, type, shape and offset of every tensor, each checked by itself."""
    if count * _MIN_TENSOR_INFO_BYTES > cursor.num_remaining:
        raise cursor.fail(f"{count} tensors are announced, more than {cursor.num_remaining} bytes can describe")
    infos: list[tuple[str, str, tuple[int, ...], int]] = []
    for _ in range(count):
        name = cursor.name("a tensor's name")
        num_dimensions = cursor.unsigned("I", f"the rank of {name}")
        if num_dimensions > _MAX_DIMENSIONS:
            raise cursor.fail(f"tensor {name!r} has {num_dimensions} dimensions; the limit is {_MAX_DIMENSIONS}")
        innermost_first = cursor.scalars("Q", num_dimensions, f"the shape of {name}")
        type_id = cursor.unsigned("I", f"the type of {name}")
        if type_id not in _TENSOR_TYPES:
            reason = _DROPPED_TENSOR_TYPES.get(type_id, f"type {type_id} is unknown here")
            raise CheckpointError(f"{cursor.path}: tensor {name!r} cannot be read: {reason}")
        offset = cursor.unsigned("Q", f"the offset of {name}")
        infos.append((name, _TENSOR_TYPES[type_id], tuple(int(n) for n in reversed(innermost_first)), offset))
    return infos


def _place_tensors(
    path: Path,
    infos: list[tuple[str, str, tuple[int, ...], int]],
    shard: int,
    data_offset: int,
    alignment: int,
    file_bytes: int,
) -> dict[str, GgufTensor]:
    """Checks that every tensor lies whole, aligned and alone within the file."""
    tensors: dict[str, GgufTensor] = {}
    for name, storage, shape, offset in infos:
        if name in tensors:
            raise CheckpointError(f"{path}: damaged GGUF file: tensor {name!r} is described twice")
        num_bytes = _num_bytes(path, name, storage, shape)
        start = data_offset + offset
        if offset % alignment:
            raise CheckpointError(f"{path}: damaged GGUF file: tensor {name!r} is not aligned to {alignment} bytes")
        if start + num_bytes > file_bytes:
            raise CheckpointError(
                f"{path}: the file is cut short: tensor {name!r} ends at byte {start + num_bytes}, "
                f"the file at {file_bytes}; download it again"
            )
        tensors[name] = GgufTensor(name, storage, shape, shard, start, num_bytes)
    in_order = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for before, after in pairwise(in_order):
        if before.offset + before.num_bytes > after.offset:
            raise CheckpointError(f"{path}: damaged GGUF file: tensors {before.name!r} and {after.name!r} overlap")
    return tensors


def _num_bytes(path: Path, name: str, storage: str, shape: tuple[int, ...]) -> int:
    block = STORAGE_BLOCKS[storage]
    innermost = shape[-1] if shape else 1
    if 0 in shape:
        raise CheckpointError(f"{path}: damaged GGUF file: tensor {name!r} has no elements: {shape}")
    if innermost % block.num_elements:
        raise CheckpointError(
            f"{path}: damaged GGUF file: rows of tensor {name!r} have {innermost} elements, "
            f"which are no whole {storage} blocks of {block.num_elements}"
        )
    return storage_bytes(storage, shape)
