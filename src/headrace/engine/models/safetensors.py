"""Safetensors files: a JSON header and raw bytes, memory-mapped, in one file or in shards with an index.

Knows the container and that its bytes may be damaged: reading ends in a `SafetensorsFiles` or a `CheckpointError`. Does not
know what a tensor means to a model.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TypeGuard

from headrace.base.errors import CheckpointError
from headrace.engine.models.mapped_file import MappedFile

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
_MAX_JSON_BYTES = 100_000_000
_MAX_DIMENSIONS = 16

_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """Where a tensor lies."""

    name: str
    storage: str
    """The format's name for its type, for example `BF16`."""
    shape: tuple[int, ...]
    file: int
    """Index into the checkpoint's files."""
    offset: int
    """Bytes from the beginning of that file."""
    num_bytes: int


class SafetensorsFiles:
    """All tensors of a checkpoint folder. Close it, or use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Reads headers only; raises CheckpointError where a file is missing or damaged."""
        self.tensors: dict[str, SafetensorsTensor] = {}
        """By name, in the order of the files."""
        self._files: list[_File] = []
        try:
            self._open(folder)
        except BaseException:
            self.close()
            raise

    def _open(self, folder: Path) -> None:
        index = _read_index(folder)
        names = [SINGLE_NAME] if index is None else sorted(set(index.values()))
        for number, name in enumerate(names):
            file = _File(folder / name, number)
            self._files.append(file)
            for tensor in file.tensors.values():
                # A shard may hold more than the index gives it; the index decides.
                if index is None or index.get(tensor.name) == name:
                    self.tensors[tensor.name] = tensor
        for tensor_name, file_name in (index or {}).items():
            if tensor_name not in self.tensors:
                raise CheckpointError(f"{folder / file_name}: tensor {tensor_name!r}, promised by the index, is not in it")

    def header(self) -> Iterator[memoryview]:
        """Every file's bytes before its tensor data."""
        for file in self._files:
            yield file.file.view[: file.data_offset]

    def file_of(self, name: str) -> Path:
        return self._files[self.tensors[name].file].file.path

    def data(self, name: str) -> memoryview:
        """The tensor's bytes, in the file's own memory: no copy, read-only."""
        tensor = self.tensors[name]
        return self._files[tensor.file].file.view[tensor.offset : tensor.offset + tensor.num_bytes]

    def stored_bytes(self) -> Iterator[memoryview]:
        """Every tensor's bytes, in the order of their names."""
        for name in sorted(self.tensors):
            yield self.data(name)

    def release_pages(self) -> None:
        """Lets go of the memory that reading took; what is looked at again is read again."""
        for file in self._files:
            file.file.release_pages()

    def close(self) -> None:
        """Gives the files back; the memory stays mapped for as long as views of it are held."""
        for file in self._files:
            file.file.close()
        self._files.clear()

    def __enter__(self) -> "SafetensorsFiles":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def read_json_object(path: Path) -> dict[str, object]:
    """A JSON file that must hold an object; raises CheckpointError otherwise."""
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{path}: {size} bytes are more than such a file may have ({_MAX_JSON_BYTES})")
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _parse_object(raw, str(path))


class _File:
    """One mapped file with its tensors."""

    def __init__(self, path: Path, number: int) -> None:
        self.file = MappedFile(path)
        try:
            self.data_offset, header = _read_header(self.file)
            self.tensors = _place_tensors(path, header, number, self.data_offset, self.file.num_bytes)
        except BaseException:
            self.file.close()
            raise


def _read_index(folder: Path) -> dict[str, str] | None:
    """Which file holds which tensor; None where one file holds all."""
    path = folder / INDEX_NAME
    if (folder / SINGLE_NAME).is_file() or not path.is_file():
        return None
    weight_map = read_json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must be an object that names files")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not (folder / file).is_file():
            raise CheckpointError(f"{path}: tensor {tensor!r} should be in {file!r}, and there is no such file beside it")
    return weight_map


def _read_header(file: MappedFile) -> tuple[int, dict[str, object]]:
    """Where data begins, and the header."""
    if file.num_bytes < 8:
        raise CheckpointError(f"{file.path}: the file is cut short: it has {file.num_bytes} bytes")
    length = int.from_bytes(file.raw[:8], "little")
    if length > _MAX_HEADER_BYTES:
        raise CheckpointError(f"{file.path}: not a safetensors file: its header would have {length} bytes")
    if 8 + length > file.num_bytes:
        raise CheckpointError(
            f"{file.path}: the file is cut short: its header has {length} bytes, the file {file.num_bytes}"
        )
    return 8 + length, _parse_object(file.raw[8 : 8 + length], f"{file.path}: header")


def _parse_object(raw: bytes, source: str) -> dict[str, object]:
    def no_repetitions(pairs: list[tuple[str, object]]) -> dict[str, object]:
        unique = dict(pairs)
        if len(unique) != len(pairs):
            raise ValueError("a key appears twice")
        return unique

    try:
        value = json.loads(raw, object_pairs_hook=no_repetitions)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{source} must be a JSON object, not a {type(value).__name__}")
    return value


def _place_tensors(
    path: Path, header: dict[str, object], number: int, data_offset: int, file_bytes: int
) -> dict[str, SafetensorsTensor]:
    """Checks that every tensor has the bytes its shape asks for, and that together they fill the file without gaps."""
    tensors: dict[str, SafetensorsTensor] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            tensors[name] = _place_tensor(path, name, entry, number, data_offset)
    end = data_offset
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset != end:
            kind = "overlaps the one before it" if tensor.offset < end else "leaves a gap before it"
            raise CheckpointError(f"{path}: damaged file: tensor {tensor.name!r} {kind}")
        end += tensor.num_bytes
        if end > file_bytes:
            raise CheckpointError(
                f"{path}: the file is cut short: tensor {tensor.name!r} ends at byte {end}, the file at {file_bytes}; "
                "download it again"
            )
    if end != file_bytes:
        raise CheckpointError(f"{path}: damaged file: {file_bytes - end} bytes at its end belong to no tensor")
    return tensors


def _place_tensor(path: Path, name: str, entry: object, number: int, data_offset: int) -> SafetensorsTensor:
    if not isinstance(entry, dict):
        raise CheckpointError(f"{path}: damaged file: the header's entry for tensor {name!r} is no object")
    storage, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(storage, str) or storage not in _ITEM_BYTES:
        raise CheckpointError(
            f"{path}: tensor {name!r} has the unknown type {storage!r}; known are {', '.join(sorted(_ITEM_BYTES))}"
        )
    if not _is_list_of_sizes(shape):
        raise CheckpointError(f"{path}: damaged file: tensor {name!r} has the shape {shape!r}")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path}: damaged file: tensor {name!r} has the data_offsets {offsets!r}")
    begin, end = offsets
    expected = prod(shape) * _ITEM_BYTES[storage]
    if end - begin != expected:
        raise CheckpointError(
            f"{path}: damaged file: tensor {name!r} of type {storage} and shape {shape} needs {expected} bytes, "
            f"but has {end - begin}"
        )
    return SafetensorsTensor(name, storage, tuple(shape), number, data_offset + begin, expected)


def _is_list_of_sizes(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return False
    return all(type(item) is int and 0 <= item < 1 << 63 for item in value)
