"""DecodeRun: many steps at once, where each would decide what the one before it did.

While nobody comes or goes, every step gives each running sequence its next token, and steps differ in positions and in the
blocks that sequences grow into. Who knows the tokens beforehand (a rehearsal does) can take such steps together. What comes
of it is what the steps would have come to one by one: the same blocks in the same order, the same content known, the same
plans in flight (`tests/property/test_decode_run.py` says so, byte for byte).

Knows a scheduler and the plans in flight. Does not know time.
"""

from collections.abc import Sequence

import msgspec

from headrace.base.ids import StepId
from headrace.engine.mind.kv_cache_manager import RunGrowth
from headrace.engine.mind.scheduler import Scheduler
from headrace.engine.mind.sequence import SequenceState
from headrace.engine.mind.step import ScheduledSequence, StepPlan


class DecodeRun(msgspec.Struct, frozen=True):
    """`num_steps` steps ended, and as many were planned, each when one ended."""

    num_steps: int
    first_planned: StepId
    """The first step that was planned in the run; those in flight before it ended first."""
    sequences: tuple[SequenceState, ...]
    """Who ran, in the order of the plans' entries."""
    starts: tuple[int, ...]
    """For each, the position that the first planned step computes."""
    growths: tuple[RunGrowth, ...]
    """In the order in which blocks were taken."""

    def plans(self, first: int) -> list[StepPlan]:
        """Those of the planned steps from the index `first` on, as the scheduler would have written them."""
        grown = {(g.step_index, g.sequence_index): g for g in self.growths if g.step_index >= first}
        return [self._plan(index, grown) for index in range(first, self.num_steps)]

    def _plan(self, step_index: int, grown: dict[tuple[int, int], RunGrowth]) -> StepPlan:
        entries = []
        for index, sequence in enumerate(self.sequences):
            growth = grown.get((step_index, index))
            offset, block_ids = (0, ()) if growth is None else (growth.block_offset, (growth.block_id,))
            position = self.starts[index] + step_index
            entries.append(ScheduledSequence(sequence.sequence_id, position, 1, True, offset, block_ids))
        return StepPlan(step_id=StepId(self.first_planned + step_index), scheduled=tuple(entries))


def num_repeats(scheduler: Scheduler, in_flight: Sequence[StepPlan]) -> int:
    """How many more steps would be like those in flight, if nothing came from outside; fewer where it is not certain."""
    running = scheduler.running
    if not running or scheduler.has_news or (scheduler.waiting and len(running) < scheduler.config.max_num_seqs):
        return 0
    num_running, depth = len(running), len(in_flight)
    for plan in in_flight:
        if len(plan.scheduled) != num_running:
            return 0
    num_steps = scheduler.config.max_model_len
    for sequence in running:
        computed = sequence.num_computed_tokens
        # Each step in flight computes one token of its answer, and samples the next.
        if (
            sequence.num_pending_tokens != depth
            or sequence.num_steps_in_flight != depth
            or computed - sequence.num_confirmed_tokens != depth
            or sequence.num_confirmed_tokens < sequence.num_prompt_tokens
            or sequence.stop_token_ids
            or sequence.sampling.repetition_detection is not None
        ):
            return 0
        left = sequence.max_num_tokens - 1 - computed
        if left < num_steps:
            num_steps = left
    # Nobody may be preempted: so many steps at most, even if all need their new blocks at once.
    return min(num_steps, scheduler.kv.pool.num_available // num_running * scheduler.config.block_size)


def repeat(scheduler: Scheduler, first_planned: StepId, answers: Sequence[Sequence[int]]) -> DecodeRun:
    """Ends as many steps as each of `answers` has tokens, and plans as many. `answers`: by running sequence, in order."""
    running = tuple(scheduler.running)
    num_steps = len(answers[0])
    starts = tuple(sequence.num_computed_tokens for sequence in running)
    for sequence, tokens in zip(running, answers, strict=True):
        sequence.append_tokens(tokens)
    growths = scheduler.kv.advance(running, num_steps)
    return DecodeRun(num_steps, first_planned, running, starts, tuple(growths))
