"""Bugs to be found: each is a change to the minds that a careless hand might make, and where its trouble comes out: one of
the fleets' cases, or an engine alone under a drawn scenario, where requests have several continuations."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.base.clock import Nanos
from headrace.base.ids import BlockHash, BlockId, RequestId
from headrace.engine.mind.block_pool import BlockPool
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.kv_cache_manager import KVCacheManager
from headrace.engine.mind.kv_transfer import KVLeases
from headrace.engine.mind.prefix_cache import PrefixCache
from headrace.engine.mind.request_queue import RequestQueue
from headrace.engine.mind.scheduler import Scheduler
from headrace.engine.mind.sequence import SequenceState
from headrace.router.mind import disaggregation
from headrace.router.mind.disaggregation import Disaggregation, Leg, Route
from headrace.router.mind.endpoint import Endpoint, EndpointState
from headrace.router.mind.filters import ReadyFilter
from headrace.router.mind.generation_fence import DispatchGate, GenerationFence
from headrace.router.mind.membership import Membership
from headrace.router.mind.router_core import RouterCore

ENGINE_ALONE = "an engine alone"
"""In place of a case."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    name: str
    case: str
    owner: object
    method: str
    replacement: Callable[..., Any]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.owner, self.method, self.replacement)


_release = BlockPool.release
_root = PrefixCache.root
_join = Membership.join
_confirm = KVCacheManager.confirm
_finish = Scheduler.finish
_open_step = Scheduler._open_step
_again = RouterCore._again
_close = RouterCore._close
_withdraw = PrefixCache.withdraw
_router_cancel = RouterCore.cancel
_forget = PrefixCache.forget
_hold_prompt = KVCacheManager.hold_prompt
_end_load = EngineCore.end_load
_route_on = Disaggregation.route_on


def _drop_a_free(pool: BlockPool, block_ids: Iterable[BlockId]) -> None:
    """The last block of a sequence is not given back."""
    _release(pool, list(block_ids)[:-1])


def _ignore_the_salt(cache: PrefixCache, *, adapter: str, cache_salt: str) -> BlockHash:
    return _root(cache, adapter=adapter, cache_salt="")


def _skip_the_fence(fence: GenerationFence, request_id: RequestId, generation: int) -> bool:
    """Any generation of an open request goes on."""
    return request_id in fence._generations


def _reuse_a_dead_epoch(membership: Membership, name: str, life: int, now: Nanos) -> Endpoint:
    """Whoever comes back is given the epoch that it had."""
    known = membership.endpoint(name)
    old = known.epoch if known is not None else None
    endpoint = _join(membership, name, life, now)
    if old is not None:
        endpoint.epoch = old
    return endpoint


def _lose_retry_dedupe(gate: DispatchGate, epoch: int, request_id: RequestId, generation: int) -> bool:
    """A dispatch that comes twice is taken twice."""
    return epoch == gate.epoch


def _take_work_of_any_epoch(gate: DispatchGate, epoch: int, request_id: RequestId, generation: int) -> bool:
    if gate._newest.get(request_id, 0) >= generation:
        return False
    gate._newest[request_id] = generation
    return True


