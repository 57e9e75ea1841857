"""BeamSearch: which continuations of one prompt are kept, by the sum of their tokens' log-probabilities.

At every length the `width` most probable beams go on. One that ends competes with the answers that have ended before it by
its score, which is that sum over its length to the power of `length_penalty`. The rules are those of `transformers`
(`num_beams`), equal scores apart: there the earlier answer, the earlier beam and the lower token id win.

Knows scores and tokens. Does not know blocks, or when beams run: a beam that falls behind is waited for.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.engine.mind.sampling_params import BeamSearch, EarlyStopping
from headrace.engine.mind.sequence import SequenceState
from headrace.engine.mind.step import BeamCandidates, TokenLogprobs
from headrace.engine.mind.update import FinishReason


class BeamAnswer(NamedTuple):
    """A beam that has ended."""

    score: float
    token_ids: tuple[int, ...]
    """What was generated, the token that ended it included."""
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    """STOP or LENGTH."""


class Move(NamedTuple):
    """How one sequence goes on."""

    sequence: SequenceState
    parent: SequenceState
    """Itself, or the one whose place it takes."""
    token_id: int


@dataclass(slots=True, eq=False)
class _Beam:
    """What is known of one sequence's present continuation."""

    sequence: SequenceState
    is_alive: bool = False
    """A continuation is kept in it. At first, one is: the prompt itself."""
    rank: int = 0
    """Its place among the beams when they were last compared: in which sequence a beam lives decides nothing."""
    score: float = 0.0
    """Sum of the log-probabilities of its tokens."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    candidates: BeamCandidates | None = None


class _Candidate(NamedTuple):
    score: float
    parent: _Beam
    place: int
    """In the parent's candidates."""
    token_id: int
    logprobs: tuple[TokenLogprobs, ...]


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The search of one request. `sequences`: as many as it is wide; the first begins, the others join when it forks."""

    sequences: list[SequenceState]
    search: BeamSearch = field(init=False)
    answers: list[BeamAnswer] = field(default_factory=list)
    """The best so far, best first; never more than the search is wide."""
    given_up: set[int] = field(default_factory=set)
    """Places among the answers that the client no longer wants."""
    is_over: bool = False
    _beams: list[_Beam] = field(init=False)

    def __post_init__(self) -> None:
        search = self.sequences[0].sampling.beam_search
        assert search is not None and len(self.sequences) == search.width
        self.search = search
        self._beams = [_Beam(sequence) for sequence in self.sequences]
        self._beams[0].is_alive = True

    def take(self, sequence: SequenceState, candidates: BeamCandidates) -> None:
        """What a beam's next token may be; it is chosen when all beams have told theirs."""
        beam = self._beams[self.sequences.index(sequence)]
        assert beam.is_alive and beam.candidates is None
        beam.candidates = candidates
        sequence.awaits_choice = True

    @property
    def is_ready(self) -> bool:
        return all(beam.candidates is not None for beam in self._beams if beam.is_alive)

    @property
    def awaited(self) -> list[SequenceState]:
        """Those that have not told their candidates yet."""
        return [beam.sequence for beam in self._beams if beam.is_alive and beam.candidates is None]

    def choose(self) -> list[Move]:
        """Which continuations go on, and in which sequence: none if the search is over. Forks come first, so that a parent
        is still where its children begin. Who is not named has no part in it any more."""
        kept = self._rank()
        moves = [] if self.is_over else self._place(kept)
        for beam in self._beams:
            beam.candidates = None
            beam.sequence.awaits_choice = False
        return moves

    def _rank(self) -> list[_Candidate]:
        """The candidates that go on, best first. Takes in the answers that end here, and whether the search does."""
        sampling = self.sequences[0].sampling
        num_tokens = next(beam.sequence.num_output_tokens for beam in self._beams if beam.is_alive) + 1
        width, penalty = self.search.width, self.search.length_penalty
        is_last = num_tokens == sampling.max_tokens
        kept: list[_Candidate] = []
        for rank, candidate in enumerate(self._candidates()):
            stops = candidate.token_id in self.sequences[0].stop_token_ids and num_tokens > sampling.min_tokens
            if stops or is_last:
                # Those further down exist only so that enough are left that go on.
                if rank < width:
                    reason = FinishReason.STOP if stops else FinishReason.LENGTH
                    self._end(candidate, candidate.score / num_tokens**penalty, reason)
            elif len(kept) < width:
                kept.append(candidate)
            if rank >= width and len(kept) == width:
                break
        self.is_over = not kept or self._cannot_improve(kept[0].score, num_tokens)
        return kept

    def _candidates(self) -> list[_Candidate]:
        found = [
            _Candidate(beam.score + score, beam, place, token_id, beam.candidates.logprobs)
            for beam in sorted(self._beams, key=lambda beam: beam.rank)
            if beam.candidates is not None
            for place, (token_id, score) in enumerate(zip(beam.candidates.token_ids, beam.candidates.scores, strict=True))
        ]
        found.sort(key=lambda candidate: -candidate.score)  # stable: among equals the order is that of beams and tokens
        return found

    def _end(self, candidate: _Candidate, score: float, reason: FinishReason) -> None:
        parent = candidate.parent
        answered = parent.sequence.output_token_ids
        logprobs = (*parent.logprobs, *candidate.logprobs[candidate.place : candidate.place + 1])
        self.answers.append(BeamAnswer(score, (*answered, candidate.token_id), logprobs, reason))
        self.answers.sort(key=lambda answer: -answer.score)
        del self.answers[self.search.width :]

    def _cannot_improve(self, best_running: float, num_tokens: int) -> bool:
        """Whether the answers are what they will be, as far as the request wants that known. `best_running`: sum of
        log-probabilities, over so many tokens."""
        search = self.search
        if len(self.answers) < search.width:
            return False
        if search.early_stopping is EarlyStopping.WHEN_FULL:
            return True
        is_patient = search.early_stopping is EarlyStopping.WHEN_HOPELESS and search.length_penalty > 0
        length = self.sequences[0].sampling.max_tokens if is_patient else num_tokens
        return bool(best_running / length**search.length_penalty <= self.answers[-1].score)

    def _place(self, kept: list[_Candidate]) -> list[Move]:
        """Each parent's best child stays in the parent's sequence, so that nothing moves; the others take sequences that
        have no child, those that run before those that do not."""
        stays: dict[int, _Candidate] = {}
        forks: list[_Candidate] = []
        for candidate in kept:
            if id(candidate.parent) in stays:
                forks.append(candidate)
            else:
                stays[id(candidate.parent)] = candidate
        free = [beam for beam in self._beams if id(beam) not in stays]
        free.sort(key=lambda beam: not beam.sequence.block_ids)
        placed = [*zip(free, forks, strict=False), *((candidate.parent, candidate) for candidate in stays.values())]
        moves = [Move(beam.sequence, candidate.parent.sequence, candidate.token_id) for beam, candidate in placed]
        logprobs = [
            (*candidate.parent.logprobs, *candidate.logprobs[candidate.place : candidate.place + 1])
            for _, candidate in placed
        ]
        for beam in self._beams:
            beam.is_alive = False
        for (beam, candidate), told in zip(placed, logprobs, strict=True):
            beam.is_alive, beam.rank, beam.score, beam.logprobs = True, kept.index(candidate), candidate.score, told
        return moves
