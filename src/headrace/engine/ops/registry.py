"""Which implementation of the ops serves which device, dtype and checkpoint, and why.

Knows names and what each implementation is good for; imports one only when it is chosen.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.capabilities import NO_OVERRIDES, Overrides
from headrace.engine.ops.protocol import Ops
from headrace.engine.ops.storage import QUANTIZATIONS

_INT8_ROWS = "multiplied with as stored, rows rounded to int8: a quarter of the bytes, or half, that torch would read"

_NATIVE_BY_ITSELF: dict[str, str] = {
    **dict.fromkeys(("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"), _INT8_ROWS),
    **dict.fromkeys(("INT4_G32", "INT4_G64", "INT4_G128"), _INT8_ROWS),
    "INT8_CHANNEL": "multiplied with as stored, rows rounded to int8 with a scale each, as such checkpoints mean it",
    "BF16": "as stored, sums and activations in float32: no worse than torch's bfloat16 anywhere, and no torch to load",
    "F16": "as stored, sums and activations in float32",
    "F32": "as stored",
}
"""Storage formats of matrices for which native is chosen unasked, each with how it computes with them. Any other format is
held in the compute dtype: native does that where torch is not installed, and torch, whose products of such weights are no
slower, where it is."""

_EXACT_IN: dict[str, frozenset[str]] = {
    "float32": frozenset({"BF16", "F16", "F32"}),
    "bfloat16": frozenset({"BF16"}),
}
"""Formats whose products in native are in a dtype that was asked for by name, throughout."""

_PAGE_TOKENS = 16

_NATIVE_KV_DTYPE = "bfloat16"
"""What the native kernels hold keys and values in where nobody says: half of float32's memory, nearly twice as fast over
long contexts, at a cost in quality that drowns in that of the quantised products (docs/decisions/0017-kv-formats.md)."""

NO_KERNELS = "the native kernels were not built when headrace was installed, for want of a C++ compiler"

HOW_TO_COMPUTE = (
    "Either install a C++ compiler (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++; macOS: xcode-select "
    "--install) and install headrace again (pip install --force-reinstall --no-deps .), or install torch: "
    "pip install 'headrace[torch]'"
)


@dataclass(frozen=True, slots=True)
class OpsChoice:
    name: str
    remark: str
    """What a person who expected something else should know; empty if nothing."""
    make: Callable[[int], Ops]
    """By number of threads."""
    weights: str = "as stored"
    """For people: how the matrices are held."""


def has_kernels() -> bool:
    """Whether the extension is there, without loading it."""
    return find_spec("headrace.engine.ops.native._kernels") is not None


def has_torch() -> bool:
    """Whether torch is there, without loading it, which takes seconds."""
    return find_spec("torch") is not None


def check_something_computes(wanted: str) -> None:
    """Raises ConfigurationError, with what to install, where nothing here can compute at all."""
    if wanted == "torch" and not has_torch():
        raise ConfigurationError("ops torch cannot be had: torch is not installed. pip install 'headrace[torch]'")
    if not has_kernels() and not has_torch():
        raise ConfigurationError(f"nothing here can compute: {NO_KERNELS}, and torch is not installed. {HOW_TO_COMPUTE}")


def choose_ops(
    wanted: str,
    *,
    device: str,
    dtype: str,
    storages: frozenset[str],
    block_size: int,
    overrides: Overrides = NO_OVERRIDES,
) -> OpsChoice:
    """`wanted` and `dtype` may be `auto`. `storages`: how the checkpoint's matrices are stored.

    Native is chosen by itself where the checkpoint is made of formats in `_NATIVE_BY_ITSELF`; where a dtype is asked for by
    name, only of those whose products are in it, for who names one wants that arithmetic throughout. Without torch it is
    chosen wherever it can compute, and so it is where something is asked for that only native can do. Raises
    ConfigurationError where what is wanted cannot be had.
    """
    backend = overrides.attention_backend
    if backend != "auto":
        if wanted not in ("auto", backend):
            raise ConfigurationError(
                f"attention_backend {backend} is part of ops {backend}, but ops {wanted} is asked for; name one of them"
            )
        wanted = backend
    check_something_computes(wanted)
    if wanted == "torch":
        return _torch(device, dtype, overrides, remark="")
    obstacle = _native_obstacle(device, block_size)
    if wanted == "native":
        if obstacle:
            raise ConfigurationError(f"ops native cannot be had: {obstacle}; take ops torch, or auto")
        return _native(dtype, storages, overrides)
    if only_native := overrides.only_native_can(dtype):
        if obstacle:
            raise ConfigurationError(f"{only_native} needs the native kernels, and {obstacle}; leave it to auto")
        return _native(dtype, storages, overrides)
    if device != "cpu":
        return _torch(device, dtype, overrides, remark="")
    if obstacle:
        return _torch(device, dtype, overrides, remark=f"without the native kernels: {obstacle}")
    reservation = _reservation(dtype, storages)
    if not reservation:
        return _native(dtype, storages, overrides)
    if has_torch():
        return _torch(device, dtype, overrides, remark=f"without the native kernels: {reservation}")
    return _native(dtype, storages, overrides, remark=f"{reservation}; headrace[torch] would")


def _native_obstacle(device: str, block_size: int) -> str:
    """Why the native kernels cannot be used at all; empty if they can."""
    if device != "cpu":
        return "they compute on the CPU"
    try:
        from headrace.engine.ops.native import _kernels  # noqa: F401
    except ImportError as error:
        return f"they cannot be loaded ({error})" if has_kernels() else NO_KERNELS.replace("the native kernels", "they")
    if block_size % _PAGE_TOKENS:
        return f"they need a block_size that is a multiple of {_PAGE_TOKENS}, not {block_size}"
    return ""


def _reservation(dtype: str, storages: frozenset[str]) -> str:
    """Why native is not chosen by itself although it could serve; empty if it is."""
    if dtype != "auto":
        others = sorted(storages - _EXACT_IN[dtype])
        return f"they do not compute in {dtype} throughout with {', '.join(others)}" if others else ""
    others = sorted(storages - _NATIVE_BY_ITSELF.keys())
    return f"they do not keep {', '.join(others)} as stored" if others else ""


def _native(dtype: str, storages: frozenset[str], overrides: Overrides, *, remark: str = "") -> OpsChoice:
    from headrace.engine.ops.native.ops import KERNEL_FORMATS, NativeOps

    # float32 unless asked: with bfloat16 rows and queries are rounded too, and that moves answers.
    chosen = "float32" if dtype == "auto" else dtype
    overrides.check("native", device="cpu", dtype=chosen)
    kv_dtype = overrides.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = _NATIVE_KV_DTYPE if dtype == "auto" else chosen
    quantization = overrides.quantization
    if quantization == "auto":
        others = sorted(storages - KERNEL_FORMATS)
        remarks = [f"{', '.join(others)} held as {chosen}"] if others else []
        weights = "as stored"
    else:
        remarks, weights = [], f"as {QUANTIZATIONS.get(quantization, chosen)}"

    def make(num_threads: int) -> Ops:
        return NativeOps(dtype=chosen, num_threads=num_threads, kv_dtype=kv_dtype, quantization=quantization)

    return OpsChoice("native", "; ".join([*remarks, remark] if remark else remarks), make, weights)


def _torch(device: str, dtype: str, overrides: Overrides, *, remark: str) -> OpsChoice:
    why = f" ({remark})" if remark else ""
    try:
        from headrace.engine.ops.torch.ops import TorchOps, best_dtype
    except ImportError as error:
        raise ConfigurationError(f"ops torch cannot be had: {error}{why}; pip install 'headrace[torch]'") from None
    chosen = best_dtype(device) if dtype == "auto" else dtype
    overrides.check("torch", device=device, dtype=chosen)
    return OpsChoice(
        "torch", remark, lambda num_threads: TorchOps(dtype=chosen, device=device, num_threads=num_threads), f"as {chosen}"
    )
