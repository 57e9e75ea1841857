"""Two minds and the KV between them, to which anything may happen: transfers come whole, in part or not at all, leases end
early, either engine dies, and clients leave at any moment. Every answer is its prompt's own, every request ends once, and
nothing is held for nobody.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.small_minds import EOS, VOCAB_SIZE, configs, expected_answer, prompts, salts, samplings

from headrace.base.clock import Nanos
from headrace.base.ids import BlockId, RequestId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.kv_transfer import KVLoad, KVSource, KVTransferConfig, LoadFailurePolicy
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import StepPlan
from headrace.engine.mind.update import FinishReason, RequestUpdate
from headrace.sim.invariants import check_step
from headrace.sim.worker import SimulatedWorker, choose_any_of

LEASE_NS = 20


@dataclass
class Side:
    """One engine, its worker and its connector. A new life has nothing of the old one."""

    config: SchedulerConfig
    transfer: KVTransferConfig
    engine_id: str
    loads: list[KVLoad] = field(default_factory=list)
    forgone: list[KVSource] = field(default_factory=list)
    sources: dict[RequestId, KVSource] = field(default_factory=dict)
    in_flight: deque[StepPlan] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.core = EngineCore(
            self.config, eos_token_ids=(EOS,), identity_digest=b"test", connector=self, transfer=self.transfer
        )
        self.worker = SimulatedWorker(
            num_blocks=self.config.num_blocks, block_size=self.config.block_size, choose=choose_any_of(VOCAB_SIZE)
        )

    def num_tokens_elsewhere(self, request: Request) -> int:
        return 0 if request.kv_source is None else request.kv_source.num_tokens

    def load(self, load: KVLoad) -> None:
        assert load.block_ids, "nothing is fetched"
        self.loads.append(load)

    def forgo(self, request: Request) -> None:
        assert request.kv_source is not None
        assert request.kv_source not in self.forgone, "it is said once"
        self.forgone.append(request.kv_source)

    def offer(self, request: Request, block_ids: Sequence[BlockId], num_tokens: int) -> None:
        self.sources[request.request_id] = KVSource(
            engine_id=self.engine_id, request_id=request.request_id, block_ids=tuple(block_ids), num_tokens=num_tokens
        )


class KVTransferMachine(RuleBasedStateMachine):
    @initialize(prefill=configs, decode=configs, policy=st.sampled_from(LoadFailurePolicy))
    def build(self, prefill: SchedulerConfig, decode: SchedulerConfig, policy: LoadFailurePolicy) -> None:
        self.configs = prefill, decode
        self.transfer = KVTransferConfig(load_failure_policy=policy, lease_ns=Nanos(LEASE_NS))
        self.num_lives = 0
        self.prefill, self.decode = self.new_life(0), self.new_life(1)
        self.asked: dict[RequestId, Request] = {}
        self.answers: dict[tuple[RequestId, int], list[int]] = {}
        self.ended: dict[tuple[RequestId, int], FinishReason] = {}
        self.lost: set[RequestId] = set()
        self.ready: list[tuple[Request, KVSource]] = []
        self.now = 0

    def new_life(self, index: int) -> Side:
        self.num_lives += 1
        return Side(self.configs[index], self.transfer, f"e{self.num_lives}")

    def tick(self) -> Nanos:
        self.now += 1
        return Nanos(self.now)

    # Requests

    @rule(prompt=prompts, sampling=samplings, num_sequences=st.sampled_from([1, 1, 2]), salt=salts)
    def ask(self, prompt: tuple[int, ...], sampling: SamplingParams, num_sequences: int, salt: str) -> None:
        """A prompt is computed on the one side; what is asked of the other is what was asked for."""
        request = Request(
            request_id=RequestId(f"r{len(self.asked)}"),
            prompt_token_ids=prompt,
            sampling=sampling,
            num_sequences=min(num_sequences, self.configs[1].max_num_seqs),
            cache_salt=salt,
        )
        self.asked[request.request_id] = request
        self.prefill.core.add_request(
            Request(
                request_id=request.request_id,
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=1, seed=sampling.seed, ignore_eos=True),
                cache_salt=salt,
                keeps_kv=True,
            ),
            self.tick(),
        )

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        self.hand_over_at(data.draw(st.integers(0, len(self.ready) - 1)))

    def hand_over_at(self, index: int) -> None:
        request, source = self.ready.pop(index)
        self.decode.core.add_request(
            Request(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                sampling=request.sampling,
                num_sequences=request.num_sequences,
                cache_salt=request.cache_salt,
                kv_source=source,
            ),
            self.tick(),
        )

    @rule(data=st.data(), on_decode=st.booleans())
    def abort(self, data: st.DataObject, on_decode: bool) -> None:
        side = self.decode if on_decode else self.prefill
        if not side.core._requests:
            return
        request_id = data.draw(st.sampled_from(sorted(side.core._requests)))
        updates = side.core.abort(request_id, self.tick())
        if on_decode:
            self.take(updates)
        else:
            self.lost.add(request_id)

    @rule(num_steps=st.integers(1, 6))
    def prompts_are_computed_and_handed_over(self, num_steps: int) -> None:
        """What happens most of the time; the other rules do what is seldom."""
        for _ in range(num_steps):
            self.begin(False)
            self.finish(False)
        while self.ready:
            self.hand_over_at(0)
        self.begin(True)

    # Steps

    @rule(on_decode=st.booleans())
    def begin(self, on_decode: bool) -> None:
        side = self.decode if on_decode else self.prefill
        plan = side.core.begin_step(self.tick())
        if plan is not None:
            check_step(plan, side.config)
            side.in_flight.append(plan)

    @rule(on_decode=st.booleans())
    def finish(self, on_decode: bool) -> None:
        side = self.decode if on_decode else self.prefill
        if not side.in_flight:
            return
        plan = side.in_flight.popleft()
        updates = side.core.finish_step(plan, side.worker.execute(plan), self.tick())
        if on_decode:
            self.take(updates)
            return
        for update in updates:
            if update.finish_reason is not None:
                self.ready.append((self.asked[update.request_id], side.sources[update.request_id]))

    def take(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            key = (update.request_id, update.sample_index)
            assert key not in self.ended, "an answer that has ended was heard of again"
            answer = self.answers.setdefault(key, [])
            answer.extend(update.new_token_ids)
            expected = expected_answer(self.asked[update.request_id], update.sample_index)
            assert answer == expected[: len(answer)]
            if update.finish_reason is not None:
                self.ended[key] = update.finish_reason
                assert update.finish_reason not in (FinishReason.LENGTH, FinishReason.STOP) or answer == expected
                if update.finish_reason is FinishReason.ERROR:
                    assert self.transfer.load_failure_policy is LoadFailurePolicy.FAIL

    # Transfers

    @precondition(lambda self: self.decode.loads)
    @rule(data=st.data(), share=st.sampled_from([0, 1, 2, 100, 100, 100]), is_confirmed=st.booleans())
    def transfer_ends(self, data: st.DataObject, share: int, is_confirmed: bool) -> None:
        """So many blocks came. What the source does not keep any more is not there to be read."""
        load = self.decode.loads.pop(data.draw(st.integers(0, len(self.decode.loads) - 1)))
        source = load.source
        is_kept = source.engine_id == self.prefill.engine_id and self.prefill.core.is_leased(source.request_id)
        num_blocks = min(share, len(load.block_ids)) if is_kept else 0
        wanted = source.block_ids[load.first_block : load.first_block + num_blocks]
        if num_blocks:
            self.decode.worker.write(load.block_ids[:num_blocks], self.prefill.worker.read(wanted))
        num_tokens = min(load.num_tokens, (load.first_block + num_blocks) * self.decode.config.block_size)
        error = "" if num_tokens == load.num_tokens else "lost"
        self.take(self.decode.core.end_load(load.sequence_id, num_tokens, self.tick(), error=error))
        if is_confirmed and source.engine_id == self.prefill.engine_id:
            self.prefill.core.end_lease(source.request_id)

    @rule(share=st.integers(0, 3))
    def forgone_are_let_go(self, share: int) -> None:
        for source in self.decode.forgone[:share]:
            if source.engine_id == self.prefill.engine_id:
                self.prefill.core.end_lease(source.request_id)

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        _, source = data.draw(st.sampled_from(self.ready))
        if source.engine_id == self.prefill.engine_id:
            self.prefill.core.renew_lease(source.request_id, self.tick())

    @rule(passes=st.integers(1, 2 * LEASE_NS))
    def time_passes(self, passes: int) -> None:
        self.now += passes
        wakeup = self.prefill.core.next_wakeup()
        over = self.prefill.core.end_leases_over(Nanos(self.now))
        assert bool(over) == (wakeup is not None and wakeup <= self.now)

    @rule(index=st.sampled_from([0, 0, 1]), chance=st.integers(0, 5))
    def dies(self, index: int, chance: int) -> None:
        if chance:
            return
        if index == 0:
            self.lost |= {request_id for request_id in self.asked if request_id in self.prefill.core._requests}
            self.prefill = self.new_life(0)
        else:
            self.lost |= set(self.decode.core._requests)
            self.decode = self.new_life(1)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "prefill"):
            self.prefill.core.check_integrity()
            self.decode.core.check_integrity()

    def teardown(self) -> None:
        """Everything asked ends, and every block comes back: fetched, forgone, or by the end of its lease."""
        if not hasattr(self, "prefill"):
            return
        for _ in range(10_000):
            if self.prefill.core.is_idle:
                break
            self.begin(False)
            self.finish(False)
            self.time_passes(LEASE_NS)  # as if nobody fetched what is held meanwhile
        for request, _ in self.ready:
            self.lost.add(request.request_id)
        while not self.decode.core.is_idle or self.decode.loads:
            had_work = self.decode.in_flight or self.decode.loads
            self.begin(True)
            assert had_work or self.decode.in_flight or self.decode.loads, "nobody advances"
            if self.decode.in_flight:
                self.finish(True)
            elif self.decode.loads:
                load = self.decode.loads.pop()
                found = load.first_block * self.decode.config.block_size
                self.take(self.decode.core.end_load(load.sequence_id, found, self.tick(), error="lost"))
            self.books_balance()
        self.time_passes(2 * LEASE_NS)
        for request_id, request in self.asked.items():
            if request_id not in self.lost:
                assert all((request_id, index) in self.ended for index in range(request.num_sequences))
        for side in (self.prefill, self.decode):
            stats = side.core.stats()
            assert stats.num_blocks_in_use == stats.num_blocks_leased == stats.num_loading == 0


TestKVTransfer = KVTransferMachine.TestCase
TestKVTransfer.settings = settings(max_examples=200, stateful_step_count=60)
