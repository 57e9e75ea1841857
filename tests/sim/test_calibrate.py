"""Calibration finds the costs that a recording was made with, and a rehearsal with them repeats the run."""

from heapq import heappop, heappush
from itertools import count
from statistics import median

import pytest

from headrace.base.clock import ManualClock, Nanos
from headrace.base.errors import CheckpointError
from headrace.base.ids import RequestId
from headrace.base.rng import stream
from headrace.engine.host.recording import Added, Event, Finished, Opening, Planned
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import SampledToken, StepPlan, StepResult
from headrace.measure.report.record import RequestRecord, Run, RunFacts
from headrace.measure.workload.request import TokenPrompt, Workload, WorkloadRequest, token_ids
from headrace.sim.calibrate import (
    Entrance,
    Exit,
    TimedSteps,
    fit_front_end,
    fit_steps,
    merged,
    observe,
    phases,
    residuals,
    speed_spread,
    warm_up,
)
from headrace.sim.cost.fitted_steps import FittedSteps
from headrace.sim.cost.step_size import StepSize, step_size
from headrace.sim.cost_model import EngineModel
from headrace.sim.front_end import FrontEnd, FrontEndCost
from headrace.sim.workload_run import run_workload

CONFIG = SchedulerConfig(max_model_len=512, num_blocks=512, max_num_seqs=16, max_num_batched_tokens=512)
TRUTH = FittedSteps(
    knots=(1, 16, 128, 512), knot_us=(5000.0, 9000.0, 90_000.0, 350_000.0), decode_context_us=0.8, chunk_pairs_us=0.02,
    num_decodes_us=60.0, num_chunks_us=200.0,
)  # fmt: skip
FRONT_END = FrontEndCost(request_us=350.0, prompt_token_us=0.5, chunk_us=40.0, latency_us=250.0)


class RecordedRun:
    """A live engine in miniature: closed loops against the real mind, every event kept, steps as long as `TRUTH` says."""

    def __init__(self, *, noise: float = 0.0, stalls: float = 0.0) -> None:
        self.clock = ManualClock(Nanos(1_000))
        self.core = EngineCore(CONFIG, eos_token_ids=(), identity_digest=b"test")
        self.events: list[Event] = [
            Opening(now=self.clock.now(), scheduler=CONFIG, eos_token_ids=(), identity_digest=b"test")
        ]
        self.runs: list[Run] = []
        self._noise = stream(0, "noise")
        self._sizes = (noise, stalls)
        self._numbers = count()

    def drive(self, workload: Workload) -> None:
        start = self.clock.now()
        front_end = FrontEnd(FRONT_END)
        followers: dict[str, list[WorkloadRequest]] = {}
        for request in workload.requests:
            followers.setdefault(request.after, []).append(request)
        coming: list[tuple[Nanos, int, Request]] = []
        records: list[RequestRecord] = []
        sent: dict[str, Nanos] = {}
        first: dict[str, Nanos] = {}

        def ask(after: str, now: Nanos) -> None:
            for request in followers.get(after, ()):
                assert isinstance(request.prompt, TokenPrompt)
                prompt = tuple(token_ids(request.prompt.segments, seed=workload.seed, vocab_size=8000))
                sent[request.request_id] = now
                number = next(self._numbers)
                asked = Request(
                    request_id=RequestId(f"cmpl-{request.request_id}/{number}"),
                    prompt_token_ids=prompt,
                    sampling=SamplingParams(max_tokens=request.num_output_tokens, ignore_eos=True),
                )
                heappush(coming, (front_end.accept(now, len(prompt)), number, asked))

        def take_in(until: Nanos) -> None:
            while coming and coming[0][0] <= until:
                moment, _, asked = heappop(coming)
                self.clock.advance_to(Nanos(max(moment, self.clock.now())))
                self.events.append(Added(self.clock.now(), asked))
                self.core.add_request(asked, self.clock.now())

        ask("", start)
        while len(records) < len(workload.requests):
            take_in(self.clock.now())
            plan = self.core.begin_step(self.clock.now())
            if plan is None:
                take_in(coming[0][0])
                continue
            self.events.append(Planned(self.clock.now(), plan))
            end = Nanos(self.clock.now() + self._duration_ns(plan))
            take_in(end)
            self.clock.advance_to(end)
            result = StepResult(plan.step_id, tuple(SampledToken(1) if e.samples else None for e in plan.scheduled))
            self.events.append(Finished(end, result))
            for update in self.core.finish_step(plan, result, end):
                name = update.request_id.partition("/")[0].partition("-")[2]
                seen = front_end.deliver(end)
                if update.new_token_ids:
                    first.setdefault(name, seen)
                if update.finish_reason is not None:
                    records.append(
                        RequestRecord(
                            request_id=name, intended_ns=Nanos(0), sent_ns=Nanos(sent[name] - start),
                            first_chunk_ns=Nanos(first[name] - start), finished_ns=Nanos(seen - start),
                        )
                    )  # fmt: skip
                    ask(name, seen)
        facts = RunFacts(source="live", duration_ns=Nanos(self.clock.now() - start), start_ns=start)
        self.runs.append(Run(facts=facts, records=tuple(records)))

    def _duration_ns(self, plan: StepPlan) -> int:
        noise, stalls = self._sizes
        factor = 1.0 + noise * self._noise.gauss(0, 1)
        if self._noise.random() < stalls:
            factor *= 5
        return round(TRUTH.step_us(step_size(plan)) * max(0.2, factor) * 1e3)


