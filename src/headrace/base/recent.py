"""Recent: what was asked for last, as much as there is room for. Knows counts and sizes; not what it keeps."""

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping in which what was asked for longest ago makes room. The last that was asked for stays, whatever its size."""

    def __init__(self, *, max_count: int, max_size: int) -> None:
        """`max_size`: of all together."""
        assert max_count > 0
        self._max_count = max_count
        self._max_size = max_size
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()  # with their sizes, least recently asked for first
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[K]:
        """The last that was asked for first."""
        return reversed(self._kept)

    def look(self, key: K) -> V | None:
        """Does not count as asking."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def get(self, key: K) -> V | None:
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, size: int) -> list[V]:
        """Returns what made room."""
        self.drop(key)
        self._kept[key] = value, size
        self._size += size
        dropped: list[V] = []
        while len(self._kept) > self._max_count or (len(self._kept) > 1 and self._size > self._max_size):
            _, (old, old_size) = self._kept.popitem(last=False)
            self._size -= old_size
            dropped.append(old)
        return dropped

    def drop(self, key: K) -> None:
        if key in self._kept:
            self._size -= self._kept.pop(key)[1]
