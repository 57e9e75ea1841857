"""Which implementation of the ops serves which device and dtype, and why.

Knows names; imports an implementation only when it is asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.protocol import Ops


@dataclass(frozen=True, slots=True)
class OpsEntry:
    name: str
    reason: str
    make: Callable[[str, int | None], Ops]
    """(dtype, number of threads or None for the implementation's own choice) -> Ops."""


def _torch_cpu(dtype: str, num_threads: int | None) -> Ops:
    from headrace.engine.ops.torch.ops import TorchOps

    return TorchOps(dtype=dtype, device="cpu", num_threads=num_threads)


def _torch_cuda(dtype: str, num_threads: int | None) -> Ops:
    from headrace.engine.ops.torch.ops import TorchOps

    return TorchOps(dtype=dtype, device="cuda", num_threads=num_threads)


_CPU = OpsEntry(
    "torch", "the reference; oneDNN's packed matrix products give a row the same bits in every batch", _torch_cpu
)
_CUDA = OpsEntry("torch", "the reference, on the device's own libraries", _torch_cuda)

OPS: dict[tuple[str, str], OpsEntry] = {
    ("cpu", "float32"): _CPU,
    ("cpu", "bfloat16"): _CPU,
    ("cuda", "float32"): _CUDA,
    ("cuda", "bfloat16"): _CUDA,
}
"""(device, dtype) -> what serves it."""


def make_ops(*, device: str, dtype: str, num_threads: int | None = None) -> Ops:
    """The implementation for this device and dtype. Raises ConfigurationError where there is none."""
    entry = OPS.get((device, dtype))
    if entry is None:
        known = ", ".join(f"{d} with {t}" for d, t in OPS)
        raise ConfigurationError(f"no implementation computes {dtype} on {device}; there are: {known}")
    return entry.make(dtype, num_threads)