@pytest.fixture(scope="module")
def quiet() -> RecordedRun:
    run = RecordedRun()
    run.drive(warm_up(vocab_size=8000))
    for workload in phases(CONFIG, vocab_size=8000):
        run.drive(workload)
    return run


def test_phases_meet_every_kind_of_step_that_the_configuration_allows(quiet: RecordedRun) -> None:
    sizes = [size for step in observe(quiet.events, quiet.runs).steps for size in step.sizes]
    batches = {size.num_decodes for size in sizes}
    assert max(batches) == CONFIG.max_num_seqs
    assert len(batches) > CONFIG.max_num_seqs * 0.8
    assert max(size.chunk_tokens for size in sizes) > CONFIG.max_model_len * 0.7
    assert any(size.num_decodes and size.num_chunks for size in sizes)


def test_calibration_finds_the_costs_that_a_recording_was_made_with(quiet: RecordedRun) -> None:
    observed = observe(quiet.events, quiet.runs)
    fitted = fit_steps(observed.steps)
    for step in observed.steps:
        assert fitted.step_us(step.sizes[0]) == pytest.approx(step.duration_us, rel=0.08)
    assert median(abs(fitted.step_us(s.sizes[0]) / s.duration_us - 1) for s in observed.steps) < 0.02
    assert all(abs(row.bias) < 0.05 for row in residuals(observed.steps, fitted) if row.share_of_time > 0.02)
    front_end = fit_front_end(observed.entrances, observed.exits)
    assert front_end.request_us + 100 * front_end.prompt_token_us == pytest.approx(400.0, rel=0.1)
    assert front_end.latency_us == pytest.approx(FRONT_END.latency_us, rel=0.1)
    assert front_end.chunk_us == pytest.approx(FRONT_END.chunk_us, rel=0.1)
    assert observed.config == CONFIG


def test_steps_that_the_loop_saw_end_at_once_are_taken_together(quiet: RecordedRun) -> None:
    """Their sum is known, and what each took follows from the others."""
    ends = [event for event in quiet.events if isinstance(event, Finished)]
    late = {event.result.step_id: ends[i + 1].now for i, event in enumerate(ends[:-1]) if i % 5 == 3}
    events: list[Event] = [
        Finished(late[event.result.step_id], event.result)
        if isinstance(event, Finished) and event.result.step_id in late
        else event
        for event in quiet.events
    ]
    observed = observe(events, quiet.runs)
    assert any(len(step.sizes) == 2 for step in observed.steps)
    fitted = fit_steps(observed.steps)
    decode = StepSize(num_decodes=4, decode_context=600, num_samples=4)
    assert fitted.step_us(decode) == pytest.approx(TRUTH.step_us(decode), rel=0.05)