def _send_to_the_draining(self: ReadyFilter, request: object, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    return [endpoint for endpoint in endpoints if endpoint.state is not EndpointState.GONE]


def _send_to_the_gone(self: ReadyFilter, request: object, endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    return [endpoint for endpoint in endpoints if endpoint.state is not EndpointState.DRAINING]


def _lose_what_a_gone_endpoint_had(core: RouterCore, endpoint: Endpoint, now: Nanos) -> list[object]:
    """Its requests are sent nowhere else."""
    core._membership.lose(endpoint)
    for flight in list(core._by_endpoint[endpoint.index].values()):
        core._detach(flight)
    return []


def _start_an_answer_again(core: RouterCore, request_id: RequestId, generation: int) -> bool:
    """The router forgets that the client has seen a part of the answer."""
    return core._fence.admits(request_id, generation)


def _write_into_shared_blocks(pool: BlockPool, block_id: BlockId) -> bool:
    return False


def _publish_what_is_not_computed(manager: KVCacheManager, sequence: SequenceState, num_tokens: int) -> None:
    """A block is findable before its last tokens are there."""
    _confirm(manager, sequence, num_tokens)
    num_full = min(
        sequence.num_computed_tokens // manager.block_size + 1, len(sequence.block_hashes), len(sequence.block_ids)
    )
    if num_full > sequence.num_published_blocks and sequence.num_computed_tokens < sequence.num_tokens:
        manager._publish_full_blocks(sequence, num_full)


def _lose_the_preempted(queue: RequestQueue, sequence: SequenceState) -> None:
    pass


def _overdraw_the_budget(scheduler: Scheduler, now: Nanos) -> Any:
    step = _open_step(scheduler, now)
    step.budget += 1
    return step


def _forget_the_cancelled(core: RouterCore, request_id: RequestId) -> list[object]:
    """A client that leaves is not told to the endpoint, nor taken off the books."""
    return []


def _keep_evicted_names(cache: PrefixCache, block_ids: Iterable[BlockId]) -> None:
    """The cache goes on knowing content that is about to be overwritten."""
    for block_id in block_ids:
        block_hash = cache._hash_of[block_id]
        assert block_hash is not None
        cache._hash_of[block_id] = None
        if block_hash[0] % 2:
            del cache._block_of[block_hash]


def _count_a_retry_twice(core: RouterCore, flight: Any) -> None:
    """What goes elsewhere stays in the count of where it was."""
    endpoint = flight.endpoint
    if endpoint is not None:
        del core._by_endpoint[endpoint.index][flight.request.request_id]
        flight.endpoint = None


def _give_blocks_back_under_a_step(scheduler: Scheduler, sequence: SequenceState) -> None:
    """Blocks of an aborted sequence are free while a step still writes them."""
    was_written = sequence.num_steps_in_flight
    sequence.num_steps_in_flight = 0
    _finish(scheduler, sequence)
    sequence.num_steps_in_flight = was_written


def _abort_nothing(core: EngineCore, request_id: RequestId, now: Nanos, *, sample_index: int | None = None) -> list[object]:
    """The engine's own books lose the request, its scheduler keeps it."""
    core._requests.pop(request_id, None)
    return []


def _give_blocks_back_under_a_transfer(scheduler: Scheduler, sequence: SequenceState) -> None:
    """Blocks of an aborted sequence are free while KV still comes into them."""
    _finish(scheduler, sequence)
    if sequence.is_loading:
        scheduler.kv.release(sequence)


def _keep_nothing(manager: KVCacheManager, sequence: SequenceState) -> list[BlockId]:
    """A lease of blocks that anybody may have."""
    block_ids = _hold_prompt(manager, sequence)
    manager.let_go(block_ids)
    return block_ids


def _believe_all_came(core: EngineCore, sequence_id: Any, num_tokens: int, now: Nanos, *, error: str = "") -> list[Any]:
    """A transfer that failed is taken for one that did not."""
    sequence = core._scheduler.loading[sequence_id]
    return _end_load(core, sequence_id, sequence.num_tokens - 1, now)


def _keep_for_ever(leases: KVLeases, now: Nanos) -> list[RequestId]:
    """What nobody fetches is kept."""
    return []


def _answer_where_prompts_are_computed(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    return list(endpoints)


def _send_on_to_who_is_gone(self: Disaggregation, request: Any, endpoints: Any, reserved: Endpoint | None) -> Route | None:
    """The place that was kept is taken, whatever has become of it."""
    return _route_on(self, request, endpoints, reserved) if reserved is None else Route(reserved, Leg.DECODE)


PLANTED_BUGS = (
    PlantedBug("drop a free", "calm", BlockPool, "release", _drop_a_free),
    PlantedBug("ignore the salt", "calm", PrefixCache, "root", _ignore_the_salt),
    PlantedBug("skip the generation fence", "messages", GenerationFence, "admits", _skip_the_fence),
    PlantedBug("reuse a dead epoch", "crashes", Membership, "join", _reuse_a_dead_epoch),
    PlantedBug("lose retry dedupe", "messages", DispatchGate, "admits", _lose_retry_dedupe),
    PlantedBug("take work of any epoch", "messages", DispatchGate, "admits", _take_work_of_any_epoch),
    PlantedBug("send to the draining", "rollout", ReadyFilter, "keep", _send_to_the_draining),
    PlantedBug("send to the gone", "crashes", ReadyFilter, "keep", _send_to_the_gone),
    PlantedBug("lose what a gone endpoint had", "crashes", RouterCore, "_lose", _lose_what_a_gone_endpoint_had),
    PlantedBug("start an answer again", "crashes", RouterCore, "first_token", _start_an_answer_again),
    PlantedBug("write into shared blocks", ENGINE_ALONE, BlockPool, "is_shared", _write_into_shared_blocks),
    PlantedBug("publish what is not computed", "calm", KVCacheManager, "confirm", _publish_what_is_not_computed),
    PlantedBug("lose the preempted", "calm", RequestQueue, "put_back", _lose_the_preempted),
    PlantedBug("overdraw the budget", "calm", Scheduler, "_open_step", _overdraw_the_budget),
    PlantedBug("forget the cancelled", "calm", RouterCore, "cancel", _forget_the_cancelled),
    PlantedBug("keep evicted names", "calm", PrefixCache, "forget", _keep_evicted_names),
    PlantedBug("count a retry twice", "crashes", RouterCore, "_detach", _count_a_retry_twice),
    PlantedBug("give blocks back under a step", "calm", Scheduler, "finish", _give_blocks_back_under_a_step),
    PlantedBug("abort nothing", "calm", EngineCore, "abort", _abort_nothing),
    PlantedBug("give blocks back under a transfer", "handover", Scheduler, "finish", _give_blocks_back_under_a_transfer),
    PlantedBug("keep nothing", "handover", KVCacheManager, "hold_prompt", _keep_nothing),
    PlantedBug("believe that all came", "handover", EngineCore, "end_load", _believe_all_came),
    PlantedBug("keep for ever", "handover", KVLeases, "over", _keep_for_ever),
    PlantedBug(
        "answer where prompts are computed",
        "handover",
        disaggregation,
        "_those_that_answer",
        _answer_where_prompts_are_computed,
    ),
    PlantedBug("send on to who is gone", "handover", Disaggregation, "route_on", _send_on_to_who_is_gone),
)
