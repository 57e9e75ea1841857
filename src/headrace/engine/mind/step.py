"""StepPlan and StepResult: the two messages of a step, between the mind that plans and whatever carries it out.

A plan is a map from sequences to token counts. It has no phases: a prompt's chunk, a decode step and a recomputation
after preemption differ only in their numbers. Plans carry differences: the worker keeps each live sequence's tokens and
block table, and a plan says what is new. Workers execute plans in order of `step_id`.
"""

import msgspec

from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import StructuredOutput


class NewSequence(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that the worker does not hold: first seen, or back after preemption."""

    sequence_id: SequenceId
    sample_index: int
    """Which of the request's `n` continuations this is; with the seed it names the random stream."""
    num_prompt_tokens: int
    """The first so many of `token_ids` are the prompt; the rest were generated before a preemption."""
    token_ids: tuple[int, ...]
    """Every token known so far."""
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...]
    """Tokens that end the sequence and may not be chosen before `min_tokens`; empty if it ignores end-of-text."""
    structured_output: StructuredOutput | None = None
    """The form that the generated tokens must have."""


class ScheduledSequence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one sequence does in this step."""

    sequence_id: SequenceId
    num_computed_tokens: int
    """Tokens whose KV exists when the step begins: the first position computed."""
    num_tokens: int
    """Tokens computed in this step, at least 1. The last may be one that an earlier step, still in flight, samples."""
    samples: bool
    """Whether the step ends at the sequence's last token, so that its logits choose the next one."""
    block_offset: int
    """Where in the sequence's block table `block_ids` go, replacing what was there."""
    block_ids: tuple[BlockId, ...]
    """Blocks that are new to the worker; all of them, from offset 0, for a NewSequence."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    step_id: StepId
    scheduled: tuple[ScheduledSequence, ...]
    new_sequences: tuple[NewSequence, ...] = ()
    released_sequence_ids: tuple[SequenceId, ...] = ()
    """Finished, aborted or preempted since the last plan: the worker forgets them before it begins the step."""
    block_copies: tuple[tuple[BlockId, BlockId], ...] = ()
    """(from, to) over all layers, performed in order before anything is computed: copy-on-write."""
    chosen_tokens: tuple[tuple[SequenceId, int], ...] = ()
    """Next tokens of sequences that the worker holds, where a beam search chose them: the worker appends them before it
    begins the step."""

    @property
    def num_tokens(self) -> int:
        return sum([entry.num_tokens for entry in self.scheduled])


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural log-probabilities at one position, before temperature and penalties, as vLLM's `raw_logprobs`."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most probable token."""
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class SampledToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    token_id: int
    logprobs: TokenLogprobs | None = None


class BeamCandidates(msgspec.Struct, frozen=True, array_like=True):
    """What a beam's next token may be."""

    token_ids: tuple[int, ...]
    """Most probable first, the lowest id first among equals: as many as its search can need. Empty where the request's
    conditions allow none."""
    scores: tuple[float, ...]
    """Natural log-probabilities among what the request's conditions (bans, biases, penalties) leave."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of them, where the request asked for log-probabilities."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of a stretch of one sequence's prompt."""

    sequence_id: SequenceId
    first_position: int
    """Where in the prompt the first entry's token stands, at least 1: nothing precedes the first token."""
    entries: tuple[TokenLogprobs, ...]


NOTHING_LEFT = "the request's conditions together allow no token of the model here"
NOTHING_ALLOWED = "the form of the answer (structured output) allows no token of the model here"
FORM_ENDED = "the form of the answer cannot be followed any further: "
"""Begins a failure; why follows."""


def is_requests_own(failure: str) -> bool:
    """Whether a sequence failed by what its request asks for: any engine would say so."""
    return failure in (NOTHING_LEFT, NOTHING_ALLOWED) or failure.startswith(FORM_ENDED)


class StepResult(msgspec.Struct, frozen=True, array_like=True):
    step_id: StepId
    sampled: tuple[SampledToken | None, ...]
    """One per entry of the plan's `scheduled`, in its order; None where `samples` is false, where it failed, and for
    beams."""
    failures: tuple[tuple[SequenceId, str], ...] = ()
    """Sequences whose numbers are not usable (not finite), or whose answer cannot have its form, and why. They end; the
    others go on."""
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    """Of the prompts' tokens that this step computed, where they were asked for."""
    candidates: tuple[tuple[SequenceId, BeamCandidates], ...] = ()
    """Of the beams whose entries say that they sample."""
