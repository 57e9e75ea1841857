"""StepSize: the few sums over a plan that its time depends on. Knows counts; knows no model and no hardware."""

from dataclasses import dataclass

from headrace.engine.mind.step import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSize:
    """What a step computes, summed over its sequences.

    A sequence that computes one token after others is a decode; everything else is a prompt's chunk.
    """

    num_decodes: int = 0
    decode_context: int = 0
    """Tokens that decodes attend to, themselves included."""
    num_chunks: int = 0
    chunk_tokens: int = 0
    chunk_context: int = 0
    """Tokens that the chunks' last tokens attend to: what of the KV cache is read at least once."""
    chunk_pairs: int = 0
    """(query, key) pairs of the chunks under the causal mask."""
    num_samples: int = 0
    """Sequences whose logits are computed."""

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.chunk_tokens

    @property
    def num_sequences(self) -> int:
        return self.num_decodes + self.num_chunks


def step_size(plan: StepPlan) -> StepSize:
    """One pass over the plan."""
    num_decodes = decode_context = num_chunks = chunk_tokens = chunk_context = chunk_pairs = num_samples = 0
    for entry in plan.scheduled:
        before, count = entry.num_computed_tokens, entry.num_tokens
        num_samples += entry.samples
        if count == 1 and before:
            num_decodes += 1
            decode_context += before + 1
        else:
            num_chunks += 1
            chunk_tokens += count
            chunk_context += before + count
            chunk_pairs += count * before + count * (count + 1) // 2
    return StepSize(
        num_decodes=num_decodes,
        decode_context=decode_context,
        num_chunks=num_chunks,
        chunk_tokens=chunk_tokens,
        chunk_context=chunk_context,
        chunk_pairs=chunk_pairs,
        num_samples=num_samples,
    )


def busiest_rank(size: StepSize, num_ranks: int) -> StepSize:
    """What one attention rank computes of an engine's step (attention-DP): sequences are spread evenly by number, and each
    is an average one of its kind. The others have as much or one of a kind fewer.

    >>> rank = busiest_rank(StepSize(num_decodes=10, decode_context=1_000, num_chunks=1, chunk_tokens=512), 4)
    >>> rank.num_decodes, rank.decode_context, rank.num_chunks, rank.chunk_tokens
    (3, 300, 1, 512)
    """
    decodes, chunks = -(-size.num_decodes // num_ranks), -(-size.num_chunks // num_ranks)
    return StepSize(
        num_decodes=decodes,
        decode_context=rank_context(size.num_decodes, size.decode_context, num_ranks),
        num_chunks=chunks,
        chunk_tokens=_part(size.chunk_tokens, chunks, size.num_chunks),
        chunk_context=_part(size.chunk_context, chunks, size.num_chunks),
        chunk_pairs=_part(size.chunk_pairs, chunks, size.num_chunks),
        num_samples=-(-size.num_samples // num_ranks),
    )


def rank_context(num_decodes: int, decode_context: int, num_ranks: int) -> int:
    """Of `busiest_rank`, what its decodes attend to."""
    return _part(decode_context, -(-num_decodes // num_ranks), num_decodes)


def _part(total: int, count: int, of: int) -> int:
    return -(-total * count // of) if of else 0
