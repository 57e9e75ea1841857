"""KV that goes to whoever answers while its prompt is still being computed: it comes sooner by what overlaps."""

import msgspec
import pytest
from tests.sim.test_fleet import (
    COST,
    QUICK_NETWORK,
    SCHEDULER,
    alone,
    calm_and_with_faults,
    handing_over,
    rehearse,
    workload,
)

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.measure.report.summary import summarize
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import sessions
from headrace.measure.workload.request import Workload
from headrace.router.mind.disaggregation import DisaggregationConfig
from headrace.router.mind.endpoint import EndpointRole
from headrace.sim.cost_model import GpuDeployment
from headrace.sim.fault_cases import run_case
from headrace.sim.fleet import FleetOutcome
from headrace.sim.fleet_spec import FaultKind, FaultSpec, FleetSpec, PoolSpec, RouterSpec, TransferOverlap, TransferSpec
from headrace.sim.kv_ahead import ComputedKV

BYTES = 1_000_000
STEP_NS = 5_000_000 + 1_000 * 10_000 + 1_000 * 10
"""Of a prompt of 1,000 tokens in one step."""


def fleet(
    overlap: TransferOverlap, *, gigabits_per_s: float = 80.0, num_layers: int = 10, setup_us: float = 0.0, **fields: object
) -> FleetSpec:
    """Whose transfers are as long as is asked for; the pool that computes prompts says what goes ahead."""
    transfer = TransferSpec(
        bytes_per_token=BYTES, gigabits_per_s=gigabits_per_s, setup_us=setup_us, timeout_s=20.0, num_layers=num_layers
    )
    made = handing_over(transfer=transfer, **fields)  # type: ignore[arg-type]
    pools = dict(made.pools)
    ahead = msgspec.structs.replace(transfer, overlap=overlap)
    pools["prefill"] = msgspec.structs.replace(pools["prefill"], transfer=ahead)
    return msgspec.structs.replace(made, pools=pools)


def ttft_ns(outcome: FleetOutcome) -> int:
    (record,) = outcome.run.records
    assert record.first_chunk_ns is not None and not record.error
    return record.first_chunk_ns - record.sent_ns


@pytest.mark.parametrize("num_layers", [1, 2, 10, 32])
@pytest.mark.parametrize("gigabits_per_s", [16.0, 80.0, 400.0])
@pytest.mark.parametrize("setup_us", [0.0, 300.0])
def test_where_the_link_is_slower_than_the_prompt_all_but_the_first_layers_time_overlaps(
    num_layers: int, gigabits_per_s: float, setup_us: float
) -> None:
    """Each layer is sent when it is computed and when the one before it is through: in closed form, the first layer's
    moment and then the whole way."""
    spec = fleet(TransferOverlap.LAYERS, gigabits_per_s=gigabits_per_s, num_layers=num_layers, setup_us=setup_us)
    outcome = rehearse(spec, alone(1_000), keeps_spans=True)
    (moved,) = outcome.log.transfers
    prefill, _ = outcome.log.spans
    way = 999 * BYTES / (gigabits_per_s / 8)
    assert moved.begun == prefill.scheduled + STEP_NS // num_layers, "when the first layer is there"
    assert moved.num_bytes == 999 * BYTES
    assert abs(moved.ended - (moved.begun + setup_us * 1e3 + way + 100_000)) <= num_layers, "rounded once a piece"


def test_where_the_link_is_faster_only_the_last_layer_goes_after_the_prompt() -> None:
    outcome = rehearse(fleet(TransferOverlap.LAYERS, gigabits_per_s=80_000.0), alone(1_000), keeps_spans=True)
    (moved,) = outcome.log.transfers
    prefill, decode = outcome.log.spans
    assert moved.begun == prefill.scheduled + STEP_NS // 10
    assert moved.ended == decode.arrived == decode.scheduled, "it is there before it is asked for"
    counted = outcome.run.facts.server_counters
    assert counted["headrace:kv_transfer_bytes_ahead_total"] == round(0.9 * 999 * BYTES)


def test_a_chunk_goes_when_its_step_has_ended() -> None:
    """Four steps of 500 tokens: three chunks go while a later one is computed, and the last one after the prompt."""
    scheduler = msgspec.structs.replace(SCHEDULER, max_num_batched_tokens=500, max_tokens_per_prompt_chunk=500)
    spec = fleet(TransferOverlap.CHUNKS, gigabits_per_s=1_600.0)
    pools = {name: msgspec.structs.replace(pool, scheduler=scheduler) for name, pool in spec.pools.items()}
    outcome = rehearse(msgspec.structs.replace(spec, pools=pools), alone(2_000), keeps_spans=True)
    (moved,) = outcome.log.transfers
    prefill, _ = outcome.log.spans
    steps = [5_000_000 + 500 * 10_000 + 500 * count * 10 for count in range(1, 5)]
    assert moved.begun == prefill.scheduled + steps[0]
    assert prefill.first_token == prefill.scheduled + sum(steps)
    assert moved.ended == prefill.first_token + 499 * 5_000 + 100_000
    ahead = outcome.run.facts.server_counters["headrace:kv_transfer_bytes_ahead_total"]
    assert ahead == 1_500 * BYTES


def test_the_more_overlaps_the_sooner_a_first_token_comes_and_none_is_the_default() -> None:
    found = {overlap: ttft_ns(rehearse(fleet(overlap), alone(1_000))) for overlap in TransferOverlap}
    assert found[TransferOverlap.CHUNKS] < found[TransferOverlap.NONE], "a question less"
    assert found[TransferOverlap.LAYERS] < found[TransferOverlap.CHUNKS] - STEP_NS * 8 // 10
    assert TransferSpec().overlap is TransferOverlap.NONE


