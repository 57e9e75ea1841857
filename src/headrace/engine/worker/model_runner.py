"""ModelRunner: carries out one StepPlan after another: keeps the live sequences, lays the step out, runs the model.

Knows plans, sequences and block tables. Does not know how anything is computed (ops), chosen (sampler) or scheduled (the
mind). Plans may be made before the previous step's outcome is known: sampled tokens are therefore kept here.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.base.ids import BlockId, SequenceId
from headrace.engine.mind.step import (
    BeamCandidates,
    PromptLogprobs,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from headrace.engine.ops.protocol import Ops, Placement, SequenceSpan, Tensor
from headrace.engine.worker.constraint import Constraint, Masks
from headrace.engine.worker.graph import Graph
from headrace.engine.worker.kv_cache import KVCache
from headrace.engine.worker.running_sequence import NOT_FINITE, RunningSequence

_SCORED_AT_ONCE = 64
"""Positions of a prompt whose logits exist at once."""


class _Stretch(NamedTuple):
    """Consecutive rows of a step, each of which precedes a token of one prompt."""

    sequence_id: SequenceId
    first_position: int
    """Of the first such token in the prompt."""
    first_row: int
    num_rows: int


class TokenSampler(Protocol):
    """What it asks of a sampler; which one depends on where the ops leave their logits."""

    def sample(self, logits: Tensor, sequences: Sequence[RunningSequence]) -> list[SampledToken | BeamCandidates | str]:
        """One per row of `logits`: the token, a beam's candidates, or why there is none."""
        ...

    def given_logprobs(self, logits: Tensor, token_ids: Sequence[int], num_alternatives: int) -> list[TokenLogprobs]:
        """Of tokens that were given, not chosen: each row of `logits` precedes its token."""
        ...


