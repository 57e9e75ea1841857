"""Scenarios drawn from a seed: an engine's limits, arrivals and disconnects that press on them.

Pools are small and prompts alike, so that preemption, eviction, copying and waiting for others' prefixes are common. The
same seed gives the same scenario everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId
from headrace.base.rng import Random, stream
from headrace.base.units import NANOS_PER_MILLI
from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import BeamSearch, SamplingParams
from headrace.sim.simulation import Arrival, Disconnect, Outcome, simulate
from headrace.sim.step_cost import LinearStepCost
from headrace.sim.worker import choose_any_of

VOCAB_SIZE = 512
EOS_TOKEN_ID = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    config: SchedulerConfig
    arrivals: tuple[Arrival, ...]
    disconnects: tuple[Disconnect, ...]

    def with_arrivals(self, arrivals: Sequence[Arrival]) -> "Scenario":
        """Of those alone."""
        names = {arrival.request.request_id for arrival in arrivals}
        return Scenario(self.config, tuple(arrivals), tuple(one for one in self.disconnects if one.request_id in names))


def draw_scenario(seed: int, *, num_requests: int) -> Scenario:
    limits = stream(seed, "limits")
    config = _draw_limits(limits)
    arrivals = tuple(_draw_arrivals(seed, config, num_requests))
    gone = stream(seed, "disconnects")
    patience_ms = gone.choice([20, 200, 2_000])
    disconnects = tuple(
        Disconnect(Nanos(arrival.at + gone.randrange(patience_ms * NANOS_PER_MILLI)), arrival.request.request_id)
        for arrival in arrivals
        if gone.random() < 0.2
    )
    return Scenario(config, arrivals, disconnects)


def run_scenario(seed: int, *, num_requests: int) -> Outcome:
    """Fails by an AssertionError where a rule is broken; then the seed and the number reproduce it."""
    return rehearse_scenario(draw_scenario(seed, num_requests=num_requests))


def rehearse_scenario(scenario: Scenario) -> Outcome:
    """The same of what was drawn, or of a part of it."""
    return simulate(
        config=scenario.config,
        cost=LinearStepCost(),
        choose=choose_any_of(VOCAB_SIZE),
        arrivals=scenario.arrivals,
        disconnects=scenario.disconnects,
        eos_token_ids=(EOS_TOKEN_ID,),
    )


def _draw_limits(rng: Random) -> SchedulerConfig:
    block_size = rng.choice([1, 4, 16])
    max_model_len = rng.choice([64, 256])
    smallest = -(-max_model_len // block_size)
    max_num_seqs = rng.choice([1, 4, 16])
    return SchedulerConfig(
        max_model_len=max_model_len,
        num_blocks=rng.choice([smallest, smallest * 2, smallest * 8]),
        block_size=block_size,
        max_num_batched_tokens=max_num_seqs * rng.choice([1, 4, 32]),
        max_num_seqs=max_num_seqs,
        max_tokens_per_prompt_chunk=rng.choice([1, 16, 256]),
        policy=rng.choice(list(SchedulingPolicy)),
        max_bypasses=rng.choice([0, 2, 64]),
        enable_prefix_caching=rng.random() < 0.75,
        max_steps_in_flight=rng.choice([1, 2, 4]),
        max_num_queued_requests=rng.choice([8, 10_000]),
        min_prompt_tokens_per_step=rng.choice([0, 1, max_num_seqs]),
    )


def _draw_arrivals(seed: int, config: SchedulerConfig, num_requests: int) -> list[Arrival]:
    rng = stream(seed, "arrivals")
    beginnings = [[rng.randrange(1, VOCAB_SIZE) for _ in range(config.max_model_len)] for _ in range(3)]
    mean_gap_ms = rng.choice([1, 20, 100])
    now = 0
    arrivals = []
    for index in range(num_requests):
        now += round(rng.expovariate(1 / mean_gap_ms) * NANOS_PER_MILLI)
        num_shared = rng.randrange(config.max_model_len // 2)
        num_own = rng.randrange(1, config.max_model_len // 4)
        prompt = (*rng.choice(beginnings)[:num_shared], *(rng.randrange(1, VOCAB_SIZE) for _ in range(num_own)))
        request = Request(
            request_id=RequestId(f"r{index}"),
            prompt_token_ids=prompt,
            sampling=SamplingParams(
                max_tokens=rng.randrange(1, config.max_model_len - len(prompt) + 1),
                seed=rng.randrange(1 << 32),
                beam_search=BeamSearch(width=min(3, config.max_num_seqs)) if rng.random() < 0.1 else None,
            ),
            num_sequences=rng.choice([1, 1, 1, 1, min(3, config.max_num_seqs)]),
            priority=rng.randrange(-1, 2) if config.policy is SchedulingPolicy.PRIORITY else 0,
            cache_salt=rng.choice(["", "", "tenant"]),
        )
        arrivals.append(Arrival(Nanos(now), request))
    return arrivals
