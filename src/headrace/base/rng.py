"""Randomness that can be repeated: one seed, sub-streams by name. The one door to `random` for pure code."""

import hashlib
import random


def stream(seed: int, name: str) -> random.Random:
    """A generator of its own for `name`: what one part draws never shifts what another part draws."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest()
    return random.Random(int.from_bytes(digest, "big"))
