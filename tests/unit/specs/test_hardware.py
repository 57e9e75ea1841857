"""Devices and layouts as data: complete, and refused where they cannot be."""

import pytest

from headrace.base.errors import ConfigurationError
from headrace.specs.device import device, devices
from headrace.specs.parallel import ParallelSpec


@pytest.mark.parametrize("name", devices())
def test_every_device_is_a_plausible_accelerator(name: str) -> None:
    spec = device(name)
    assert 10 < spec.peak("bfloat16") / spec.memory_bandwidth < 500  # operations a byte: what balances them
    assert spec.memory_bytes > 20 * 2**30
    assert spec.scale_up_bandwidth >= spec.scale_out_bandwidth / 2
    for narrow, wide in (("fp8", "bfloat16"), ("fp4", "fp8")):
        assert spec.peak(narrow) >= spec.peak(wide), "narrower products are not slower"


def test_a_misspelt_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'h100_sxm'"):
        device("h100_smx")


def test_a_device_without_narrow_products_computes_in_wider_ones() -> None:
    assert device("a100_sxm").peak("fp4") == device("a100_sxm").peak("bfloat16") == 312e12


def test_experts_are_spread_over_what_attention_is_copied_to() -> None:
    layout = ParallelSpec(tensor_parallel_size=2, data_parallel_size=4, expert_parallel_size=4, pipeline_parallel_size=2)
    assert (layout.num_gpus, layout.num_gpus_per_stage, layout.moe_tensor_parallel_size) == (16, 8, 2)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size must be at least 1, not 0"),
        ({"tensor_parallel_size": 4, "expert_parallel_size": 3}, "must divide the 4 GPUs"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ParallelSpec(**sizes)