def test_stalls_of_the_machine_do_not_become_the_cost_of_a_plan() -> None:
    run = RecordedRun(noise=0.05, stalls=0.01)
    for workload in phases(CONFIG, vocab_size=8000)[:4]:
        run.drive(workload)
    steps = observe(run.events, run.runs).steps
    fitted = fit_steps(steps)
    decode = StepSize(num_decodes=4, decode_context=600, num_samples=4)
    assert fitted.step_us(decode) == pytest.approx(TRUTH.step_us(decode), rel=0.12)
    assert sum(s.duration_us for s in steps) == pytest.approx(sum(fitted.step_us(s.sizes[0]) for s in steps), rel=1e-3)
    assert 0 <= speed_spread(steps, fitted) < 0.2


def test_a_rehearsal_with_what_was_found_repeats_a_run_that_was_not_fitted(quiet: RecordedRun) -> None:
    observed = observe(quiet.events, quiet.runs)
    front_end = fit_front_end(observed.entrances, observed.exits)
    engine = EngineModel(scheduler=CONFIG, steps=fit_steps(observed.steps), front_end=front_end)
    unseen = phases(CONFIG, vocab_size=8000, seed=5)[3]
    live = RecordedRun()
    live.drive(unseen)
    rehearsed = run_workload(
        unseen,
        config=engine.scheduler,
        cost=engine.step_cost(),
        facts=RunFacts(source="simulated", duration_ns=Nanos(0)),
        front_end=engine.front_end,
    )
    # The miniature plans one step at a time, so only totals are comparable.
    assert rehearsed.facts.duration_ns == pytest.approx(live.runs[0].facts.duration_ns, rel=0.05)


def test_the_cost_of_a_front_end_is_found_though_requests_and_chunks_wait_for_one_another() -> None:
    """What a crowd does: forty tokens go out at once, and those whose answers ended ask again meanwhile."""
    truth = FrontEndCost(request_us=700.0, prompt_token_us=1.5, chunk_us=90.0, latency_us=450.0)
    front_end, rng = FrontEnd(truth), stream(0, "crowd")
    entrances, exits = [], []
    now = 0
    for _ in range(150):
        now += rng.randrange(8_000_000, 30_000_000)
        seen = [front_end.deliver(Nanos(now)) for _ in range(40)]
        exits.append(Exit(Nanos(now), 40, tuple((place, seen[place]) for place in (3, 17, 31))))
        for at in sorted(now + rng.randrange(4_000_000) for _ in range(2)):
            length = rng.randrange(20, 900)
            entrances.append(Entrance(Nanos(at), front_end.accept(Nanos(at), length), length))
    waits = sorted(entrance.added - entrance.sent for entrance in entrances)
    assert waits[len(waits) // 2] > 2e6, "most wait longer for chunks than they take themselves"
    found = fit_front_end(entrances, exits)
    for name in FrontEndCost.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=0.15), name


def test_what_slows_one_kind_of_steps_is_not_laid_on_the_others() -> None:
    """A quarter of the single decodes take twice as long: their mean is theirs, and prompts cost what they cost."""
    single = StepSize(num_decodes=1, decode_context=100, num_samples=1)
    prompt = StepSize(num_chunks=1, chunk_tokens=200, chunk_context=200, chunk_pairs=20_000, num_samples=1)
    steps = [TimedSteps((single,), 10_000.0 if index % 4 == 0 else 5_000.0, Nanos(index)) for index in range(200)]
    steps += [TimedSteps((prompt,), 100_000.0, Nanos(index)) for index in range(200, 240)]
    fitted = fit_steps(steps)
    assert fitted.step_us(single) == pytest.approx(6_250.0, rel=0.02)
    assert fitted.step_us(prompt) == pytest.approx(100_000.0, rel=0.02)


def test_recordings_made_one_after_another_are_fitted_together(quiet: RecordedRun) -> None:
    whole = observe(quiet.events, quiet.runs)
    twice = merged([whole, whole])
    assert len(twice.steps) == 2 * len(whole.steps) and len(twice.entrances) == 2 * len(whole.entrances)
    assert fit_steps(twice.steps).knot_us == pytest.approx(fit_steps(whole.steps).knot_us, rel=0.02)


def test_without_an_opening_nothing_can_be_learned() -> None:
    with pytest.raises(CheckpointError, match="begins with its opening"):
        observe([], ())
