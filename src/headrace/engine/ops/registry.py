"""Which implementation of the ops serves which device, dtype and checkpoint, and why.

Knows names and what each implementation is good for; imports one only when it is chosen.

    implementation  devices    attention                 keys and values in              weights requantised  batch-invariant
    native          cpu        paged, one kernel for     float32, bfloat16, int8,        to q8_0, q4_0, q4_1  by construction
                               prompts and decoding      fp8_e4m3
    torch           cpu, cuda  the reference: contexts   the compute dtype               not                  on the cpu
                               gathered and padded
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.base.errors import ConfigurationError, nearest
from headrace.engine.ops.protocol import Ops
from headrace.engine.ops.storage import QUANTIZATIONS


@dataclass(frozen=True, slots=True)
class Capability:
    """What one implementation of the ops can do, as the table above has it."""

    devices: tuple[str, ...]
    attention: str
    """For people."""
    kv_dtypes: tuple[str, ...]
    """Beside the compute dtype."""
    requantises: bool
    """Whether weights may be held in another format than the checkpoint's: see QUANTIZATIONS."""
    batch_invariant_on: tuple[str, ...]
    """Devices on which a row's bits depend on its own sequence alone."""


CAPABILITIES: dict[str, Capability] = {
    "native": Capability(
        devices=("cpu",),
        attention="paged kernels",
        kv_dtypes=("float32", "bfloat16", "int8", "fp8_e4m3"),
        requantises=True,
        batch_invariant_on=("cpu",),  # every sum has one order, and a context is always summed in the same parts
    ),
    "torch": Capability(
        devices=("cpu", "cuda"),
        attention="padded gathers",
        kv_dtypes=(),
        requantises=False,
        batch_invariant_on=("cpu",),  # a GPU's libraries choose their kernels by the number of rows
    ),
}

OPS_NAMES = tuple(CAPABILITIES)
ATTENTION_BACKENDS = ("auto", *CAPABILITIES)
"""Attention runs where everything else does: naming its backend names the ops."""

KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "int8", "fp8", "fp8_e4m3")
_ALIASES = {"fp8": "fp8_e4m3"}

