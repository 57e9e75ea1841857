"""The fitted kernel curves that come with the package (`gpu_kernels.json`), by device. Knows where they are and which stand
in where none were measured; knows no model."""

from functools import cache
from importlib import resources

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.sim.cost import kernels

_STAND_INS = {
    "b300_sxm": "b200_sxm",
    "gb200": "b200_sxm",
    "gb300": "b200_sxm",
    "h100_pcie": "h100_sxm",
    "l4": "l40s",
}
"""Devices whose kernels nobody has published: the curves of a relative, with the peaks of their own."""

EXPERT_KERNELS = {
    "ampere": {"bfloat16": "bfloat16/fused_moe"},
    "ada": {
        "bfloat16": "bfloat16/unquantizedfusedmoe_triton_tritonexperts",
        "fp8": "fp8/modeloptfp8moe_triton_tritonexperts",
        "fp8_block": "fp8_block/fp8moe_triton_tritonexperts",
        "int4": "int4_wo/compressedtensorswna16marlinmoe_marlin_marlinexperts",
        "mxfp4": "w4a16_mxfp4/gptossmxfp4moe_marlin_marlinexperts",
    },
    "hopper": {
        "bfloat16": "bfloat16/unquantizedfusedmoe_triton_tritonexperts",
        "fp8": "fp8/modeloptfp8moe_flashinfer_cutlass_flashinferexperts",
        "fp8_block": "fp8_block/fp8moe_triton_tritonexperts",
        "int4": "int4_wo/compressedtensorswna16marlinmoe_marlin_marlinexperts",
        "mxfp4": "w4a16_mxfp4/gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic",
    },
    "blackwell": {
        "bfloat16": "bfloat16/unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts",
        "fp8": "fp8/modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
        "fp8_block": "fp8_block/fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic",
        "int4": "int4_wo/compressedtensorswna16marlinmoe_marlin_marlinexperts",
        "nvfp4": "nvfp4/compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic",
        "mxfp4": "w4a8_mxfp4_mxfp8/mxfp4moe_flashinfer_trtllm_mxfp4_mxfp8_trtllmmxfp4expertsmodular",
    },
}
"""Which of the measured kernels serving engines choose for experts, by architecture and weight dtype."""


class DeviceCurves(msgspec.Struct, frozen=True, kw_only=True):
    """All curves of one device, by kind; a kind that was not measured is absent."""

    gemm: dict[str, kernels.Gemm]
    """By dtype."""
    decode_attention: dict[str, kernels.DecodeAttention]
    """By `KV dtype/head size`."""
    prefill_attention: dict[str, kernels.PrefillAttention]
    latent_decode: dict[str, kernels.LatentAttention] = {}
    """By `KV dtype/projections' dtype`."""
    latent_prefill: dict[str, kernels.LatentAttention] = {}
    experts: dict[str, kernels.Experts] = {}
    """By `dtype/kernel`."""
    collective: dict[str, kernels.Collective] = {}
    """By `operation/GPUs`."""


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    devices: dict[str, DeviceCurves]


@cache
def _all_curves() -> dict[str, DeviceCurves]:
    content = resources.files("headrace.sim.cost").joinpath("gpu_kernels.json").read_bytes()
    return msgspec.json.decode(content, type=_Document).devices


def curves_of(device_name: str) -> DeviceCurves:
    """Raises ConfigurationError where neither the device nor a relative of it was measured."""
    known = _all_curves()
    name = _STAND_INS.get(device_name, device_name)
    if name not in known:
        raise ConfigurationError(
            f"no kernel of device {device_name!r} was measured; there are curves for {', '.join([*known, *_STAND_INS])}"
        )
    return known[name]


def was_measured(device_name: str) -> bool:
    """Whether the curves are the device's own."""
    return device_name in _all_curves()
