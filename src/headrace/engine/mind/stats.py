"""EngineStats: the engine's gauges at a moment and its counters since the start."""

import msgspec


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    num_running: int
    """Sequences that hold blocks and take part in steps."""
    num_waiting: int
    """Sequences that wait, the preempted included."""
    num_loading: int = 0
    """Sequences whose KV is on its way from another engine: they hold blocks and do not run."""
    kv_cache_usage: float
    """Share of blocks that sequences hold, 0..1; evictable ones count as free."""
    num_blocks_in_use: int
    num_blocks_leased: int = 0
    """Blocks that are kept for other engines to fetch; what two requests share counts twice."""
    num_blocks_cached: int
    """Blocks that nobody holds but whose content is kept for reuse."""
    num_preemptions: int
    num_evictions: int
    """Cached blocks given to somebody else."""
    prefix_cache_queries: int
    """Prompt tokens looked up when their sequence first ran."""
    prefix_cache_hits: int
    """Prompt tokens found."""
    num_steps: int
    num_tokens_computed: int
    """Tokens of all planned steps, recomputation included."""
