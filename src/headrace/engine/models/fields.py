"""Typed access to descriptions that someone else wrote: config.json, generation_config.json, GGUF metadata.

Knows that a value may be absent or of the wrong type, and whose fault that is. Does not know any field's meaning.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from headrace.base.errors import CheckpointError

T = TypeVar("T")

MAX_NUM_LAYERS = 10_000
"""More is damage, and would fill memory before any tensor is missed."""


class Fields:
    """A mapping with its source's name; `null` counts as absent."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        """For messages: a file's path, perhaps with a section."""
        self.values = values

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def fail(self, key: str, what: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {key} is {self.values.get(key)!r}; {what}")

    def integer_or(self, key: str, default: T) -> int | T:
        value = self.values.get(key)
        if value is None:
            return default
        if type(value) is float and value.is_integer():
            return int(value)
        if type(value) is not int:
            raise self.fail(key, "a whole number is needed")
        return value

    def count(self, key: str, *, limit: int | None = None) -> int:
        """A required whole number of at least 1."""
        count = self._required(key, self.count_or(key, None))
        if limit is not None and count > limit:
            raise self.fail(key, f"the limit is {limit}")
        return count

    def count_or(self, key: str, default: T) -> int | T:
        value = self.integer_or(key, None)
        if value is None:
            return default
        if value < 1:
            raise self.fail(key, "a whole number of at least 1 is needed")
        return value

    def number(self, key: str) -> float:
        return self._required(key, self.number_or(key, None))

    def number_or(self, key: str, default: T) -> float | T:
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.fail(key, "a finite number is needed")
        return float(value)

    def positive_or(self, key: str, default: T) -> float | T:
        value = self.number_or(key, None)
        if value is None:
            return default
        if value <= 0:
            raise self.fail(key, "a number above 0 is needed")
        return value

    def flag_or(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false is needed")
        return value

    def text(self, key: str) -> str:
        return self._required(key, self.text_or(key, None))

    def text_or(self, key: str, default: T) -> str | T:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(key, "text is needed")
        return value

    def items_or(self, key: str, default: T) -> Sequence[object] | T:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, list):
            raise CheckpointError(f"{self.source}: {key} must be a list, not a {type(value).__name__}")
        return value

    def section_or_none(self, key: str) -> "Fields | None":
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.source}: {key} must be an object, not a {type(value).__name__}")
        return Fields(f"{self.source}: {key}", value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A required list of finite numbers."""
        items = self._required(key, self.items_or(key, None))
        if not all(type(item) in (int, float) and math.isfinite(item) for item in items):  # type: ignore[arg-type]
            raise CheckpointError(f"{self.source}: {key} must hold finite numbers only")
        return tuple(float(item) for item in items)  # type: ignore[arg-type]

    def _required(self, key: str, value: T | None) -> T:
        if value is None:
            raise CheckpointError(f"{self.source}: {key} is missing")
        return value
