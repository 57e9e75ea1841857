"""Attention over the paged cache, and what comes just before it: heads are normed and rotated, keys and values written.

Knows one layer's heads and a step's placement. Does not know models.

A row's bits must depend on its own sequence alone. The score product has a fixed inner size, and softmax and masked (zero)
weights do not mind how far a context is padded. Two properties of float32 products do, and are dealt with here: fewer than
four rows take another kernel, and an inner size that varies is summed in blocks that vary. oneDNN's bfloat16 products have
neither, save where the processor has AMX: there the values are summed in float32.
"""

import torch
import torch.nn.functional as F

from headrace.engine.ops.protocol import AttentionShape, QKNorm
from headrace.engine.ops.torch.placement import Gather, TorchPlacement, num_query_rows, sums_values_in_float32

_FLOAT32_INNER_SIZE = 128
"""Context places summed by one float32 product; several products add up in order."""


def rope_and_cache(
    qkv: torch.Tensor,
    kv: torch.Tensor,
    placement: TorchPlacement,
    shape: AttentionShape,
    rotation: tuple[torch.Tensor, torch.Tensor] | None,
    norm: QKNorm | None,
) -> torch.Tensor:
    """Returns q: [num_tokens, num_heads, head_dim]; `qkv` is used up."""
    num_heads, num_kv_heads = shape.num_heads, shape.num_kv_heads
    heads = qkv.view(-1, num_heads + 2 * num_kv_heads, shape.head_dim)
    if norm is not None:
        _norm_heads(heads[:, :num_heads], norm.query_weight, norm.eps)
        _norm_heads(heads[:, num_heads : num_heads + num_kv_heads], norm.key_weight, norm.eps)
    if rotation is not None:
        _rotate(heads[:, : num_heads + num_kv_heads], *rotation)
    slots = kv.view(2 * num_kv_heads, -1, shape.head_dim)  # [2 * num_kv_heads, num_blocks * block_size, head_dim]
    slots.index_copy_(1, placement.slots, heads[:, num_heads:].transpose(0, 1))
    return heads[:, :num_heads]


def _norm_heads(heads: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    heads.copy_(F.rms_norm(heads.float(), heads.shape[-1:], weight, eps))


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """In place. heads: [num_tokens, heads, head_dim]; cos, sin: [num_tokens, 1, rotary_dim], sin's first half negated."""
    rotary_dim = cos.shape[-1]
    rotated = heads[..., :rotary_dim]
    swapped = torch.roll(rotated, rotary_dim // 2, dims=-1)  # halves [x, y] -> [y, x]
    # Not addcmul: whether it rounds once or twice depends on where in the tensor a number stands.
    rotated.copy_((rotated * cos).add_(swapped * sin))


def attention(q: torch.Tensor, kv: torch.Tensor, placement: TorchPlacement, shape: AttentionShape) -> torch.Tensor:
    """q: [num_tokens, num_heads, head_dim] -> [num_tokens, num_heads * head_dim]."""
    out = torch.empty((placement.num_tokens, shape.num_heads, shape.head_dim), dtype=q.dtype, device=q.device)
    for gather in placement.gathers[shape.window]:
        _attend(q, kv, gather, shape, out)
    return out.view(placement.num_tokens, -1)


def _attend(q: torch.Tensor, kv: torch.Tensor, gather: Gather, shape: AttentionShape, out: torch.Tensor) -> None:
    num_kv_heads, head_dim = shape.num_kv_heads, shape.head_dim
    group = shape.num_heads // num_kv_heads
    batch, rows = gather.batch, gather.rows
    num_blocks = kv.shape[2]
    index, mask = gather.for_layer(num_kv_heads, group, num_blocks)
    context = torch.index_select(kv.view(2 * num_kv_heads * num_blocks, -1), 0, index)
    context = context.view(2, num_kv_heads * batch, -1, head_dim)
    keys, values = context[0], context[1]  # each [num_kv_heads * batch, S, head_dim]

    mine = slice(gather.first_row, gather.first_row + batch * rows)
    grouped = q[mine].view(batch, rows, num_kv_heads, group, head_dim).permute(2, 0, 3, 1, 4)
    queries = _with_rows_missing(grouped.reshape(num_kv_heads * batch, group * rows, head_dim))
    sums = _sum_values(_weights(queries, keys, mask, shape), values)
    result = sums[:, : group * rows].view(num_kv_heads, batch, group, rows, head_dim)
    out[mine].view(batch, rows, num_kv_heads, group, head_dim).copy_(result.permute(1, 3, 0, 2, 4))


def _with_rows_missing(queries: torch.Tensor) -> torch.Tensor:
    num_missing = num_query_rows(queries.shape[1], queries.dtype) - queries.shape[1]
    return F.pad(queries, (0, 0, 0, num_missing)) if num_missing else queries


def _weights(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    """[num_kv_heads * batch, rows, S]"""
    if shape.softcap is None:
        scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=shape.scale)
    else:
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(shape.scale)
        scores = soft_cap(scores, shape.softcap).add_(mask)
    return torch.softmax(scores, dim=-1)


def soft_cap(x: torch.Tensor, cap: float) -> torch.Tensor:
    """cap * tanh(x / cap). In float64 between: there the formulas that torch uses for tanh agree to float32's last bit."""
    return torch.tanh(x.double() / cap).mul_(cap).to(x.dtype)


def _sum_values(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """weights @ values: [num_kv_heads * batch, rows, head_dim]."""
    if not sums_values_in_float32(weights.dtype):
        return torch.bmm(weights, values)
    dtype, size = weights.dtype, weights.shape[-1]
    weights, values = weights.float(), values.float()
    sums = torch.bmm(weights[..., :_FLOAT32_INNER_SIZE], values[:, :_FLOAT32_INNER_SIZE])
    for start in range(_FLOAT32_INNER_SIZE, size, _FLOAT32_INNER_SIZE):
        part = slice(start, start + _FLOAT32_INNER_SIZE)
        sums.baddbmm_(weights[..., part], values[:, part])
    return sums.to(dtype)
