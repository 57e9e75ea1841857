"""Candidates: the endpoints that may get work, in line by what they have to do, the least first.

They are kept in line from change to change, so that whoever chooses need not ask everybody: a choice among 512 costs about
what one among 8 does. Knows endpoints and a load; does not know requests or scores.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence

from headrace.router.mind.endpoint import Endpoint
from headrace.router.mind.filters import Filter

Load = Callable[[Endpoint], int]
"""What an endpoint has to do, by some measure."""


def no_load(endpoint: Endpoint) -> int:
    """All are alike."""
    return 0


def requests_in_flight(endpoint: Endpoint) -> int:
    return endpoint.num_in_flight


def tokens_in_flight(endpoint: Endpoint) -> int:
    """Prompt tokens: one request may be a thousand times another."""
    return endpoint.num_in_flight_tokens


class Line:
    """Endpoints by load; those with equal loads by the order of first arrival."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._order: list[tuple[int, int]] = []  # (load, index)
        self._places: dict[int, tuple[int, int]] = {}
        self._endpoints: dict[int, Endpoint] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Endpoint]:
        endpoints = self._endpoints
        return (endpoints[index] for _, index in self._order)

    def load(self, endpoint: Endpoint) -> int:
        return self._load(endpoint)

    @property
    def least(self) -> int:
        """The first one's load."""
        return self._order[0][0]

    @property
    def most(self) -> int:
        return self._order[-1][0]

    def get(self, index: int) -> Endpoint | None:
        return self._endpoints.get(index)

    def next_of_least(self, index: int) -> Endpoint:
        """Of those with the least load the one behind `index` in the order of first arrival; after the last the first."""
        order = self._order
        least = order[0][0]
        position = bisect_left(order, (least, index + 1))
        is_last = position == len(order) or order[position][0] != least
        return self._endpoints[order[0 if is_last else position][1]]

    def put(self, endpoint: Endpoint) -> None:
        """Into its place, where it may be already."""
        index = endpoint.index
        place, was = (self._load(endpoint), index), self._places.get(index)
        if place == was:
            return
        if was is not None:
            del self._order[bisect_left(self._order, was)]
        insort(self._order, place)
        self._places[index] = place
        self._endpoints[index] = endpoint

    def take_out(self, endpoint: Endpoint) -> None:
        """If it is in line."""
        was = self._places.pop(endpoint.index, None)
        if was is not None:
            del self._order[bisect_left(self._order, was)]
            del self._endpoints[endpoint.index]

    def check_integrity(self) -> None:
        assert self._order == sorted((self._load(one), one.index) for one in self._endpoints.values()), "out of line"


class Candidates:
    def __init__(self, filters: Sequence[Filter], preference: Filter | None, load: Load) -> None:
        """`preference`: whom it does not pass gets nothing while it passes somebody."""
        self._filters = filters
        self._preference = preference
        self._all = Line(load)
        self._preferred = Line(load) if preference is not None else self._all

    @property
    def line(self) -> Line:
        """Those to choose from now; may be empty."""
        return self._preferred if len(self._preferred) else self._all

    def renew(self, endpoint: Endpoint) -> None:
        """Something about this endpoint has changed."""
        if not all(one.passes(endpoint) for one in self._filters):
            self.take_out(endpoint)
            return
        self._all.put(endpoint)
        if self._preference is None:
            return
        if self._preference.passes(endpoint):
            self._preferred.put(endpoint)
        else:
            self._preferred.take_out(endpoint)

    def take_out(self, endpoint: Endpoint) -> None:
        """Whatever it is; `renew` brings it back."""
        self._all.take_out(endpoint)
        self._preferred.take_out(endpoint)

    def check_integrity(self, endpoints: Iterable[Endpoint]) -> None:
        """Asserts that these endpoints are in line as they are now."""
        passing = [endpoint for endpoint in endpoints if all(one.passes(endpoint) for one in self._filters)]
        preferred = [one for one in passing if self._preference is None or self._preference.passes(one)]
        for line, expected in ((self._all, passing), (self._preferred, preferred)):
            line.check_integrity()
            assert {one.index for one in line} == {one.index for one in expected}, (
                "somebody in line ought not to be, or is missing"
            )
