"""Randomness that can be repeated: one seed, sub-streams by name. The one door to `random` for pure code."""

import hashlib
from random import Random

__all__ = ["Random", "stream"]


def stream(seed: int, name: str) -> Random:
    """A generator of its own for `name`: what one part draws never shifts what another part draws."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return Random(int.from_bytes(digest, "big"))
