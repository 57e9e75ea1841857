"""Which implementation of the ops serves which device, dtype and checkpoint, and why.

Knows names and what each implementation is good for; imports one only when it is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.protocol import Ops

OPS_NAMES = ("native", "torch")

_KEPT_AS_STORED = frozenset(
    {
        *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"),
        *("INT4_G32", "INT4_G64", "INT4_G128", "INT8_CHANNEL"),
    }
)
"""Quantised formats whose blocks the native kernels multiply with, several times faster than torch what they stand for."""

_PLAIN = frozenset({"F16", "BF16", "F32"})
"""What a checkpoint may leave unquantised, its embeddings say. Where all is plain, torch multiplies many rows faster."""

_PAGE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class OpsChoice:
    name: str
    remark: str
    """What a person who expected something else should know; empty if nothing."""
    make: Callable[[int], Ops]
    """By number of threads."""


def choose_ops(wanted: str, *, device: str, dtype: str, storages: frozenset[str], block_size: int) -> OpsChoice:
    """`wanted` and `dtype` may be `auto`. `storages`: how the checkpoint's matrices are stored.

    Native is chosen by itself where the checkpoint is made of formats that it keeps as stored, and no dtype is asked for by
    name: who names one wants that arithmetic throughout, and products with quantised weights are not in it. Raises
    ConfigurationError where what is wanted cannot be had.
    """
    obstacle = _native_obstacle(device, block_size)
    if wanted == "native":
        if obstacle:
            raise ConfigurationError(f"ops native cannot be had: {obstacle}; take ops torch, or auto")
        return _native(dtype, storages)
    if wanted == "torch":
        return _torch(device, dtype, remark="")
    if device != "cpu" or dtype != "auto":
        return _torch(device, dtype, remark="")
    others = sorted(storages - _KEPT_AS_STORED - (_PLAIN if storages & _KEPT_AS_STORED else frozenset()))
    if not obstacle and others:
        obstacle = f"they do not keep {', '.join(others)} as stored"
    return _torch(device, dtype, remark=f"without the native kernels: {obstacle}") if obstacle else _native(dtype, storages)


def _native_obstacle(device: str, block_size: int) -> str:
    """Why the native kernels cannot be used at all; empty if they can."""
    if device != "cpu":
        return "they compute on the CPU"
    try:
        from headrace.engine.ops.native import _kernels  # noqa: F401
    except ImportError:
        return "they were not built when this package was installed, for want of a C++ compiler"
    if block_size % _PAGE_TOKENS:
        return f"they need a block_size that is a multiple of {_PAGE_TOKENS}, not {block_size}"
    return ""


def _native(dtype: str, storages: frozenset[str]) -> OpsChoice:
    from headrace.engine.ops.native.ops import KERNEL_FORMATS, NativeOps

    # float32 unless asked: keys and values in bfloat16 move answers further than the quantised products themselves do.
    chosen = "float32" if dtype == "auto" else dtype
    others = sorted(storages - KERNEL_FORMATS)
    remark = f"{', '.join(others)} held as {chosen}" if others else ""
    return OpsChoice("native", remark, lambda num_threads: NativeOps(dtype=chosen, num_threads=num_threads))


def _torch(device: str, dtype: str, *, remark: str) -> OpsChoice:
    try:
        from headrace.engine.ops.torch.ops import TorchOps, best_dtype
    except ImportError as error:
        why = f" ({remark})" if remark else ""
        raise ConfigurationError(f"ops torch cannot be had: {error}{why}; install torch") from None
    chosen = best_dtype(device) if dtype == "auto" else dtype
    return OpsChoice("torch", remark, lambda num_threads: TorchOps(dtype=chosen, device=device, num_threads=num_threads))
