"""Units by name, and numbers as people read them. Knows nothing of what is measured."""

NANOS_PER_SECOND = 1_000_000_000
NANOS_PER_MILLI = 1_000_000
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_SUFFIXES = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}


def seconds(nanos: int) -> float:
    """Nanoseconds as seconds, for display and for metrics whose names end in `_seconds`."""
    return nanos / NANOS_PER_SECOND


def nanos(seconds: float) -> int:
    """Seconds as integer nanoseconds.

    >>> nanos(0.25)
    250000000
    """
    return round(seconds * NANOS_PER_SECOND)


def parse_bytes(text: str) -> int:
    """A size such as `512M`, `2GiB`, `1.5g` or a plain number of bytes; suffixes are powers of 1024.

    Raises ValueError where the text is no size.

    >>> parse_bytes("2GiB") == 2 * GIB
    True
    """
    cleaned = text.strip().lower().removesuffix("ib").removesuffix("b")
    unit = cleaned[-1:] if cleaned[-1:].isalpha() else ""
    number = cleaned[: len(cleaned) - len(unit)]
    if unit not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a size; write for example 512M or 2GiB")
    try:
        size = float(number)
    except ValueError:
        raise ValueError(f"{text!r} is not a size; write for example 512M or 2GiB") from None
    if not 0 <= size < float("inf"):
        raise ValueError(f"{text!r} is not a size: it must be finite and not negative")
    return int(size * _SUFFIXES[unit])


def format_bytes(count: float) -> str:
    """Bytes for people.

    >>> format_bytes(103_000_000)
    '98.2 MiB'
    """
    for suffix in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {suffix}" if suffix == "B" else f"{count:.1f} {suffix}"
        count /= 1024
    return f"{count:.1f} TiB"
