"""What each implementation of the ops can do, and what a person may ask of them by name.

    implementation  devices    attention                 keys and values in              weights requantised  batch-invariant
    native          cpu        paged, one kernel for     float32, bfloat16, int8,        to q8_0, q4_0, q4_1  by construction
                               prompts and decoding      fp8_e4m3
    torch           cpu, cuda  the reference: contexts   the compute dtype               not                  on the cpu
                               gathered and padded

Knows names. Does not know checkpoints; `registry.py` decides.
"""

from dataclasses import dataclass

from headrace.base.errors import ConfigurationError, nearest
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

    def only_native_can(self, dtype: str) -> str:
        """What is asked for that the reference cannot do, as an option; empty if nothing. `dtype` may be `auto`."""
        if self.kv_dtype not in ("auto", dtype):
            return f"kv_cache_dtype {self.kv_cache_dtype}"
        if self.quantization not in ("auto", "none"):
            return f"quantization {self.quantization}"
        return ""

    def check(self, name: str, *, device: str, dtype: str) -> None:
        """Raises ConfigurationError where the implementation of this name cannot do what is asked for."""
        can = CAPABILITIES[name]
        if self.kv_dtype not in ("auto", dtype, *can.kv_dtypes):
            held = ", ".join(dict.fromkeys((dtype, *can.kv_dtypes)))
            raise ConfigurationError(
                f"kv_cache_dtype {self.kv_cache_dtype} cannot be had with ops {name} in {dtype}, which hold keys and values "
                f"in {held}; take ops native"
            )
        if self.quantization not in ("auto", "none") and not can.requantises:
            raise ConfigurationError(
                f"quantization {self.quantization} cannot be had with ops {name}, which turn every weight into {dtype}; "
                "take ops native"
            )
        if self.batch_invariant and device not in can.batch_invariant_on:
            raise ConfigurationError(
                f"batch_invariant cannot be kept by ops {name} on {device}, whose libraries choose their kernels by the "
                "number of rows; take device cpu, or leave it out"
            )


NO_OVERRIDES = Overrides()
