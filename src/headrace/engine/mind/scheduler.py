"""Scheduler: decides what one engine computes in its next step.

There is no prefill phase and no decode phase. A sequence has a length and a number of computed tokens; every step lets
sequences catch up, under one token budget. Chunked prefill, prefix hits, recomputation after preemption and tokens still
being sampled are that one rule with different numbers.

Knows sequences and counts of blocks. Does not know tensors, time (beyond stamping it), text or who is asking.
"""

from bisect import insort
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from headrace.base.clock import Nanos
from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.engine.mind.block_hashing import BlockHasher
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.kv_cache_manager import Beginning, Growth, KVCacheManager
from headrace.engine.mind.kv_transfer import KVLoad
from headrace.engine.mind.ports import KVConnector
from headrace.engine.mind.request_queue import RequestQueue
from headrace.engine.mind.sequence import SequenceState, Status
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan

_RUNNING = Status.RUNNING
"""By name: asked for once a sequence and step."""
_MAX_SKIPS_PER_STEP = 64
"""How many waiting sequences one step looks at without admitting them: keeps a step's cost flat however many wait. So many
are looked at, too, for short ones to leave room for."""


class _Verdict(Enum):
    ADMIT = "admit"
    LOAD = "load"
    COPIES_PENDING = "copies pending"
    NO_BLOCKS = "no blocks"
    PREFIX_BEING_COMPUTED = "prefix being computed"
    SHARE_USED_UP = "share used up"


@dataclass(slots=True)
class _OpenStep:
    """A step while it is being planned."""

    now: Nanos
    budget: int
    prompt_budget: int
    """Of those, tokens left for sequences that want more than one: for prompts, and for what is computed again."""
    long_from: int
    """A sequence that wants more tokens than this is a long one."""
    long_share: int
    """Tokens left for long ones, all together, first come first: what keeps short ones from waiting behind them."""
    entries: list[ScheduledSequence] = field(default_factory=list)
    new_sequences: list[NewSequence] = field(default_factory=list)
    copies: list[tuple[BlockId, BlockId]] = field(default_factory=list)
    has_preempted: bool = False

    @property
    def is_full(self) -> bool:
        """For whoever begins."""
        return self.budget <= 0 or self.prompt_budget <= 0


