"""The router's mind: an index against a dictionary, fences under any order, and a router to which anything may happen."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.base.clock import Nanos
from headrace.base.ids import BlockHash, RequestId
from headrace.protocol.load_report import LoadReport
from headrace.router.mind.candidates import Candidates
from headrace.router.mind.endpoint import Endpoint, EndpointState
from headrace.router.mind.generation_fence import DispatchGate, GenerationFence
from headrace.router.mind.prefix_index import PrefixIndex
from headrace.router.mind.profile import POLICIES, Profile, RoutingConfig, profile_for
from headrace.router.mind.routed_request import RoutedRequest
from headrace.router.mind.router_core import Action, Cancel, Dispatch, Expel, Reject, RouterConfig, RouterCore

prompts = st.lists(st.integers(0, 2), max_size=5).map(lambda path: [_hash(path[: n + 1]) for n in range(len(path))])


def _hash(path: Sequence[int]) -> BlockHash:
    return BlockHash(bytes(path))


@given(st.lists(st.tuples(prompts, st.integers(0, 3)), max_size=20), prompts, st.integers(0, 4))
def test_the_prefix_index_finds_what_was_sent_where(
    sent: list[tuple[list[BlockHash], int]], asked: list[BlockHash], lost: int
) -> None:
    index = PrefixIndex(max_blocks=1_000)
    model: dict[int, set[BlockHash]] = {}
    for blocks, endpoint in sent:
        index.add(blocks, endpoint)
        model.setdefault(endpoint, set()).update(blocks)
    index.remove(lost)
    model.pop(lost, None)
    expected = {}
    for endpoint, known in model.items():
        count = next((n for n, block in enumerate(asked) if block not in known), len(asked))
        if count:
            expected[endpoint] = count
    assert index.match(asked) == expected
    assert len(index) == len(set().union(*model.values()) if model else set())


@given(st.lists(st.tuples(prompts, st.integers(0, 3)), max_size=40), st.integers(1, 6))
def test_the_prefix_index_stays_within_its_bound_and_forgets_ends_before_beginnings(
    sent: list[tuple[list[BlockHash], int]], most: int
) -> None:
    index = PrefixIndex(max_blocks=most)
    for blocks, endpoint in sent:
        index.add(blocks, endpoint)
        assert len(index) <= most
        assert index.match(blocks[:most]).get(endpoint, 0) == len(blocks[:most]), "what was sent last is remembered"


@given(st.integers(1, 6), st.permutations(range(8)))
def test_output_of_a_superseded_generation_never_passes_in_whatever_order_it_comes(
    num_generations: int, order: list[int]
) -> None:
    fence, request_id = GenerationFence(), RequestId("r")
    assert not any(fence.admits(request_id, generation) for generation in order), "nothing passes before it is asked for"
    for _ in range(num_generations):
        newest = fence.advance(request_id)
    assert [generation for generation in order if fence.admits(request_id, generation)] == [newest]
    fence.close(request_id)
    assert not any(fence.admits(request_id, generation) for generation in order)


@given(st.lists(st.tuples(st.integers(1, 2), st.sampled_from("ab"), st.integers(1, 4)), max_size=30))
def test_a_gate_takes_each_generation_once_none_that_is_older_and_none_of_another_epoch(
    arrivals: list[tuple[int, str, int]],
) -> None:
    gate = DispatchGate(2)
    newest: dict[str, int] = {}
    for epoch, name, generation in arrivals:
        expected = epoch == 2 and generation > newest.get(name, 0)
        assert gate.admits(epoch, RequestId(name), generation) == expected
        if expected:
            newest[name] = generation


def test_a_cancellation_that_overtakes_its_dispatch_still_counts() -> None:
    gate = DispatchGate(1)
    gate.cancel(RequestId("r"), 1)
    assert not gate.admits(1, RequestId("r"), 1)
    assert gate.admits(1, RequestId("r"), 2)


endpoints = st.lists(
    st.builds(
        Endpoint,
        index=st.just(0),
        name=st.just(""),
        epoch=st.just(1),
        life=st.just(1),
        state=st.sampled_from(EndpointState),
        heard=st.just(Nanos(0)),
        load=st.none()
        | st.builds(LoadReport, st.just(1), st.just(1), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)),
        num_in_flight=st.integers(0, 5),
        num_in_flight_tokens=st.integers(0, 10_000),
    ),
    max_size=6,
)


@given(endpoints, st.sampled_from(sorted(POLICIES)), prompts)
def test_a_policy_picks_an_endpoint_that_is_ready_if_there_is_any(
    found: list[Endpoint], policy: str, blocks: list[BlockHash]
) -> None:
    for index, endpoint in enumerate(found):
        endpoint.index = index
    profile = profile_for(RoutingConfig(policy=policy))
    for _ in range(3):
        picked = profile.pick(RoutedRequest(RequestId("r"), 10, tuple(blocks)), among(found, profile))
        if any(endpoint.state is EndpointState.READY for endpoint in found):
            assert picked is not None and picked.state is EndpointState.READY
        else:
            assert picked is None


@given(endpoints, st.lists(prompts, min_size=1, max_size=6), st.integers(0, 9))
def test_prefix_affinity_picks_whom_it_would_if_everybody_were_asked(
    found: list[Endpoint], asked: list[list[BlockHash]], max_waiting: int
) -> None:
    config = RoutingConfig(policy="prefix-affinity", max_waiting=max_waiting)
    profile, last, sent = profile_for(config), -1, PrefixIndex(config.max_prefix_blocks)
    for index, endpoint in enumerate(found):
        endpoint.index = index
    candidates = among(found, profile)
    for blocks in asked:
        picked = profile.pick(RoutedRequest(RequestId("r"), 10, tuple(blocks)), candidates)
        expected = _by_asking_everybody(found, blocks, config, last, sent)
        assert picked is expected
        if picked is None:
            return
        sent.add(blocks, picked.index)
        last = picked.index
        picked.num_in_flight_tokens += 1_000
        candidates.renew(picked)
        candidates.check_integrity(found)


def _by_asking_everybody(
    found: Sequence[Endpoint], blocks: Sequence[BlockHash], config: RoutingConfig, last: int, sent: PrefixIndex
) -> Endpoint | None:
    """What `prefix-affinity` says it does, written down as it is said."""
    able = [one for one in found if one.state is EndpointState.READY]
    able = [one for one in able if one.load is None or one.load.num_waiting <= config.max_waiting] or able
    if not able:
        return None
    loads = [one.num_in_flight_tokens for one in able]
    cached, least, most = sent.match(blocks), min(loads), max(loads)
    totals = []
    for one in able:
        share_cached = cached.get(one.index, 0) / len(blocks) if blocks else 0.0
        idle = (most - one.num_in_flight_tokens) / (most - least) if most > least else 1.0
        free = 1.0 - one.load.kv_cache_usage if one.load is not None else 1.0
        totals.append(1.0 * share_cached + config.load_weight * idle + config.load_weight / 2 * free)
    best = [one for one, total in zip(able, totals, strict=True) if total == max(totals)]
    return next((one for one in best if one.index > last), best[0])


@given(endpoints, st.data())
def test_candidates_stay_in_line_whatever_changes(found: list[Endpoint], data: st.DataObject) -> None:
    for index, endpoint in enumerate(found):
        endpoint.index = index
    profile = profile_for(RoutingConfig(policy=data.draw(st.sampled_from(sorted(POLICIES)))))
    candidates = among(found, profile)
    for endpoint in found:
        endpoint.state = data.draw(st.sampled_from(EndpointState))
        endpoint.num_in_flight = data.draw(st.integers(0, 3))
        endpoint.num_in_flight_tokens = data.draw(st.integers(0, 3))
        endpoint.load = data.draw(
            st.none() | st.builds(LoadReport, *map(st.just, (1, 1, 0)), st.integers(0, 20), st.just(0.5))
        )
        candidates.renew(endpoint)
        candidates.check_integrity(found)
    assert all(one.state is EndpointState.READY for one in candidates.line)


def among(found: Sequence[Endpoint], profile: Profile) -> Candidates:
    candidates = profile.candidates()
    for endpoint in found:
        candidates.renew(endpoint)
    return candidates


def ready(count: int) -> list[Endpoint]:
    return [Endpoint(index, f"e{index}", 1, 1, EndpointState.READY, Nanos(0)) for index in range(count)]


def test_round_robin_gives_each_its_turn() -> None:
    profile, found = profile_for(RoutingConfig(policy="round-robin")), ready(3)
    candidates = among(found, profile)
    picked = [profile.pick(RoutedRequest(RequestId("r"), 1), candidates) for _ in range(6)]
    assert [one.index for one in picked if one is not None] == [0, 1, 2, 0, 1, 2]


def test_least_requests_goes_to_whoever_has_fewest() -> None:
    profile, found = profile_for(RoutingConfig(policy="least-requests")), ready(3)
    found[0].num_in_flight, found[1].num_in_flight, found[2].num_in_flight = 3, 1, 2
    assert profile.pick(RoutedRequest(RequestId("r"), 1), among(found, profile)) is found[1]


def test_prefix_affinity_comes_back_to_where_the_beginning_is_cached_until_that_one_is_overloaded() -> None:
    profile, found = profile_for(RoutingConfig(policy="prefix-affinity", max_waiting=4)), ready(4)
    request = RoutedRequest(RequestId("r"), 1_000, tuple(_hash([1] * (n + 1)) for n in range(5)))
    first = profile.pick(request, among(found, profile))
    assert first is not None
    first.num_in_flight_tokens = 1_000
    assert profile.pick(request, among(found, profile)) is first
    first.load = LoadReport(1, 1, 64, 5, 0.5)
    assert profile.pick(request, among(found, profile)) is not first


def test_a_score_outside_of_0_to_1_is_an_error() -> None:
    profile, found = profile_for(RoutingConfig(policy="prefix-affinity")), ready(2)
    found[0].load = LoadReport(1, 1, 0, 0, 1.5)
    with pytest.raises(AssertionError, match=r"e0 was scored -0\.5"):
        profile.pick(RoutedRequest(RequestId("r"), 1), among(found, profile))


class RouterMachine(RuleBasedStateMachine):
    """Anything may happen in any order; every request that was submitted ends once, and only endpoints that are there are
    sent to."""

    policy = "least-requests"

    def __init__(self) -> None:
        super().__init__()
        config = RouterConfig(max_attempts=2, report_timeout_ns=Nanos(50), queue_timeout_ns=Nanos(80))
        self.core = RouterCore(config, profile_for(RoutingConfig(policy=self.policy)))
        self.now = 0
        self.lives: dict[str, int] = {}
        self.accepts: dict[str, int] = {}
        self.present: dict[str, int] = {}
        self.open: dict[RequestId, tuple[str, int, int] | None] = {}
        self.sent: list[Dispatch] = []
        self.ended: set[RequestId] = set()
        self.num_submitted = 0
        self.last_epoch = 0

    def perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Dispatch(name, epoch, request_id, generation):
                    assert self.accepts.get(name) == epoch and request_id in self.open
                    self.open[request_id] = (name, epoch, generation)
                    self.sent.append(action)
                case Reject(request_id, _):
                    self.end(request_id)
                case Expel(name, _):
                    self.accepts.pop(name, None)
                    self.present.pop(name, None)
                case Cancel():
                    pass

    def end(self, request_id: RequestId) -> None:
        assert request_id not in self.ended, "a request ended twice"
        self.ended.add(request_id)
        del self.open[request_id]

    @rule(name=st.sampled_from("abc"), again=st.booleans())
    def join(self, name: str, again: bool) -> None:
        if not again or name not in self.lives:
            self.lives[name] = self.lives.get(name, 0) + 1
            self.accepts.pop(name, None)
            self.present.pop(name, None)
        was = self.present.get(name)
        epoch, actions = self.core.join(name, self.lives[name], Nanos(self.now))
        if was is None:
            assert epoch > self.last_epoch, "an epoch is given once"
            self.last_epoch = epoch
            self.accepts[name] = self.present[name] = epoch
        else:
            assert epoch == was and not actions, "its message came twice"
        self.perform(actions)

    @rule(name=st.sampled_from("abc"))
    def leave(self, name: str) -> None:
        self.perform(self.core.leave(name, self.lives.get(name, 0), Nanos(self.now)))
        self.accepts.pop(name, None)

    @rule(name=st.sampled_from("abc"))
    def drain(self, name: str) -> None:
        self.core.drain(name)
        self.accepts.pop(name, None)

    @rule(name=st.sampled_from("abc"), epoch=st.integers(0, 9))
    def report(self, name: str, epoch: int) -> None:
        self.core.report(name, LoadReport(epoch, self.now, 0, self.now % 17, 0.5), Nanos(self.now))

    @rule()
    def submit(self) -> None:
        self.num_submitted += 1
        request_id = RequestId(f"r{self.num_submitted}")
        self.open[request_id] = None
        self.perform(self.core.submit(RoutedRequest(request_id, 10), Nanos(self.now)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def an_answer_comes(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.sent))
        is_current = self.open.get(one.request_id) == (one.endpoint, one.epoch, one.generation)
        kind = data.draw(st.sampled_from(["first token", "finished", "failed"]))
        if kind == "first token":
            passed = self.core.first_token(one.request_id, one.generation)
            assert not passed or is_current, "output of a superseded generation"
        elif kind == "finished":
            if self.core.finished(one.request_id, one.generation):
                assert is_current
                self.end(one.request_id)
        else:
            self.perform(self.core.failed(one.request_id, one.generation, Nanos(self.now)))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.open)))
        self.perform(self.core.cancel(request_id))
        self.end(request_id)

    @rule(passed=st.integers(1, 60))
    def time_passes(self, passed: int) -> None:
        self.now += passed
        self.perform(self.core.tick(Nanos(self.now)))
        wakeup = self.core.next_wakeup()
        assert wakeup is None or wakeup > self.now, "what was due is done"

    @invariant()
    def books_balance(self) -> None:
        self.core.check_integrity()
        assert self.core.num_open_requests == len(self.open)


class AffineRouterMachine(RouterMachine):
    policy = "prefix-affinity"


TestRouter = RouterMachine.TestCase
TestRouter.settings = settings(max_examples=100, stateful_step_count=40)
TestAffineRouter = AffineRouterMachine.TestCase
TestAffineRouter.settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.parametrize("wrong", [{"policy": "round-robbin"}, {"max_prefix_blocks": 0}, {"load_weight": -1.0}])
def test_a_router_that_makes_no_sense_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(Exception, match=next(iter(wrong))):
        RoutingConfig(**wrong)  # type: ignore[arg-type]