QUANTIZATION_NAMES = ("auto", "none", *QUANTIZATIONS)
"""`auto` keeps weights as they are stored where there are kernels for that; `none` turns them into the compute dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a person may ask for by name instead of leaving it to this table."""

    attention_backend: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str = "auto"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        for name, known in (
            ("attention_backend", ATTENTION_BACKENDS),
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("quantization", QUANTIZATION_NAMES),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ConfigurationError(f"{name} {value!r} is none of {', '.join(known)}{nearest(value, known)}")

    @property
    def kv_dtype(self) -> str:
        return _ALIASES.get(self.kv_cache_dtype, self.kv_cache_dtype)


NO_OVERRIDES = Overrides()

_KEPT_AS_STORED = frozenset({"Q4_0", "Q4_1", "Q8_0"})
"""Quantised formats whose blocks the native kernels multiply with, several times faster than torch what they stand for."""

_PAGE_TOKENS = 16

NATIVE_KV_DTYPE = "bfloat16"
"""What the native kernels hold keys and values in where nobody says: half of float32's memory, nearly twice as fast over
long contexts, at a cost in quality that drowns in that of the quantised products (docs/decisions/0013-kv-formats.md)."""


@dataclass(frozen=True, slots=True)
class OpsChoice:
    name: str
    remark: str
    """What a person who expected something else should know; empty if nothing."""
    make: Callable[[int], Ops]
    """By number of threads."""
    weights: str = "as stored"
    """For people: how the matrices are held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Circumstances:
    device: str
    dtype: str
    storages: frozenset[str]
    overrides: Overrides = field(default_factory=Overrides)


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

    Native is chosen by itself where the checkpoint is made of formats that it keeps as stored, and no dtype is asked for by
    name: who names one wants that arithmetic throughout, and products with quantised weights are not in it; and where
    something is asked for that only native can do. Raises ConfigurationError where what is wanted cannot be had.
    """
    here = _Circumstances(device=device, dtype=dtype, storages=storages, overrides=overrides)
    backend = overrides.attention_backend
    if backend != "auto":
        if wanted not in ("auto", backend):
            raise ConfigurationError(
                f"attention_backend {backend} is part of ops {backend}, but ops {wanted} is asked for; name one of them"
            )
        wanted = backend
    obstacle = _native_obstacle(device, block_size)
    if wanted == "native":
        if obstacle:
            raise ConfigurationError(f"ops native cannot be had: {obstacle}; take ops torch, or auto")
        return _native(here)
    if wanted == "torch":
        return _torch(here, remark="")
    only_native = _only_native_can(overrides, dtype)
    if only_native and obstacle:
        raise ConfigurationError(f"{only_native} needs the native kernels, and {obstacle}; leave it to auto")
    if only_native:
        return _native(here)
    if device != "cpu" or dtype != "auto":
        return _torch(here, remark="")
    others = sorted(storages - _KEPT_AS_STORED)
    if not obstacle and others:
        obstacle = f"they do not keep {', '.join(others)} as stored"
    return _torch(here, remark=f"without the native kernels: {obstacle}") if obstacle else _native(here)


def _only_native_can(overrides: Overrides, dtype: str) -> str:
    """What is asked for that the reference cannot do, as an option; empty if nothing."""
    if overrides.kv_dtype not in ("auto", dtype):
        return f"kv_cache_dtype {overrides.kv_cache_dtype}"
    if overrides.quantization not in ("auto", "none"):
        return f"quantization {overrides.quantization}"
    return ""


def _check(name: str, here: _Circumstances, *, dtype: str) -> None:
    """That the implementation of this name can do what is asked for."""
    can, asked = CAPABILITIES[name], here.overrides
    if asked.kv_dtype not in ("auto", dtype, *can.kv_dtypes):
        held = ", ".join(dict.fromkeys((dtype, *can.kv_dtypes)))
        raise ConfigurationError(
            f"kv_cache_dtype {asked.kv_cache_dtype} cannot be had with ops {name} in {dtype}, which hold keys and values in "
            f"{held}; take ops native"
        )
    if asked.quantization not in ("auto", "none") and not can.requantises:
        raise ConfigurationError(
            f"quantization {asked.quantization} cannot be had with ops {name}, which turn every weight into {dtype}; "
            "take ops native"
        )
    if asked.batch_invariant and here.device not in can.batch_invariant_on:
        raise ConfigurationError(
            f"batch_invariant cannot be kept by ops {name} on {here.device}, whose libraries choose their kernels by the "
            "number of rows; take device cpu, or leave it out"
        )


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


def _native(here: _Circumstances) -> OpsChoice:
    from headrace.engine.ops.native.ops import KERNEL_FORMATS, NativeOps

    # float32 unless asked: with bfloat16 rows and queries are rounded too, and that moves answers.
    dtype = "float32" if here.dtype == "auto" else here.dtype
    _check("native", here, dtype=dtype)
    kv_dtype = here.overrides.kv_dtype
    if kv_dtype == "auto":
        kv_dtype = NATIVE_KV_DTYPE if here.dtype == "auto" else dtype
    quantization = here.overrides.quantization
    if quantization == "auto":
        others = sorted(here.storages - KERNEL_FORMATS)
        remark, held = (f"{', '.join(others)} held as {dtype}" if others else ""), "as stored"
    else:
        remark, held = "", f"as {QUANTIZATIONS.get(quantization, dtype)}"

    def make(num_threads: int) -> Ops:
        return NativeOps(dtype=dtype, num_threads=num_threads, kv_dtype=kv_dtype, quantization=quantization)

    return OpsChoice("native", remark, make, held)


def _torch(here: _Circumstances, *, remark: str) -> OpsChoice:
    try:
        from headrace.engine.ops.torch.ops import TorchOps, best_dtype
    except ImportError as error:
        why = f" ({remark})" if remark else ""
        raise ConfigurationError(f"ops torch cannot be had: {error}{why}; install torch") from None
    dtype = best_dtype(here.device) if here.dtype == "auto" else here.dtype
    _check("torch", here, dtype=dtype)
    device = here.device
    return OpsChoice(
        "torch", remark, lambda num_threads: TorchOps(dtype=dtype, device=device, num_threads=num_threads), f"as {dtype}"
    )