class Scheduler:
    def __init__(
        self, config: SchedulerConfig, identity_digest: bytes, hasher: BlockHasher, connector: KVConnector | None = None
    ) -> None:
        self.config = config
        self.connector = connector
        self.kv = KVCacheManager(
            num_blocks=config.num_blocks,
            block_size=config.block_size,
            identity_digest=identity_digest,
            enable_prefix_caching=config.enable_prefix_caching,
            hasher=hasher,
        )
        self.waiting = RequestQueue(config.policy)
        self.running: list[SequenceState] = []  # in the queue's order: the last is the first to be preempted
        self.loading: dict[SequenceId, SequenceState] = {}  # until the transfer's end, whatever becomes of the request
        self.num_preemptions = 0
        self.num_copying_steps = 0  # in flight, that copy blocks before they compute
        self._loaded: list[SequenceState] = []  # LOADING_KV and all there; each has a place among the running
        self._released: list[SequenceId] = []  # what the workers may forget, told with the next plan
        self._chosen: dict[SequenceId, int] = {}  # beams' next tokens, told with the next plan

    def schedule(self, now: Nanos, step_id: StepId) -> StepPlan | None:
        """The next step, or None if no sequence can use one now. At most one of preemption and admission happens in it."""
        step = self._open_step(now)
        if self._loaded:
            self._admit_loaded_kv(step)
        self._continue_running(step)
        self._admit_waiting(step)
        return self._close(step, step_id)

    def update(self, sequence: SequenceState, entry: ScheduledSequence, *, is_usable: bool = True) -> None:
        """One entry of a finished step: its KV exists now, and can be found if its numbers are usable. The sampled token,
        if any, is the caller's to append."""
        sequence.num_steps_in_flight -= 1
        if entry.samples and not sequence.is_beam:
            sequence.num_pending_tokens -= 1
        if not is_usable:
            self.kv.distrust(sequence)
        if sequence.status is _RUNNING:
            if is_usable:
                self.kv.confirm(sequence, entry.num_tokens)
        elif sequence.num_steps_in_flight == 0:
            self._release(sequence)

    def add(self, sequence: SequenceState) -> None:
        self.waiting.append(sequence)

    def finish(self, sequence: SequenceState) -> None:
        """The sequence ends. Its blocks go back at once, or when the last that writes them, step or transfer, is over."""
        status = sequence.status
        if sequence.may_load:
            self._forgo(sequence)
        if status is Status.RUNNING:
            self.running.remove(sequence)
        elif status is Status.LOADING_KV:
            if not sequence.is_loading:
                self._loaded.remove(sequence)
        elif status is not Status.PARKED:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED
        if status in (Status.RUNNING, Status.LOADING_KV) and not sequence.is_loading and sequence.num_steps_in_flight == 0:
            self._release(sequence)

    @property
    def has_news(self) -> bool:
        """Whether the next plan differs from the last whoever runs: somebody joins, or the workers must forget somebody."""
        return bool(self._released or self._loaded)

    def end_load(self, sequence: SequenceState, num_tokens: int) -> None:
        """A transfer is over: the KV of the sequence's first `num_tokens` tokens is there. It runs from the next step on,
        and computes what is missing; if it has ended meanwhile, its blocks go back."""
        del self.loading[sequence.sequence_id]
        sequence.is_loading = False
        self.kv.take_loaded(sequence, num_tokens)
        if sequence.status is Status.FINISHED:
            self._release(sequence)
        else:
            self._loaded.append(sequence)

    # Beams: what their search has decided. None of them has a step in flight.

    def park(self, sequence: SequenceState) -> None:
        """It goes on later, as something else, or not at all: until then it holds nothing and nobody waits for it."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
        elif sequence.status is not Status.PARKED:
            self.waiting.remove(sequence)
        sequence.status = Status.PARKED

    def go_on(self, sequence: SequenceState, token_id: int) -> None:
        """A beam's next token."""
        sequence.append_tokens([token_id])
        if sequence.status is Status.RUNNING:
            self._chosen[sequence.sequence_id] = token_id
        else:
            self._return(sequence)

    def fork(self, sequence: SequenceState, parent: SequenceState, token_id: int) -> None:
        """A beam drops what it was and goes on from where `parent` is, which has not gone on itself. Both run: it takes
        the parent's blocks over. Else it waits its turn, and finds them if the parent runs then."""
        if sequence.status is Status.RUNNING and parent.status is Status.RUNNING:
            self._release(sequence)
            self.kv.fork(sequence, parent)
        elif sequence.status is Status.RUNNING:
            self.park(sequence)
        sequence.leader, sequence.num_tokens_of_leader = parent, parent.num_tokens
        sequence.output_token_ids = [*parent.output_token_ids, token_id]
        sequence.num_tokens = parent.num_tokens + 1
        sequence.block_hashes = list(parent.block_hashes)
        if sequence.status is Status.PARKED:
            self._return(sequence)

    def _return(self, sequence: SequenceState) -> None:
        assert sequence.status is Status.PARKED
        sequence.status = Status.PREEMPTED
        self.waiting.put_back(sequence)

    # The phases of a step

    def _open_step(self, now: Nanos) -> _OpenStep:
        config = self.config
        budget = prompt_budget = config.max_num_batched_tokens
        is_contended = len(self.running) + len(self.waiting) > 1
        long_from = long_share = config.max_tokens_per_prompt_chunk if is_contended else budget
        if config.min_prompt_tokens_per_step and is_contended:
            num_streams = sum(sequence.num_computed_tokens >= sequence.num_prompt_tokens for sequence in self.running)
            if num_streams > 1 and (num_streams < len(self.running) or self.waiting):
                # Every stream waits for the step to end: the more there are, the fewer tokens of prompts they wait for, but
                # never so few that prompts starve.
                prompt_budget = max(budget // num_streams, config.min_prompt_tokens_per_step)
            if prompt_budget < budget:
                long_from = min(long_from, max(1, prompt_budget // 2))
                left_for_short = min(prompt_budget // 2, self._num_tokens_of_short(long_from))
                long_share = min(long_share, prompt_budget - left_for_short)
        return _OpenStep(now=now, budget=budget, prompt_budget=prompt_budget, long_from=long_from, long_share=long_share)

    def _admit_loaded_kv(self, step: _OpenStep) -> None:
        """Those whose KV has come since the last step run now, and catch up as all do. Their places were kept for them."""
        for sequence in self._loaded:
            sequence.status = Status.RUNNING
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            sequence.scheduled = step.now
            insort(self.running, sequence, key=self.waiting.order_of)
        self._loaded.clear()

    def _continue_running(self, step: _OpenStep) -> None:
        """Lets the running catch up, first come first; each leaves at least one token for every one behind it. Only those
        wait for the next step whose share, that of long ones or that of all prompts, is used up."""
        running, grow_as_fits = self.running, self.kv.grow_as_fits
        index = 0
        while index < len(running):  # preemption shortens the list behind the index
            sequence = running[index]
            index += 1
            num_wanted = sequence.num_wanted_tokens
            if num_wanted <= 0:
                continue
            num_behind = len(running) - index
            num_allowed = self._num_allowed(step, num_wanted, step.budget - num_behind)
            if num_allowed == 0:
                continue
            num_tokens, growth = grow_as_fits(sequence, num_allowed)
            while num_tokens == 0 and self._preempt_behind(index, step):
                num_tokens, growth = grow_as_fits(sequence, num_allowed)
            if num_tokens > 0:
                self._schedule(step, sequence, num_wanted, num_tokens, growth)

    def _admit_waiting(self, step: _OpenStep) -> None:
        """Starts waiting sequences in order. One that cannot start does not stop those behind it, but if it waits for
        blocks at the head, only `max_bypasses` of them may pass it."""
        num_slots = self.config.max_num_seqs - len(self.running) - len(self.loading)
        if step.has_preempted or not self.waiting or num_slots <= 0 or step.is_full:
            return
        num_reserved = self._num_blocks_promised()
        admitted: list[SequenceState] = []
        head: SequenceState | None = None  # the first that waits for blocks
        num_skipped = 0
        for sequence in self.waiting:
            verdict, beginning = self._judge(step, sequence, num_reserved)
            if verdict is _Verdict.ADMIT or verdict is _Verdict.LOAD:
                if head is not None:
                    head.num_bypasses += 1
                admitted.append(sequence)
                start = self._start if verdict is _Verdict.ADMIT else self._start_loading
                num_reserved += start(step, sequence, beginning)
                if step.is_full or len(admitted) == num_slots:
                    break
            else:
                num_skipped += 1
                if head is None and verdict is _Verdict.NO_BLOCKS:
                    head = sequence
            if num_skipped == _MAX_SKIPS_PER_STEP or (head and head.num_bypasses >= self.config.max_bypasses):
                break
        for sequence in admitted:
            self.waiting.remove(sequence)
            if sequence.is_loading:
                sequence.status = Status.LOADING_KV
                continue
            sequence.status = Status.RUNNING
            insort(self.running, sequence, key=self.waiting.order_of)

    def _close(self, step: _OpenStep, step_id: StepId) -> StepPlan | None:
        if not step.entries:
            assert not step.has_preempted, "work was preempted for nobody"
            return None
        assert step.budget >= 0, "the token budget is exceeded"
        plan = StepPlan(
            step_id=step_id,
            scheduled=tuple(step.entries),
            new_sequences=tuple(step.new_sequences),
            released_sequence_ids=tuple(self._released),
            block_copies=tuple(step.copies),
            chosen_tokens=tuple(self._chosen.items()),
        )
        self._released.clear()
        self._chosen.clear()
        if step.copies:
            self.num_copying_steps += 1
        return plan

    # Parts of the phases

    @staticmethod
    def _num_allowed(step: _OpenStep, num_wanted: int, num_left: int) -> int:
        """How many of the tokens that a sequence wants it may have now."""
        if num_wanted == 1:
            return min(1, num_left)
        num_left = min(num_left, step.prompt_budget)
        return min(num_wanted, num_left if num_wanted <= step.long_from else min(step.long_share, num_left))

    def _num_tokens_of_short(self, long_from: int) -> int:
        """What those want that want more than one token and are not long; of the waiting, what they want if no cache has
        their beginnings."""
        wanted = [sequence.num_wanted_tokens for sequence in self.running]
        wanted += [sequence.num_tokens for sequence in islice(self.waiting, _MAX_SKIPS_PER_STEP)]
        return sum(num_tokens for num_tokens in wanted if 1 < num_tokens <= long_from)

    def _schedule(self, step: _OpenStep, sequence: SequenceState, num_wanted: int, num_tokens: int, growth: Growth) -> None:
        samples = num_tokens == num_wanted
        offset, block_ids = growth.block_offset, growth.block_ids
        if num_wanted > 1:
            step.prompt_budget -= num_tokens
        if num_wanted > step.long_from:
            step.long_share -= num_tokens
        if not sequence.is_on_workers:
            step.new_sequences.append(_as_new(sequence))
            sequence.is_on_workers = True
            offset, block_ids = 0, sequence.block_ids
        step.entries.append(
            ScheduledSequence(
                sequence.sequence_id,
                sequence.num_computed_tokens,
                num_tokens,
                samples,
                offset,
                tuple(block_ids) if block_ids else (),
            )
        )
        if growth.copy is not None:
            step.copies.append(growth.copy)
        step.budget -= num_tokens
        sequence.num_computed_tokens += num_tokens
        sequence.num_steps_in_flight += 1
        if samples and not sequence.is_beam:
            sequence.num_pending_tokens += 1

    def _judge(self, step: _OpenStep, sequence: SequenceState, num_reserved: int) -> tuple[_Verdict, Beginning]:
        beginning = Beginning([], 0)
        if sequence.needs_prompt_of_leader:
            return _Verdict.PREFIX_BEING_COMPUTED, beginning
        beginning = self.kv.find_beginning(sequence)
        if self.kv.is_next_block_being_computed(sequence, beginning):
            return _Verdict.PREFIX_BEING_COMPUTED, beginning
        does_load = sequence.may_load and self._num_loadable_tokens(sequence) > beginning.num_tokens
        if does_load and (step.copies or self.num_copying_steps):
            # A block that is copied from may be free already, and a transfer does not wait for the step that reads it.
            return _Verdict.COPIES_PENDING, beginning
        if not does_load and self._num_allowed(step, sequence.num_tokens - beginning.num_tokens, step.budget) == 0:
            return _Verdict.SHARE_USED_UP, beginning
        num_needed = self.kv.num_blocks_to_begin(sequence, beginning)
        if num_needed + num_reserved > self.kv.pool.num_available:
            return _Verdict.NO_BLOCKS, beginning
        return _Verdict.LOAD if does_load else _Verdict.ADMIT, beginning

    def _start(self, step: _OpenStep, sequence: SequenceState, beginning: Beginning) -> int:
        """Gives a waiting sequence its first tokens; returns how many blocks it is promised beyond what it now holds."""
        if sequence.may_load:
            self._forgo(sequence)
        num_held_before = self.kv.pool.num_referenced
        num_needed = self.kv.num_blocks_to_begin(sequence, beginning)
        self.kv.begin(sequence, beginning)
        if sequence.scheduled is None:
            sequence.scheduled = step.now
            sequence.num_cached_tokens = beginning.num_tokens
        num_wanted = sequence.num_wanted_tokens
        num_tokens = self._num_allowed(step, num_wanted, step.budget)
        self._schedule(step, sequence, num_wanted, num_tokens, self.kv.grow(sequence, num_tokens))
        num_promised = num_needed - (self.kv.pool.num_referenced - num_held_before)
        return num_promised + 1

    def _num_loadable_tokens(self, sequence: SequenceState) -> int:
        """Of its first tokens, those whose KV can be fetched; the last one is computed here, for its logits."""
        if self.connector is None or sequence.needs_prompt_scores:
            return 0
        return min(self.connector.num_tokens_elsewhere(sequence.request), sequence.num_tokens - 1)

    def _start_loading(self, step: _OpenStep, sequence: SequenceState, beginning: Beginning) -> int:
        """Gives a waiting sequence all its blocks, and has those that were not found here filled from elsewhere. It takes
        nothing of the budget. Returns how many blocks it is promised beyond what it now holds."""
        source = sequence.request.kv_source
        assert self.connector is not None and source is not None
        num_tokens = self._num_loadable_tokens(sequence)
        self.kv.begin(sequence, beginning)
        new = self.kv.reserve(sequence)
        first_block = len(beginning.block_ids)
        num_blocks = self.kv.num_blocks_for(num_tokens) - first_block
        sequence.may_load, sequence.is_loading = False, True
        self.loading[sequence.sequence_id] = sequence
        self.connector.load(
            KVLoad(
                sequence_id=sequence.sequence_id,
                source=source,
                first_block=first_block,
                block_ids=tuple(new[:num_blocks]),
                num_tokens=num_tokens,
            )
        )
        return 1

    def _forgo(self, sequence: SequenceState) -> None:
        """Its KV is not fetched from where it lies: once said, never taken back."""
        assert self.connector is not None
        sequence.may_load = False
        self.connector.forgo(sequence.request)

    def _num_blocks_promised(self) -> int:
        """Blocks that the running will need: the rest of their known tokens, and one more each to grow into, so that
        admission does not cause the next preemption. Those that load have all but that one."""
        kv = self.kv
        missing = sum(max(kv.num_blocks_for(sequence.num_tokens) - len(sequence.block_ids), 0) for sequence in self.running)
        return missing + len(self.running) + len(self.loading)

    def _preempt_behind(self, index: int, step: _OpenStep) -> bool:
        """Takes the blocks of the last running sequence from `index` on that can give any now; False if none can.

        A sequence with a step in flight cannot: its blocks are still being written.
        """
        for position in range(len(self.running) - 1, index - 1, -1):
            sequence = self.running[position]
            if sequence.num_steps_in_flight == 0 and self.kv.would_free(sequence):
                del self.running[position]
                self._release(sequence)
                sequence.status = Status.PARKED
                if not sequence.awaits_choice:  # else there is nothing for it to do
                    self._return(sequence)
                sequence.num_preemptions += 1
                self.num_preemptions += 1
                step.has_preempted = True
                return True
        return False

    def _release(self, sequence: SequenceState) -> None:
        self.kv.release(sequence)
        self._chosen.pop(sequence.sequence_id, None)
        if sequence.is_on_workers:
            self._released.append(sequence.sequence_id)
            sequence.is_on_workers = False


def _as_new(sequence: SequenceState) -> NewSequence:
    return NewSequence(
        sequence.sequence_id,
        sequence.sample_index,
        sequence.num_prompt_tokens,
        sequence.token_ids,
        sequence.sampling,
        tuple(sorted(sequence.eos_token_ids)),
        sequence.request.structured_output,
    )