@pytest.mark.parametrize("overlap", list(TransferOverlap))
@calm_and_with_faults
def test_whatever_goes_ahead_steps_taken_together_come_to_the_same_and_everybody_is_answered(
    overlap: TransferOverlap, faults: tuple[FaultSpec, ...]
) -> None:
    spec = fleet(overlap, gigabits_per_s=400.0, faults=faults)
    asked = workload(60)
    together = rehearse(spec, asked, keeps_spans=True)
    step_by_step = rehearse(spec, asked, keeps_spans=True, takes_runs=False)
    assert together.digest == step_by_step.digest
    assert together.log.transfers == step_by_step.log.transfers
    if not faults:
        assert all(record.is_completed for record in together.run.records)
        moved = sorted(together.log.transfers, key=lambda one: one.ended)
        assert len(moved) == len(together.run.records)


def test_under_load_a_median_first_token_comes_sooner_by_layers_than_by_chunks_than_whole() -> None:
    medians = []
    for overlap in TransferOverlap:
        outcome = rehearse(fleet(overlap, gigabits_per_s=800.0), workload(60))
        medians.append(summarize(outcome.run).distributions["ttft"].percentile(50.0))
    whole, chunks, layers = medians
    assert whole is not None and chunks is not None and layers is not None
    assert layers < chunks < whole


def test_what_is_cached_where_it_is_answered_does_not_go_ahead() -> None:
    talks = Workload(
        name="talks",
        requests=tuple(sessions(6, num_turns=4, inputs=Fixed(600), outputs=Fixed(50), starts=[0.1 * i for i in range(6)])),
        seed=0,
        vocab_size=100,
    )
    sent = {}
    for overlap in (TransferOverlap.NONE, TransferOverlap.LAYERS):
        spec = fleet(overlap, gigabits_per_s=800.0)
        router = RouterSpec(policy="prefix-affinity", disaggregation=DisaggregationConfig(min_uncached_tokens=100))
        outcome = rehearse(msgspec.structs.replace(spec, router=router), talks)
        assert all(record.is_completed for record in outcome.run.records)
        sent[overlap] = outcome.run.facts.server_counters["headrace:kv_transfer_bytes_total"]
    assert sent[TransferOverlap.LAYERS] == sent[TransferOverlap.NONE]


@pytest.mark.parametrize("fault", [FaultKind.CRASH, FaultKind.NODE_LOSS])
@pytest.mark.parametrize("replica", ["prefill-0", "decode-0"])
def test_kv_that_went_ahead_in_vain_is_computed_again(fault: FaultKind, replica: str) -> None:
    """One side dies in the middle of the way: what was sent is lost with it."""
    died = (FaultSpec(kind=fault, at_s=0.2, replica=replica, duration_s=60.0),)
    spec = fleet(TransferOverlap.LAYERS, gigabits_per_s=8.0, faults=died)
    (record,) = rehearse(spec, alone(1_000)).run.records
    assert record.is_completed


def test_a_line_that_is_cut_while_kv_goes_ahead_is_asked_again_once_the_prompt_is_there() -> None:
    cut = (FaultSpec(kind=FaultKind.LINK_LOSS, at_s=0.005, replica="decode-0", duration_s=0.005),)
    outcome = rehearse(fleet(TransferOverlap.LAYERS, gigabits_per_s=8_000.0, faults=cut), alone(1_000), keeps_spans=True)
    (moved,) = outcome.log.transfers
    prefill, _ = outcome.log.spans
    assert not moved.error and moved.begun >= prefill.first_token, "all of it, anew"


@pytest.mark.parametrize("seed", range(8))
def test_every_rule_holds_where_kv_goes_ahead_under_faults(seed: int) -> None:
    run_case(seed, "handover", num_requests=30)


def test_the_layers_are_those_of_the_pools_model() -> None:
    gpu = GpuDeployment(device="h100_sxm", model="llama-3.1-70b", tensor_parallel_size=4)
    layers = TransferSpec(overlap=TransferOverlap.LAYERS)
    pool = PoolSpec(num_replicas=1, scheduler=SCHEDULER, gpu=gpu, role=EndpointRole.PREFILL, transfer=layers)
    assert pool.num_kv_pieces == 80
    assert msgspec.structs.replace(pool, gpu=None, cost=COST).num_kv_pieces == 32


@pytest.mark.parametrize(
    ("role", "said"), [(EndpointRole.DECODE, 'role "prefill" or "both"'), (EndpointRole.BOTH, "nobody hands any over")]
)
def test_what_goes_ahead_is_stated_where_it_leaves_and_only_where_it_can(role: EndpointRole, said: str) -> None:
    ahead = TransferSpec(overlap=TransferOverlap.LAYERS)

    def made() -> FleetSpec:
        pool = PoolSpec(num_replicas=1, scheduler=SCHEDULER, role=role, transfer=ahead)
        return FleetSpec(pools={"main": pool}, network=QUICK_NETWORK)

    with pytest.raises(ConfigurationError, match=said):
        made()


def test_tokens_computed_once_more_or_found_in_a_cache_are_there_at_once_and_counted_once() -> None:
    kv = ComputedKV(num_layers=4, first_token=100, end_token=999)
    kv.step(200, 300, begins=Nanos(1_000), ends=Nanos(1_400))
    assert kv.take(Nanos(1_000)) == 100 * 4, "found in a cache"
    kv.step(0, 600, begins=Nanos(2_000), ends=Nanos(2_400))
    assert kv.take(Nanos(2_400)) == (300 + 100) * 4, "of a preempted prompt only what is new"
    kv.step(600, 400, begins=Nanos(3_000), ends=Nanos(3_400))
    assert kv.take(Nanos(9_000)) == 399 * 4 and kv.is_taken, "the last token's stays"
