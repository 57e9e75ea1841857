"""Parameters are validated once, where they are made, and errors name the field."""

import math

import msgspec
import pytest

from headrace.base.errors import InvalidRequestError
from headrace.engine.mind.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("min_tokens", -1), ("min_tokens", 11), ("temperature", -0.1), ("temperature", math.nan),
        ("temperature", math.inf), ("top_p", 0.0), ("top_p", 1.01), ("top_k", -2), ("min_p", -0.1), ("min_p", 1.1),
        ("repetition_penalty", 0.0), ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("logprobs", 21),
        ("logit_bias", {3: 101.0}), ("logit_bias", {-1: 0.0}), ("stop_token_ids", (-5,)), ("seed", 2**64),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        SamplingParams(**{"max_tokens": 10, field: value})  # type: ignore[arg-type]
    assert caught.value.param == field


def test_a_token_id_outside_the_vocabulary_is_refused() -> None:
    params = SamplingParams(max_tokens=1, logit_bias={7: 1.0})
    params.check_vocabulary(8)
    with pytest.raises(InvalidRequestError, match="vocabulary ends at 6"):
        params.check_vocabulary(7)


def test_parameters_cross_a_process_boundary_unchanged() -> None:
    params = SamplingParams(max_tokens=3, temperature=0.5, seed=2**64 - 1, logit_bias={5: -1.5}, stop_token_ids=(1, 2))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