class ModelRunner:
    def __init__(
        self,
        ops: Ops,
        graph: Graph,
        kv_cache: KVCache,
        sampler: TokenSampler,
        *,
        block_size: int,
        windows: Sequence[int | None],
    ) -> None:
        """`windows`: the distinct windows of the model's layers."""
        self._ops = ops
        self._graph = graph
        self._kv_cache = kv_cache
        self._block_size = block_size
        self._windows = windows
        self._sampler = sampler
        self._sequences: dict[SequenceId, RunningSequence] = {}
        self._suspect_blocks: set[BlockId] = set()
        """Of sequences that ended before, or by, finding out whether their numbers are finite."""
        self._due: list[Constraint] = []
        """Of answers that have gone on by a token, whose next masks nobody has been asked for."""
        self.masks: Masks | None = None
        """Where answers may have a form; given once the vocabulary is known."""

    def execute(self, plan: StepPlan) -> StepResult:
        self.prepare()
        self._apply_differences(plan)
        computed = self._order(plan.scheduled)
        sampled: list[SampledToken | None] = [None] * len(plan.scheduled)
        candidates: list[tuple[SequenceId, BeamCandidates]] = []
        scores: tuple[PromptLogprobs, ...] = ()
        if computed:
            sampling = [i for i in computed if plan.scheduled[i].samples]
            inputs = self._inputs(plan, computed)
            stretches = self._prompt_stretches(plan, computed)
            if stretches:
                residual = self._graph.residual(*inputs)
                scores = tuple(self._score(residual, stretch) for stretch in stretches)
                logits = self._graph.logits_of(residual, inputs[-1])
            else:
                logits = self._graph.logits(*inputs)
            self._sample(plan, sampling, logits, sampled, candidates)
        failures = self._failures(plan)
        return StepResult(plan.step_id, tuple(sampled), failures, scores, tuple(candidates))

    @property
    def num_sequences(self) -> int:
        return len(self._sequences)

    # The plan's differences

    def _apply_differences(self, plan: StepPlan) -> None:
        for sequence_id in plan.released_sequence_ids:
            sequence = self._sequences.pop(sequence_id)
            if not sequence.is_known_finite:
                self._suspect_blocks.update(sequence.block_table.ids)
        for new in plan.new_sequences:
            assert new.sequence_id not in self._sequences, f"sequence {new.sequence_id} is here already"
            self._sequences[new.sequence_id] = RunningSequence(new)
        new_sequences = [self._sequences[new.sequence_id] for new in plan.new_sequences]
        self._find_masks([s.constraint for s in new_sequences if s.constraint is not None])
        for sequence_id, token_id in plan.chosen_tokens:
            self._sequences[sequence_id].token_ids.append(token_id)
        for entry in plan.scheduled:
            if entry.block_ids:
                self._sequences[entry.sequence_id].block_table.write(entry.block_offset, entry.block_ids)
                if self._suspect_blocks:
                    self._clean_blocks_to_fill(entry)
        if plan.block_copies:
            self._kv_cache.copy_blocks(plan.block_copies)

    def _clean_blocks_to_fill(self, entry: ScheduledSequence) -> None:
        """What a sequence will write block by block must not hold, in places not written yet, what no mask can hide: a
        weight of 0 times NaN is NaN. Blocks that it takes over with their contents stay as they are: if those are not
        finite, this sequence ends as the one that computed them did."""
        first_to_fill = -(-entry.num_computed_tokens // self._block_size)
        to_fill = entry.block_ids[max(0, first_to_fill - entry.block_offset) :]
        suspects = [block_id for block_id in to_fill if block_id in self._suspect_blocks]
        if suspects:
            self._kv_cache.make_finite(suspects)
            self._suspect_blocks.difference_update(suspects)

    # The step's tensors

    def _order(self, scheduled: Sequence[ScheduledSequence]) -> list[int]:
        """Entries that compute something, in the order that the ops want."""
        live = [i for i, entry in enumerate(scheduled) if not self._sequences[entry.sequence_id].failure]
        return sorted(live, key=lambda i: _place_in_step(scheduled[i]))  # stable: otherwise the plan's order

    def _inputs(self, plan: StepPlan, computed: Sequence[int]) -> tuple[Tensor, Placement, Tensor]:
        """What the graph takes: token ids, where they stand, and the rows whose logits are wanted."""
        token_ids: list[int] = []
        spans: list[SequenceSpan] = []
        logit_rows: list[int] = []
        for i in computed:
            entry = plan.scheduled[i]
            sequence = self._sequences[entry.sequence_id]
            end = entry.num_computed_tokens + entry.num_tokens
            assert end <= len(sequence.token_ids), f"sequence {entry.sequence_id} has no token {end - 1} to compute"
            assert not entry.samples or end == len(sequence.token_ids), "a sequence samples after its last token"
            token_ids.extend(sequence.token_ids[entry.num_computed_tokens : end])
            spans.append(SequenceSpan(entry.num_computed_tokens, entry.num_tokens, sequence.block_table.ids))
            if entry.samples:
                logit_rows.append(len(token_ids) - 1)
        placement = self._ops.place(spans, block_size=self._block_size, windows=self._windows)
        return self._ops.token_ids(token_ids), placement, self._ops.row_ids(logit_rows)

    # The prompts' log-probabilities

    def _prompt_stretches(self, plan: StepPlan, computed: Sequence[int]) -> list[_Stretch]:
        """Where the step computes what precedes tokens of a prompt whose log-probabilities are told."""
        stretches: list[_Stretch] = []
        first_row = 0
        for i in computed:
            entry = plan.scheduled[i]
            sequence = self._sequences[entry.sequence_id]
            start = entry.num_computed_tokens
            num_rows = min(entry.num_tokens, sequence.num_prompt_tokens - 1 - start)
            if sequence.scores_prompt and num_rows > 0:
                stretches.append(_Stretch(entry.sequence_id, start + 1, first_row, num_rows))
            first_row += entry.num_tokens
        return stretches

    def _score(self, residual: Tensor, stretch: _Stretch) -> PromptLogprobs:
        """In pieces: the logits of a whole prompt would take gigabytes."""
        sequence = self._sequences[stretch.sequence_id]
        entries: list[TokenLogprobs] = []
        for offset in range(0, stretch.num_rows, _SCORED_AT_ONCE):
            size = min(_SCORED_AT_ONCE, stretch.num_rows - offset)
            row, position = stretch.first_row + offset, stretch.first_position + offset
            logits = self._graph.logits_of(residual, self._ops.row_ids(list(range(row, row + size))))
            tokens = sequence.token_ids[position : position + size]
            entries += self._sampler.given_logprobs(logits, tokens, sequence.sampling.prompt_logprobs)
        if not all(math.isfinite(entry.logprob) for entry in entries):
            _fail(sequence, NOT_FINITE)
        return PromptLogprobs(stretch.sequence_id, stretch.first_position, tuple(entries))

    # The step's outcome

    def _sample(
        self,
        plan: StepPlan,
        sampling: Sequence[int],
        logits: Tensor,
        sampled: list[SampledToken | None],
        candidates: list[tuple[SequenceId, BeamCandidates]],
    ) -> None:
        sequences = [self._sequences[plan.scheduled[i].sequence_id] for i in sampling]
        if not sequences:
            return
        for i, sequence, token in zip(sampling, sequences, self._sampler.sample(logits, sequences), strict=True):
            if isinstance(token, str):
                _fail(sequence, token)
            elif isinstance(token, BeamCandidates):  # the plan says later which of them it was
                sequence.is_known_finite = True
                candidates.append((plan.scheduled[i].sequence_id, token))
            else:
                sequence.token_ids.append(token.token_id)
                sequence.is_known_finite = True
                sampled[i] = token
                if sequence.constraint is not None:
                    sequence.constraint.take(token.token_id)
        self._due += [s.constraint for s in sequences if s.constraint is not None and not s.failure and s.goes_on]

    def prepare(self) -> None:
        """What the next step needs and the answer to this one did not have to wait for: the next tokens' masks are found
        while that step runs."""
        due, self._due = self._due, []
        self._find_masks(due)

    def _find_masks(self, constraints: Sequence[Constraint]) -> None:
        if constraints:
            assert self.masks is not None, "an answer must have a form, and nobody compiles forms here"
            self.masks.prepare(constraints)

    def _failures(self, plan: StepPlan) -> tuple[tuple[SequenceId, str], ...]:
        ids = dict.fromkeys(entry.sequence_id for entry in plan.scheduled)
        return tuple((i, self._sequences[i].failure) for i in ids if self._sequences[i].failure)


def _fail(sequence: RunningSequence, reason: str) -> None:
    sequence.failure = reason
    sequence.is_known_finite = False


def _place_in_step(entry: ScheduledSequence) -> tuple[bool, int]:
    """Those of one token first, the longest of them at the front."""
    return (True, 0) if entry.num_tokens > 1 else (False, -entry.num_computed_tokens)
