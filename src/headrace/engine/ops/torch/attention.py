"""Attention over the paged cache, and what comes just before it: norms and rotation of heads, and the writing of keys and values.

Knows one layer's heads and a step's placement. Does not know models.
"""

import torch
import torch.nn.functional as F

from headrace.engine.ops.protocol import AttentionShape, QKNorm
from headrace.engine.ops.torch.placement import Gather, TorchPlacement


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
    """In place. heads: [num_tokens, heads, head_dim]; cos, sin: [num_tokens, 1, rotary_dim / 2] in float32."""
    half = cos.shape[-1]
    x, y = heads[..., :half], heads[..., half : 2 * half]
    rotated_x = torch.addcmul(x * cos, y, sin, value=-1)
    rotated_y = torch.addcmul(y * cos, x, sin)
    x.copy_(rotated_x)
    y.copy_(rotated_y)


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
    keys, values = context.view(2, num_kv_heads * batch, -1, head_dim)  # each [num_kv_heads * batch, S, head_dim]

    mine = slice(gather.first_row, gather.first_row + batch * rows)
    grouped = q[mine].view(batch, rows, num_kv_heads, group, head_dim).permute(2, 0, 3, 1, 4)
    queries = grouped.reshape(num_kv_heads * batch, group * rows, head_dim)
    weights = _weights(queries, keys, mask, shape)
    result = torch.bmm(weights, values).view(num_kv_heads, batch, group, rows, head_dim)
    out[mine].view(batch, rows, num_kv_heads, group, head_dim).copy_(result.permute(1, 3, 0, 2, 4))


def _weights(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor, shape: AttentionShape) -> torch.Tensor:
    if shape.softcap is None:
        scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=shape.scale)
    else:
        scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(shape.scale / shape.softcap)
        scores = scores.tanh_().mul_(shape.softcap).add_(mask)
    return torch.softmax(scores, dim=-1)
