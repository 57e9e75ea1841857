"""What exactly runs: identities as data. Knows how to name an execution, not how to perform one."""

import hashlib
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class ExecutionIdentity:
    """All that decides the bits of a KV block beside its tokens.

    Two engines with equal identities may reuse each other's KV; with any difference they may not. It seeds every
    prefix hash, so a change of weights, quantisation, KV dtype or processor invalidates old blocks by itself.
    """

    model_digest: str
    """Content digest of the weights and the structure."""
    weight_dtype: str
    """How the weights are held: `float32`, `bfloat16`, or a quantisation's name."""
    kv_dtype: str
    """How keys and values are stored."""
    processor: str
    """What computes: the ops implementation and the device, for example `torch-cpu-avx512`."""

    def digest(self) -> bytes:
        """32 bytes that differ wherever the identity does."""
        hasher = hashlib.blake2b(digest_size=32, person=b"headrace-exec")
        for field in astuple(self):
            raw = str(field).encode()
            hasher.update(len(raw).to_bytes(4, "big"))
            hasher.update(raw)
        return hasher.digest()
