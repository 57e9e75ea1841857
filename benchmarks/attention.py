"""Attention alone, in milliseconds for all of the default model's 30 layers: decode and prefill, in each format of the KV
cache, with a sequence's blocks side by side and scattered. On a machine that others use, --cpu-time with one thread."""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.harness import Figure, Result

from headrace.engine.ops.native.ops import KV_DTYPES, NativeOps
from headrace.engine.ops.protocol import AttentionShape, SequenceSpan
from headrace.engine.worker.cores import num_compute_threads

_SHAPE = AttentionShape(num_heads=9, num_kv_heads=3, head_dim=64, scale=0.125)
_NUM_LAYERS = 30
_BLOCK_SIZE = 16
_DECODE = ((1, 1024), (16, 128), (64, 128), (16, 1024), (64, 1024))
"""(sequences, tokens of context each)"""
_PREFILL = (512, 2048)
_SCATTERED = (64, 1024)
"""The decode case that is also measured with blocks in disorder: in extents of 16, and one by one."""
_SHARED = ((32, 1024, 64), (32, 700, 64), (4, 1024, 64))
"""(sequences, tokens that all of them begin with, tokens of their own)"""

NOTED = {
    ("bfloat16", "decode 16x128"): 1.4, ("bfloat16", "decode 64x128"): 6.2, ("bfloat16", "decode 16x1024"): 8.0,
    ("bfloat16", "decode 64x1024"): 35.0, ("bfloat16", "decode 1x1024"): 0.55, ("int8", "decode 1x1024"): 0.29,
    ("int8", "decode 16x128"): 1.1, ("int8", "decode 64x128"): 4.7, ("int8", "decode 16x1024"): 5.0,
    ("int8", "decode 64x1024"): 20.0, ("bfloat16", "prefill 512"): 24.0, ("bfloat16", "prefill 2048"): 373.0,
}  # fmt: skip
"""A prototype's milliseconds on two cores of Zen 4 with AVX-512, blocks in order."""


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    spans: list[SequenceSpan]
    num_blocks: int


def block_ids(num_sequences: int, blocks_each: int, extent: int) -> list[list[int]]:
    """Each sequence's blocks: neighbours in runs of `extent`, the runs shuffled; 0 leaves all in order."""
    total = num_sequences * blocks_each
    order = list(range(total))
    if extent:
        runs = [order[at : at + extent] for at in range(0, total, extent)]
        random.Random(0).shuffle(runs)
        order = [block for run in runs for block in run]
    return [order[at : at + blocks_each] for at in range(0, total, blocks_each)]


def cases() -> list[Case]:
    made = []
    for num_sequences, context in _DECODE:
        for extent in (0, 16, 1) if (num_sequences, context) == _SCATTERED else (0,):
            tables = block_ids(num_sequences, context // _BLOCK_SIZE, extent)
            spans = [SequenceSpan(context - 1, 1, table) for table in tables]
            order = {0: "", 16: ", extents of 16 blocks", 1: ", single blocks"}[extent]
            name = f"decode {num_sequences}x{context}{order}"
            made.append(Case(name, spans, num_sequences * context // _BLOCK_SIZE))
    for num_sequences, num_shared, num_own in _SHARED:
        common = range(num_shared // _BLOCK_SIZE)
        own = block_ids(num_sequences, num_own // _BLOCK_SIZE, 0)
        spans = [
            SequenceSpan(len(common) * _BLOCK_SIZE + num_own - 1, 1, [*common, *(len(common) + block for block in blocks)])
            for blocks in own
        ]
        name = f"decode {num_sequences}x{num_shared + num_own}, {num_shared} shared"
        made.append(Case(name, spans, len(common) + num_sequences * num_own // _BLOCK_SIZE))
    for length in _PREFILL:
        blocks = length // _BLOCK_SIZE
        made.append(Case(f"prefill {length}", [SequenceSpan(0, length, range(blocks))], blocks))
    return made


def timed_layers(ops: NativeOps, case: Case, num_layers: int, clock: Callable[[], float]) -> Callable[[], float]:
    """Milliseconds for all layers. Each has its own cache, as in a model, so that the processor's own caches do not help."""
    layers = [ops.allocate_kv(_SHAPE, num_blocks=case.num_blocks, block_size=_BLOCK_SIZE) for _ in range(num_layers)]
    num_rows = sum(span.num_tokens for span in case.spans)
    rng = np.random.default_rng(0)
    width = _SHAPE.num_heads * _SHAPE.head_dim
    q = ops._engine.from_array(rng.standard_normal((num_rows, width)).astype(np.float32))
    kv_width = 2 * _SHAPE.num_kv_heads * _SHAPE.head_dim
    with ops.computing():
        for table in {tuple(span.block_ids) for span in case.spans}:
            length = len(table) * _BLOCK_SIZE
            rows = rng.standard_normal((length, width + kv_width)).astype(np.float32)
            where = ops.place([SequenceSpan(0, length, table)], block_size=_BLOCK_SIZE, windows=[None])
            for layer in layers:
                ops.rope_and_cache(ops._engine.from_array(rows), layer, where, _SHAPE, rotation=None, norm=None)
    placement = ops.place(case.spans, block_size=_BLOCK_SIZE, windows=[None])

    def run() -> float:
        with ops.computing():
            began = clock()
            for layer in layers:
                ops.attention(q, layer, placement, _SHAPE)
            return (clock() - began) * 1000 * _NUM_LAYERS / num_layers

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--kv-dtypes", nargs="+", default=KV_DTYPES, choices=KV_DTYPES)
    parser.add_argument("--num-layers", type=int, default=_NUM_LAYERS, help="fewer take less memory; figures are scaled")
    parser.add_argument("--num-threads", type=int, default=num_compute_threads())
    parser.add_argument("--cpu-time", action="store_true", help="count the time on the processor, not the time that passes")
    parser.add_argument("--num-runs", type=int, default=7)
    parser.add_argument("--no-save", action="store_true")
    options = parser.parse_args()
    num_threads, clock = options.num_threads, time.process_time if options.cpu_time else time.perf_counter
    ops = {name: NativeOps(dtype="float32", kv_dtype=name, num_threads=num_threads) for name in options.kv_dtypes}
    isa = next(iter(ops.values()))._engine.isa
    what = f"Attention of {_NUM_LAYERS} layers (9 heads, 3 KV heads, 64 wide), {isa}, {num_threads} threads"
    result = Result("attention", what)
    for case in cases():
        if options.only not in case.name:
            continue
        for name, made in ops.items():
            run = timed_layers(made, case, options.num_layers, clock)
            run()
            figure = Figure(f"{name}: {case.name}", "ms", tuple(run() for _ in range(options.num_runs)))
            result.figures.append(figure)
            noted = NOTED.get((name, case.name))
            print(figure, f"(noted on Zen 4 with AVX-512: {noted:g})" if noted else "", flush=True)
    if options.cpu_time:
        result.notes.append("time on the processor, while others used the machine")
    if not options.no_save:
        result.save()


if __name__ == "__main__":
    main()
