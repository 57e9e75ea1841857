"""AnswerWorker: carries out plans without computing anything: an answer's tokens are counted up from a start of its own.

So an answer is known beforehand and differs from all others, and a repeated request gets the same one. It checks nothing:
`SimulatedWorker` does that, at a cost that grows with every token of context.
"""

from collections.abc import Sequence

from headrace.base.ids import SequenceId
from headrace.engine.mind.sequence import SequenceState
from headrace.engine.mind.step import SampledToken, ScheduledSequence, StepPlan, StepResult

_VOCAB_SIZE = 1 << 31
_STRIDE = 0x9E3779B1
"""An odd number without a pattern: seeds that are neighbours have answers that are not."""


class AnswerWorker:
    def __init__(self, vocab_size: int = _VOCAB_SIZE) -> None:
        """The default is far more than any model has, so that no answer is the beginning of another by chance."""
        self._vocab_size = vocab_size
        self._starts: dict[SequenceId, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for sequence_id in plan.released_sequence_ids:
            self._starts.pop(sequence_id, None)
        for new in plan.new_sequences:
            self._starts[new.sequence_id] = self._start(new.sampling.seed, new.sample_index)
        return StepResult(plan.step_id, tuple([self._sample(entry) for entry in plan.scheduled]))

    def foretell(self, sequence: SequenceState, count: int) -> Sequence[int]:
        """The tokens that come next."""
        start = self._start(sequence.sampling.seed, sequence.sample_index) + sequence.num_tokens
        first = start % self._vocab_size
        if first + count <= self._vocab_size:
            return range(first, first + count)
        return [(start + index) % self._vocab_size for index in range(count)]

    def _start(self, seed: int, sample_index: int) -> int:
        return (seed + (sample_index << 16)) * _STRIDE % self._vocab_size

    def _sample(self, entry: ScheduledSequence) -> SampledToken | None:
        if not entry.samples:
            return None
        position = entry.num_computed_tokens + entry.num_tokens
        return SampledToken((self._starts[entry.sequence_id] + position) % self._vocab_size)
