"""What an accelerator can do at most, as data: peaks, memory, links. The numbers and their sources are in `devices.toml`.

Knows facts only. What part of a peak an operation reaches is a matter of measurement (`sim/cost/`).
"""

from functools import cache
from importlib import resources

import msgspec

from headrace.base.errors import ConfigurationError, nearest


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One accelerator. Peaks are dense; links are per GPU and per direction."""

    title: str
    """As its maker calls it."""
    architecture: str
    """`ampere`, `ada`, `hopper`, `blackwell`: whose kernels it runs."""
    memory_bytes: int
    memory_bandwidth: float
    """Bytes per second."""
    peak_flops: dict[str, float]
    """Floating-point operations per second of matrix products, by dtype: bfloat16, fp8, fp4."""
    num_sms: int
    scale_up_bandwidth: float
    """Bytes per second to the GPUs of the same scale-up world (NVLink, or PCIe where there is none)."""
    scale_up_size: int
    """GPUs that reach one another at that speed."""
    scale_out_bandwidth: float
    """Bytes per second to GPUs beyond it."""

    def peak(self, dtype: str) -> float:
        """FLOP/s of products in `dtype`; where there are no tensor cores for it, those of the next wider one.

        >>> device("h100_sxm").peak("fp4") == device("h100_sxm").peak("fp8")
        True
        """
        for candidate in _WIDER[_WIDER.index(dtype) :]:
            if candidate in self.peak_flops:
                return self.peak_flops[candidate]
        raise AssertionError(f"{self.title} has no products in {dtype} or wider")


_WIDER = ("fp4", "fp8", "bfloat16")


@cache
def devices() -> dict[str, DeviceSpec]:
    """All that are known, by name."""
    text = resources.files("headrace.specs").joinpath("devices.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, DeviceSpec])


def device(name: str) -> DeviceSpec:
    """Raises ConfigurationError with the nearest name where there is none such.

    >>> device("h200_sxm").memory_bandwidth
    4800000000000.0
    """
    known = devices()
    if name not in known:
        raise ConfigurationError(f"no device is called {name!r}{nearest(name, known)} (known: {', '.join(known)})")
    return known[name]
