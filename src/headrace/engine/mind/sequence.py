"""SequenceState: the mutable progress of one continuation of one request.

    WAITING ──admit──> RUNNING ──stop, length, error, abort──> FINISHED
       │  │             │   ^ ^                                   ^
       │  │         preempt │ │                                   │
       │  │             v   │ └─loaded─┐                          │
       │  │          PREEMPTED ──abort─│──────────────────────────┤
       │  └─load───────────────> LOADING_KV ──abort, error────────┤
       └──abort───────────────────────────────────────────────────┘

Who is LOADING_KV holds blocks that are being filled from elsewhere; they stay its own until the transfer is over, even if it
ends before.

A beam of a beam search may also be PARKED: it neither runs nor waits in the queue until its search says how it goes on.

Knows counts and token ids. Does not know blocks' contents, other sequences' progress (but for the leader it forks from) or
what will be scheduled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from headrace.base.clock import Nanos
from headrace.base.ids import BlockHash, BlockId, SequenceId
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    LOADING_KV = "loading kv"
    RUNNING = "running"
    PREEMPTED = "preempted"
    PARKED = "parked"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SequenceState:
    sequence_id: SequenceId
    request: Request
    sample_index: int
    arrived: Nanos
    eos_token_ids: frozenset[int] = frozenset()
    """Tokens that end the text; empty if the request ignores them."""
    stop_token_ids: frozenset[int] = frozenset()
    """Those, and what the request stops at."""
    leader: "SequenceState | None" = None
    """The continuation of the same request whose blocks this one shares once they are computed: the first, for the prompt;
    in a beam search, the one it goes on from."""
    num_tokens_of_leader: int = 0
    """How many of its first tokens are the leader's too, as far as is known."""

    status: Status = Status.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    """The answer so far; the prompt stays where the request has it."""
    num_tokens: int = 0
    """Every token known: the prompt and the answer so far."""
    num_computed_tokens: int = 0
    """Tokens whose KV exists once all planned steps have run."""
    num_confirmed_tokens: int = 0
    """Tokens whose KV exists now: the steps that computed them are finished."""
    num_pending_tokens: int = 0
    """Tokens that steps in flight will sample."""
    num_steps_in_flight: int = 0
    """Planned steps that contain this sequence and are not finished; its blocks stay its own until there is none."""
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was found, not computed, when it first ran."""
    is_on_workers: bool = False
    """Whether a plan has told the workers of it, and none that they may forget it."""
    awaits_choice: bool = False
    """A beam that has given its candidates; which of them are taken is open until all of its search have."""
    may_load: bool = False
    """Its KV lies elsewhere, and neither was it asked for yet nor was it decided to do without."""
    is_loading: bool = False
    """Blocks of it are being filled from elsewhere: until that is over they are its own."""
    num_bypasses: int = 0
    """Later arrivals that were admitted while this one, at the head, waited for blocks."""
    num_preemptions: int = 0
    num_scored_tokens: int = 1
    """Prompt tokens whose log-probabilities were told, where asked for; the first has none."""

    block_ids: list[BlockId] = field(default_factory=list)
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks among the tokens known, as far as they were asked for."""
    root_hash: BlockHash | None = None
    """What the first of them is chained to."""
    num_published_blocks: int = 0
    """How many leading blocks are in the prefix cache or were found there."""

    scheduled: Nanos | None = None
    first_token: Nanos | None = None

    # What is asked at every step, copied out of the request once: attribute chains cost on the hot path.
    num_prompt_tokens: int = 0
    max_num_tokens: int = 0
    is_beam: bool = False
    """Its next token is chosen by a beam search, which compares it with others; so no step counts on it in advance."""
    sampling: SamplingParams = field(init=False)

    def __post_init__(self) -> None:
        self.sampling = self.request.sampling
        self.is_beam = self.sampling.beam_search is not None
        self.num_prompt_tokens = self.num_tokens = self.num_tokens_of_leader = len(self.request.prompt_token_ids)
        self.max_num_tokens = self.num_prompt_tokens + self.sampling.max_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every token known; the prompt itself where there is no answer yet."""
        prompt = self.request.prompt_token_ids
        return (*prompt, *self.output_token_ids) if self.output_token_ids else prompt

    def tokens_between(self, start: int, end: int) -> Sequence[int]:
        """Those at positions `start` .. `end - 1`."""
        first = self.num_prompt_tokens
        if start >= first:
            return self.output_token_ids[start - first : end - first]
        prompt = self.request.prompt_token_ids[start:end]
        return prompt if end <= first else [*prompt, *self.output_token_ids[: end - first]]

    def append_tokens(self, token_ids: Sequence[int]) -> None:
        self.output_token_ids.extend(token_ids)
        self.num_tokens += len(token_ids)

    @property
    def needs_prompt_scores(self) -> bool:
        """Whether the prompt must be computed, cached or not, because its log-probabilities are not all told. The
        continuations of one request share them: the first gets them."""
        is_asked = self.sampling.prompt_logprobs >= 0 and self.sample_index == 0
        return is_asked and self.num_scored_tokens < self.num_prompt_tokens

    @property
    def num_wanted_tokens(self) -> int:
        """How many tokens it is behind its own length. The length includes what steps in flight will sample, and ends
        where the answer must."""
        length = self.num_tokens + self.num_pending_tokens
        return (length if length < self.max_num_tokens else self.max_num_tokens - 1) - self.num_computed_tokens

    @property
    def needs_prompt_of_leader(self) -> bool:
        """Whether its leader is still computing the prompt that both share. A beam that is beyond it can do without."""
        leader = self.leader
        return (
            leader is not None
            and not (self.is_beam and self.num_output_tokens)
            and leader.status is not Status.FINISHED
            and leader.num_confirmed_tokens < leader.num_prompt_tokens
        )
