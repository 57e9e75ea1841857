"""What a container of tensors is to those who load from it: GGUF, safetensors, or what is put together from either.

Knows names, shapes and bytes. Does not know any file format.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol


class StoredTensor(Protocol):
    """A tensor as a container describes it."""

    @property
    def name(self) -> str: ...
    @property
    def storage(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_bytes(self) -> int: ...


class TensorFiles(Protocol):
    """A container: `GgufFile`, `SafetensorsFiles`, `QuantizedFiles`."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...
    def header(self) -> Iterator[memoryview]: ...
    def file_of(self, name: str) -> Path: ...
    def data(self, name: str) -> memoryview: ...
    def stored_bytes(self) -> Iterator[memoryview]:
        """Every tensor's bytes as the files have them, in the order of their names."""
        ...

    def release_pages(self) -> None: ...
    def close(self) -> None: ...
