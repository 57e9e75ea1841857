"""A fleet's log cut down for a page: few frames, in which nothing that was counted is lost."""

import msgspec

from headrace.base.clock import Nanos
from headrace.measure.report.record import RequestRecord, Run, RunFacts
from headrace.sim.fleet_frames import Outage, fleet_frames, outages
from headrace.sim.fleet_log import FleetEvent, FleetLog, ReplicaColumns

SECOND = 1_000_000_000


def log_of(num_moments: int, replicas: tuple[str, ...] = ("main-0", "main-1")) -> FleetLog:
    log = FleetLog(interval_ms=500.0, replicas=list(replicas), at_ms=[500.0 * (index + 1) for index in range(num_moments)])
    for number, name in enumerate(replicas):
        values = {
            column: [index * 10 + number for index in range(num_moments)] for column in ReplicaColumns.__struct_fields__
        }
        log.columns[name] = ReplicaColumns(**values)
    return log


def run_of(*records: RequestRecord, duration_s: float = 10.0) -> Run:
    return Run(facts=RunFacts(source="simulated", duration_ns=Nanos(round(duration_s * 1e9))), records=records)


def test_a_log_that_is_short_enough_is_kept_whole() -> None:
    log = log_of(20)
    frames = fleet_frames(log, run_of())
    assert frames.at_s == [at / 1e3 for at in log.at_ms]
    assert frames.columns == [log.columns[name] for name in log.replicas]


def test_a_long_log_keeps_levels_of_moments_and_sums_of_counts_and_its_last_moment() -> None:
    log = log_of(23)
    frames = fleet_frames(log, run_of(), max_frames=6)
    assert frames.at_s == [2.0, 4.0, 6.0, 8.0, 10.0, 11.5]
    assert frames.num_moments == 23
    for sampled, name in zip(frames.columns, log.replicas, strict=True):
        whole = log.columns[name]
        kept = [log.at_ms.index(at * 1e3) for at in frames.at_s]
        for level in ("is_up", "num_running", "num_waiting", "kv_permille", "cached_permille"):
            assert getattr(sampled, level) == [getattr(whole, level)[index] for index in kept]
        for count in ("hit_tokens", "query_tokens", "num_preemptions"):
            assert sum(getattr(sampled, count)) == sum(getattr(whole, count))
        assert sampled.hit_tokens[1] == sum(whole.hit_tokens[4:8])


def test_a_large_fleet_has_fewer_frames() -> None:
    replicas = tuple(f"main-{index}" for index in range(50))
    frames = fleet_frames(log_of(100, replicas), run_of(), max_cells=1_000)
    assert len(frames.at_s) == 20
    assert all(len(columns.num_running) == 20 for columns in frames.columns)


def test_a_run_shorter_than_one_interval_has_no_frame() -> None:
    frames = fleet_frames(log_of(0), run_of(duration_s=0.2))
    assert frames.at_s == [] and frames.duration_s == 0.2


def test_a_fault_lasts_from_its_begin_to_the_end_of_its_kind_on_its_replica() -> None:
    events = [
        FleetEvent(1_000, "crash begins", "main-0"),
        FleetEvent(2_000, "slow begins", "main-0"),
        FleetEvent(2_500, "crash begins", "main-1"),
        FleetEvent(3_000, "crash ends", "main-0"),
        FleetEvent(4_000, "storm begins", ""),
        FleetEvent(5_000, "slow ends", "main-0"),
        FleetEvent(6_000, "crash begins", "main-0"),
        FleetEvent(7_000, "crash ends", "main-0"),
    ]
    assert outages(events, ["main-0", "main-1"]) == [
        Outage(kind="crash", replica=0, from_s=1.0, to_s=3.0),
        Outage(kind="slow", replica=0, from_s=2.0, to_s=5.0),
        Outage(kind="crash", replica=1, from_s=2.5, to_s=None),
        Outage(kind="storm", replica=None, from_s=4.0, to_s=4.0),
        Outage(kind="crash", replica=0, from_s=6.0, to_s=7.0),
    ]


def test_curves_are_those_of_the_requests() -> None:
    def asked(name: str, at: float, first: float, end: float, error: str = "") -> RequestRecord:
        return RequestRecord(
            request_id=name,
            intended_ns=Nanos(round(at * SECOND)),
            sent_ns=Nanos(round(at * SECOND)),
            first_chunk_ns=None if error else Nanos(round(first * SECOND)),
            finished_ns=Nanos(round(end * SECOND)),
            error=error,
        )

    records = (asked("a", 0.0, 0.3, 1.0), asked("b", 0.0, 0.1, 0.5), asked("c", 1.2, 0.0, 1.6, "timeout"))
    curves = fleet_frames(log_of(4), run_of(*records, duration_s=2.0)).curves
    assert curves.bin_s == 0.1
    assert sum(curves.arrivals_per_s) * curves.bin_s == 3 == round(curves.arrivals_per_s[0] * 0.1 + 1)
    assert [index for index, rate in enumerate(curves.failures_per_s) if rate] == [16]
    assert curves.in_flight[:6] == [2, 2, 2, 2, 2, 1]
    assert curves.ttft_p95_ms[0] == 290.0 and set(curves.ttft_p95_ms[1:]) == {None}
    assert msgspec.json.decode(msgspec.json.encode(curves))["ttft_p95_ms"][0] == 290.0
