"""Membership: who can be sent to, in which life of theirs.

Every arrival gives an endpoint a new epoch, and no epoch is given twice; so whatever speaks of an earlier life (a late
report, an answer that was held up) is recognised by its number and changes nothing. Knows signs of life; does not know
requests.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from headrace.base.clock import Nanos
from headrace.protocol.load_report import LoadReport
from headrace.router.mind.endpoint import Endpoint, EndpointRole, EndpointState


class Membership:
    def __init__(self, report_timeout: Nanos) -> None:
        self._report_timeout = report_timeout
        self._endpoints: list[Endpoint] = []
        self._by_name: dict[str, Endpoint] = {}
        self._by_silence: OrderedDict[str, Endpoint] = OrderedDict()  # those that are not gone, the longest silent first
        self._last_epoch = 0

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """All that were ever heard of, in order of first arrival."""
        return self._endpoints

    def endpoint(self, name: str) -> Endpoint | None:
        return self._by_name.get(name)

    def join(self, name: str, life: int, now: Nanos, role: EndpointRole = EndpointRole.BOTH) -> Endpoint:
        """An endpoint is there, with nothing to do. It must have been gone, if it was known."""
        self._last_epoch += 1
        endpoint = self._by_name.get(name)
        if endpoint is None:
            endpoint = Endpoint(len(self._endpoints), name, self._last_epoch, life, EndpointState.READY, now, role=role)
            self._endpoints.append(endpoint)
            self._by_name[name] = self._by_silence[name] = endpoint
            return endpoint
        assert endpoint.state is EndpointState.GONE, f"{name} joins and has not left"
        endpoint.epoch, endpoint.life, endpoint.role = self._last_epoch, life, role
        endpoint.state, endpoint.heard, endpoint.load = EndpointState.READY, now, None
        endpoint.num_in_flight = endpoint.num_in_flight_tokens = 0
        self._by_silence[name] = endpoint
        return endpoint

    def lose(self, endpoint: Endpoint) -> None:
        """It is gone, until it joins again."""
        endpoint.state = EndpointState.GONE
        del self._by_silence[endpoint.name]

    def report(self, name: str, report: LoadReport, now: Nanos) -> bool:
        """Whether the report is of the endpoint's present life; a later one that came earlier stays."""
        endpoint = self._by_name.get(name)
        if endpoint is None or endpoint.state is EndpointState.GONE or endpoint.epoch != report.epoch:
            return False
        endpoint.heard = now
        self._by_silence.move_to_end(name)
        if endpoint.load is None or endpoint.load.sequence < report.sequence:
            endpoint.load = report
        return True

    def silent(self, now: Nanos) -> list[Endpoint]:
        """Those not heard of for too long, in order of first arrival."""
        latest = now - self._report_timeout
        found = takewhile(lambda endpoint: endpoint.heard <= latest, self._by_silence.values())
        return sorted(found, key=lambda endpoint: endpoint.index)

    def next_silence(self) -> Nanos | None:
        """When somebody will have been silent for too long, if nothing is heard till then."""
        longest = next(iter(self._by_silence.values()), None)
        return None if longest is None else Nanos(longest.heard + self._report_timeout)
