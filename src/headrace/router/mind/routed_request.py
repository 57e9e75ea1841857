"""RoutedRequest: what a router knows of a request: how much it asks and how its prompt begins."""

from dataclasses import dataclass

from headrace.base.ids import BlockHash, RequestId


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    request_id: RequestId
    num_prompt_tokens: int
    block_hashes: tuple[BlockHash, ...] = ()
    """Of the prompt's full blocks of the router's block size, chained, seeded with model, adapter and `cache_salt`."""
