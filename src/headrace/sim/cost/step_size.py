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
