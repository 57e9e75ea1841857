"""SimulatedWorker: carries out plans with fingerprints in the place of tensors.

The KV of a token is stood for by a fingerprint of all tokens up to it; the token sampled from a position is a function of
that fingerprint. So an answer depends on its prompt alone, whatever the batch, chunks, preemptions or cached prefixes, and
**a plan that reads KV which is not there, or is somebody else's, is caught in the act**: before computing a token the
worker compares what lies in the sequence's blocks with what ought to. It keeps to the same contract as the real worker:
plans carry differences, and a token may be one that an earlier step samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.base.ids import BlockId, SequenceId
from headrace.engine.mind.step import (
    BeamCandidates,
    NewSequence,
    SampledToken,
    ScheduledSequence,
    StepPlan,
    StepResult,
)

_MASK = (1 << 64) - 1
_EMPTY = -1
"""What lies in a block that nobody has written."""

TokenChooser = Callable[[int, NewSequence, int], int]
"""(fingerprint of all tokens so far, the sequence, how many it has generated) -> the next token's id."""


def fingerprint(parent: int, token_id: int) -> int:
    """64 bits that stand for `token_id` after everything that `parent` stands for (the SplitMix64 finaliser)."""
    mixed = (parent * 0x9E3779B97F4A7C15 + token_id + 0x632BE59BD9B4E019) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def choose_any_of(vocab_size: int) -> TokenChooser:
    """Tokens that look random, drawn by the fingerprint, the seed and the continuation's index."""

    def choose(state: int, sequence: NewSequence, num_generated: int) -> int:
        return fingerprint(state ^ sequence.sampling.seed, sequence.sample_index) % vocab_size

    return choose


def beam_candidates(state: int, sequence: NewSequence, num_generated: int, choose: TokenChooser) -> BeamCandidates:
    """Tokens and scores that look random, drawn by the fingerprint alone; as many as a real worker gives, where there are
    so many."""
    sequence = msgspec.structs.replace(sequence, sample_index=0)  # which of its sequences a beam lives in is no matter
    search = sequence.sampling.beam_search
    assert search is not None
    num_wanted = search.width + len({*sequence.eos_token_ids, *sequence.sampling.stop_token_ids})
    scores: dict[int, float] = {}
    for draw in range(4 * num_wanted):
        drawn = fingerprint(state, draw)
        token_id = choose(drawn, sequence, num_generated)
        if len(scores) < num_wanted and token_id not in scores:
            scores[token_id] = -0.5 - (drawn >> 40) % 1024 / 256
    if num_generated < sequence.sampling.min_tokens:
        scores = {
            token_id: score
            for token_id, score in scores.items()
            if token_id not in sequence.eos_token_ids and token_id not in sequence.sampling.stop_token_ids
        }
    ranked = sorted(scores, key=lambda token_id: (-scores[token_id], token_id))
    return BeamCandidates(tuple(ranked), tuple(scores[token_id] for token_id in ranked))


@dataclass(slots=True)
class _LiveSequence:
    facts: NewSequence
    token_ids: list[int]
    block_ids: list[BlockId] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    """Fingerprints of every beginning of `token_ids`, as far as computed."""


class SimulatedWorker:
    def __init__(self, *, num_blocks: int, block_size: int, choose: TokenChooser) -> None:
        self._block_size = block_size
        self._choose = choose
        self._kv = [[_EMPTY] * block_size for _ in range(num_blocks)]
        self._sequences: dict[SequenceId, _LiveSequence] = {}

    def read(self, block_ids: Sequence[BlockId]) -> list[list[int]]:
        """What lies in these blocks now: what a transfer carries."""
        return [list(self._kv[block_id]) for block_id in block_ids]

    def write(self, block_ids: Sequence[BlockId], content: Sequence[Sequence[int]]) -> None:
        """What a transfer brought."""
        for block_id, states in zip(block_ids, content, strict=True):
            self._kv[block_id] = list(states)

    def execute(self, plan: StepPlan) -> StepResult:
        for sequence_id in plan.released_sequence_ids:
            del self._sequences[sequence_id]
        for new in plan.new_sequences:
            assert new.sequence_id not in self._sequences, f"sequence {new.sequence_id} is new twice"
            self._sequences[new.sequence_id] = _LiveSequence(new, list(new.token_ids))
        for sequence_id, token_id in plan.chosen_tokens:
            self._sequences[sequence_id].token_ids.append(token_id)
        for source, target in plan.block_copies:
            self._kv[target] = list(self._kv[source])
        chosen = [self._advance(entry) for entry in plan.scheduled]
        return StepResult(
            plan.step_id,
            tuple(one if isinstance(one, SampledToken) else None for one in chosen),
            candidates=tuple(
                (entry.sequence_id, one)
                for entry, one in zip(plan.scheduled, chosen, strict=True)
                if isinstance(one, BeamCandidates)
            ),
        )

    def _advance(self, entry: ScheduledSequence) -> SampledToken | BeamCandidates | None:
        sequence = self._sequences[entry.sequence_id]
        sequence.block_ids[entry.block_offset : entry.block_offset + len(entry.block_ids)] = entry.block_ids
        end = entry.num_computed_tokens + entry.num_tokens
        assert end <= len(sequence.token_ids), "a token is computed before it is known"
        assert end <= len(sequence.block_ids) * self._block_size, "a token is computed that has no block"
        self._extend_states(sequence, end)
        for position in range(entry.num_computed_tokens):
            block_id, offset = self._place(sequence, position)
            assert self._kv[block_id][offset] == sequence.states[position], (
                f"sequence {entry.sequence_id} reads KV at position {position} (block {block_id}) that is not its own"
            )
        for position in range(entry.num_computed_tokens, end):
            block_id, offset = self._place(sequence, position)
            self._kv[block_id][offset] = sequence.states[position]
        if not entry.samples:
            return None
        num_generated = len(sequence.token_ids) - sequence.facts.num_prompt_tokens
        if sequence.facts.sampling.beam_search is not None:
            return beam_candidates(sequence.states[end - 1], sequence.facts, num_generated, self._choose)
        token_id = self._choose(sequence.states[end - 1], sequence.facts, num_generated)
        sequence.token_ids.append(token_id)
        return SampledToken(token_id)

    def _extend_states(self, sequence: _LiveSequence, end: int) -> None:
        states = sequence.states
        for position in range(len(states), end):
            states.append(fingerprint(states[-1] if states else 0, sequence.token_ids[position]))

    def _place(self, sequence: _LiveSequence, position: int) -> tuple[BlockId, int]:
        return sequence.block_ids[position // self._block_size], position % self._block_size
