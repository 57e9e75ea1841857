"""Where a step's tokens stand in the paged cache: computed once per step, used by every layer.

Knows spans, blocks and windows. Does not know queries, keys or models.

Keys and values of a layer are one tensor [2, num_kv_heads, num_blocks, block_size, head_dim]: heads outside blocks, so that
one `index_select` over (key or value, head, block) rows gives every head's context as one contiguous matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from headrace.engine.ops.protocol import SequenceSpan

MAX_TILE_ROWS = 128
"""Rows of one sequence that attend in one go: bounds the score matrix, and skips most of what causality hides."""

MAX_PADDED_PLACES = 512
"""Single-token spans share a gather while padding costs less than the operations of another gather would: about this many
places."""


MIN_FLOAT32_ROWS = 4
"""Float32 products of fewer rows take another kernel, with other bits."""


def sums_values_in_float32(dtype: torch.dtype) -> bool:
    """Not only where everything is float32: how oneDNN's AMX kernels cut a sum over a context depends on the number of rows
    and on how far the context is padded."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported())


def num_query_rows(num_wanted: int, dtype: torch.dtype) -> int:
    """How many query rows a product is given."""
    return max(num_wanted, MIN_FLOAT32_ROWS) if sums_values_in_float32(dtype) else num_wanted


@dataclass(frozen=True, slots=True)
class Gather:
    """One batch of attention over contexts padded to one length: many sequences of one row, or one sequence of many."""

    first_row: int
    """In the step."""
    batch: int
    rows: int
    blocks: torch.Tensor
    """[batch * blocks_per_sequence] block ids."""
    mask: torch.Tensor
    """[batch, rows, blocks_per_sequence * block_size]: 0 where a row may look, -inf where not."""
    expanded: dict[tuple[int, int, int], tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """(KV heads, queries per KV head, blocks in the cache) -> gather rows and mask in the layers' own shape."""

    def for_layer(self, num_kv_heads: int, group: int, num_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """For a cache of [2 * num_kv_heads * num_blocks] rows: which to gather, and the mask over [num_kv_heads * batch,
        group * rows, S] in a shape that broadcasts to it."""
        key = (num_kv_heads, group, num_blocks)
        found = self.expanded.get(key)
        if found is None:
            heads = torch.arange(2 * num_kv_heads, device=self.blocks.device) * num_blocks
            index = (heads[:, None] + self.blocks[None, :]).reshape(-1)
            if self.rows == 1:
                mask = self.mask.repeat(num_kv_heads, 1, 1)  # [num_kv_heads * batch, 1, S]
            else:
                mask = self.mask.repeat(1, group, 1)  # [1, group * rows, S]
                num_missing = num_query_rows(group * self.rows, mask.dtype) - group * self.rows
                mask = F.pad(mask, (0, 0, 0, num_missing)) if num_missing else mask
            found = self.expanded[key] = (index, mask)
        return found


@dataclass(frozen=True, slots=True)
class TorchPlacement:
    num_tokens: int
    positions: torch.Tensor
    """[num_tokens]"""
    slots: torch.Tensor
    """[num_tokens]: block id * block_size + offset, where each token's key and value go."""
    gathers: dict[int | None, list[Gather]]
    """window -> the batches of attention that together cover every row."""


def place(
    spans: Sequence[SequenceSpan],
    *,
    block_size: int,
    windows: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device,
) -> TorchPlacement:
    positions: list[int] = []
    slots: list[int] = []
    for span in spans:
        for position in range(span.num_computed_tokens, span.num_computed_tokens + span.num_tokens):
            positions.append(position)
            slots.append(span.block_ids[position // block_size] * block_size + position % block_size)
    gathers = {window: _gathers(spans, block_size, window, dtype, device) for window in windows}
    return TorchPlacement(
        num_tokens=len(positions),
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        gathers=gathers,
    )


def _gathers(
    spans: Sequence[SequenceSpan], block_size: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> list[Gather]:
    num_single = next((i for i, span in enumerate(spans) if span.num_tokens > 1), len(spans))
    assert all(span.num_tokens > 1 for span in spans[num_single:]), "spans of one token come first"
    gathers = []
    for first, end in _groups_of_like_length([span.num_computed_tokens + 1 for span in spans[:num_single]]):
        gathers.append(_gather_singles(spans[first:end], first, block_size, window, dtype, device))
    row = num_single
    for span in spans[num_single:]:
        for first in range(0, span.num_tokens, MAX_TILE_ROWS):
            rows = min(MAX_TILE_ROWS, span.num_tokens - first)
            gathers.append(_gather_tile(span, first, rows, row + first, block_size, window, dtype, device))
        row += span.num_tokens
    return gathers


def _groups_of_like_length(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges of neighbours that share a gather. Lengths come longest first; padding goes up to a group's first."""
    groups = []
    first = num_padded = 0
    for i, length in enumerate(lengths):
        assert i == 0 or length <= lengths[i - 1], "spans of one token come longest first"
        num_padded += lengths[first] - length
        if num_padded > MAX_PADDED_PLACES:
            groups.append((first, i))
            first, num_padded = i, 0
    if lengths:
        groups.append((first, len(lengths)))
    return groups


def _gather_singles(
    spans: Sequence[SequenceSpan],
    first_row: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Gather:
    lengths = [span.num_computed_tokens + 1 for span in spans]
    starts = [_first_visible_block(length - 1, block_size, window) for length in lengths]
    num_blocks = [-(-length // block_size) - start for length, start in zip(lengths, starts, strict=True)]
    width = max(num_blocks)
    blocks: list[int] = []
    for span, start, count in zip(spans, starts, num_blocks, strict=True):
        own = span.block_ids[start : start + count]
        blocks.extend(own)
        blocks.extend([own[-1]] * (width - count))  # its own block again: whatever lies there is finite, and masked
    position = torch.arange(width * block_size) + torch.tensor(starts)[:, None] * block_size  # [batch, S]
    last = torch.tensor(lengths)[:, None] - 1
    mask = _mask(position, last, window, dtype)
    return Gather(first_row, len(spans), 1, torch.tensor(blocks, device=device), mask[:, None].to(device))


def _gather_tile(
    span: SequenceSpan,
    first: int,
    rows: int,
    first_row: int,
    block_size: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Gather:
    first_position = span.num_computed_tokens + first
    start = _first_visible_block(first_position, block_size, window)
    end = -(-(first_position + rows) // block_size)
    blocks = torch.tensor(list(span.block_ids[start:end]), device=device)
    position = torch.arange(start * block_size, end * block_size)[None, :]
    last = torch.arange(first_position, first_position + rows)[:, None]
    mask = _mask(position, last, window, dtype)
    return Gather(first_row, 1, rows, blocks, mask[None].to(device))


def _first_visible_block(position: int, block_size: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1) // block_size


def _mask(position: torch.Tensor, last: torch.Tensor, window: int | None, dtype: torch.dtype) -> torch.Tensor:
    hidden = position > last
    if window is not None:
        hidden |= position <= last - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
