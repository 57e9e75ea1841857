"""A decoder with its paged cache, driven by hand: what the worker does around a model, without plans or sampling.

Knows blocks and spans. Does not know what the numbers should be.
"""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from headrace.engine.layers.checkpoint import TensorSource
from headrace.engine.models.decoder import Decoder
from headrace.engine.ops.protocol import KVLayer, Ops, SequenceSpan
from headrace.engine.ops.torch.ops import TorchOps
from headrace.engine.worker.graph import Graph
from headrace.engine.worker.kv_cache import KVCache
from headrace.specs.model import ModelSpec


class PagedDecoder:
    """Sequences by name; their blocks lie scattered, as after hours of service, and hold what others left there."""

    def __init__(
        self,
        spec: ModelSpec,
        source: TensorSource,
        *,
        max_model_len: int,
        dtype: str = "float32",
        num_blocks: int = 128,
        block_size: int = 16,
        seed: int = 0,
        num_threads: int = 1,
        ops: str = "torch",
        enforce_eager: bool = False,
    ) -> None:
        self._ops = _make_ops(ops, dtype, num_threads)
        decoder = Decoder(self._ops, spec, source)
        self._cache = KVCache(self._ops, spec, num_blocks=num_blocks, block_size=block_size)
        for layer in self._cache.layers:
            _fill_with_noise(self._ops, layer, num_blocks, seed)
        self._graph = Graph(self._ops, decoder, self._cache, max_model_len=max_model_len, enforce_eager=enforce_eager)
        self._windows = tuple(dict.fromkeys(layer.window for layer in spec.layers))
        self._block_size = block_size
        self._free = list(range(num_blocks))
        random.Random(seed).shuffle(self._free)
        self._tokens: dict[str, list[int]] = {}
        self._num_computed: dict[str, int] = {}
        self._blocks: dict[str, list[int]] = {}

    def start(self, name: str, tokens: Sequence[int], *, prefix_of: str | None = None, num_shared_blocks: int = 0) -> None:
        """A new sequence; its first blocks may be another's, computed already."""
        self._tokens[name] = list(tokens)
        self._blocks[name] = list(self._blocks[prefix_of][:num_shared_blocks]) if prefix_of else []
        self._num_computed[name] = num_shared_blocks * self._block_size

    def append(self, name: str, token: int) -> None:
        self._tokens[name].append(token)

    def num_remaining(self, name: str) -> int:
        return len(self._tokens[name]) - self._num_computed[name]

    def step(self, num_tokens: Mapping[str, int], *, num_wanted: int | None = None) -> dict[str, torch.Tensor]:
        """Computes so many next tokens of each sequence; logits of all of them, or of the last `num_wanted` of each:
        name -> [num_tokens, vocab_size]."""
        names = sorted(num_tokens, key=lambda n: (num_tokens[n] > 1, -self._num_computed[n]))
        ids: list[int] = []
        spans = []
        for name in names:
            begin = self._num_computed[name]
            end = begin + num_tokens[name]
            assert end <= len(self._tokens[name])
            while len(self._blocks[name]) * self._block_size < end:
                self._blocks[name].append(self._free.pop())
            ids += self._tokens[name][begin:end]
            spans.append(SequenceSpan(begin, num_tokens[name], self._blocks[name]))
            self._num_computed[name] = end
        wanted: dict[str, list[int]] = {}
        end = 0
        for name in names:
            end += num_tokens[name]
            wanted[name] = list(range(max(end - (num_wanted or end), end - num_tokens[name]), end))
        with self._ops.computing():
            placement = self._ops.place(spans, block_size=self._block_size, windows=self._windows)
            rows = self._ops.row_ids([row for name in names for row in wanted[name]])
            logits = torch.as_tensor(self._graph.logits(self._ops.token_ids(ids), placement, rows))
        parts = torch.split(logits, [len(wanted[name]) for name in names])
        return dict(zip(names, parts, strict=True))

    def finish(self, name: str, *chunks: int) -> torch.Tensor:
        """The rest of one sequence in chunks of these sizes and then all at once: [num_remaining, vocab_size]."""
        parts = [self.step({name: chunk})[name] for chunk in chunks]
        if self.num_remaining(name):
            parts.append(self.step({name: self.num_remaining(name)})[name])
        return torch.cat(parts)


def _fill_with_noise(ops: Ops, layer: KVLayer, num_blocks: int, seed: int) -> None:
    if isinstance(layer, torch.Tensor):
        layer.normal_(std=3.0, generator=torch.Generator().manual_seed(seed))
    else:
        layer.array()[:] = np.frombuffer(np.random.default_rng(seed).bytes(layer.array().size), np.uint8)
        ops.make_finite(layer, range(num_blocks))


def _make_ops(name: str, dtype: str, num_threads: int) -> Ops:
    if name == "torch":
        return TorchOps(dtype=dtype, device="cpu", num_threads=num_threads)
    from headrace.engine.ops.native.ops import NativeOps  # here, since not every machine has compiled it

    return NativeOps(dtype=dtype, num_threads=num_threads)
