"""Request: what a client asked. Immutable; progress lives in `SequenceState`."""

import msgspec

from headrace.base.ids import RequestId
from headrace.engine.mind.kv_transfer import KVSource
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import StructuredOutput


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request for one or several continuations of the same tokens. Crosses the process boundary as it is."""

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    """At least one token."""
    sampling: SamplingParams
    num_sequences: int = 1
    """The API's `n`: independent continuations that share the prompt's KV until they write."""
    priority: int = 0
    """Lower runs earlier; only under the priority policy."""
    cache_salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str = ""
    """Content-derived identity of the LoRA adapter; empty for the base model."""
    structured_output: StructuredOutput | None = None
    """The form of every continuation; None: free text."""
    keeps_kv: bool = False
    """Its prompt's KV is kept after its end, for another engine to fetch (`do_remote_decode`)."""
    kv_source: KVSource | None = None
    """Where its prompt's KV lies already (`do_remote_prefill`); None: here, or nowhere."""
