"""Minds so small that everything happens to them soon, and what a client may expect of any: for property tests.

Knows what a simulated worker answers. Does not know what is done to a mind.
"""

from hypothesis import strategies as st

from headrace.engine.mind.config import SchedulerConfig, SchedulingPolicy
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.sim.worker import fingerprint

VOCAB_SIZE = 20
EOS = 7

configs = st.builds(
    SchedulerConfig,
    max_model_len=st.just(40),
    num_blocks=st.sampled_from([10, 12, 20, 40]),
    block_size=st.just(4),
    max_num_batched_tokens=st.sampled_from([4, 7, 16, 64]),
    max_num_seqs=st.sampled_from([1, 3, 4]),
    max_tokens_per_prompt_chunk=st.sampled_from([1, 3, 8, 64]),
    min_prompt_tokens_per_step=st.sampled_from([0, 1, 2, 4]),
    policy=st.sampled_from(SchedulingPolicy),
    max_bypasses=st.sampled_from([0, 1, 5]),
    enable_prefix_caching=st.booleans(),
    max_steps_in_flight=st.sampled_from([1, 2, 3]),
)
prompts = st.builds(
    lambda start, body: (*((start,) * 9)[: len(body)], *body),
    st.integers(0, 1),
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
)
"""Few distinct beginnings, so that sharing is common; lengths on both sides of block boundaries."""
salts = st.sampled_from(["", "", "tenant"])


def _sampling(max_tokens: int, min_tokens: int, seed: int, ignore_eos: bool) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), seed=seed, ignore_eos=ignore_eos)


samplings = st.builds(
    _sampling, st.integers(1, 12), min_tokens=st.sampled_from([0, 0, 1, 4]), seed=st.integers(0, 1), ignore_eos=st.booleans()
)


def expected_answer(request: Request, sample_index: int) -> list[int]:
    """What a client gets if a mind with `EOS` did nothing else in the world."""
    sampling = request.sampling
    state = 0
    for token_id in request.prompt_token_ids:
        state = fingerprint(state, token_id)
    answer: list[int] = []
    while len(answer) < sampling.max_tokens:
        token_id = fingerprint(state ^ sampling.seed, sample_index) % VOCAB_SIZE
        answer.append(token_id)
        stops = token_id in sampling.stop_token_ids or (token_id == EOS and not sampling.ignore_eos)
        if stops and len(answer) > sampling.min_tokens:
            break
        state = fingerprint(state, token_id)
    return answer
