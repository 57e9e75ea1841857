"""What each arithmetic costs in quality: perplexity on a text, beside torch's float32 on the same weights and windows."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from benchmarks.harness import Figure, Result, Target
from benchmarks.models import smollm2_path

from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.layers.forward_batch import ForwardBatch
from headrace.engine.layers.rotary import Rotary
from headrace.engine.models.decoder import Decoder
from headrace.engine.models.weights import open_checkpoint
from headrace.engine.ops.protocol import Ops, SequenceSpan
from headrace.engine.ops.registry import choose_ops
from headrace.engine.worker.kv_cache import KVCache

BLOCK_SIZE = 16


class Scorer:
    """One model in one arithmetic; every step starts from an empty cache."""

    def __init__(self, path: Path, ops: Ops, *, max_tokens: int) -> None:
        """`max_tokens`: of one step, whole blocks for each sequence."""
        self._ops = ops
        checkpoint = open_checkpoint(path)
        spec = checkpoint.spec
        self._num_blocks = -(-max_tokens // BLOCK_SIZE)
        with self._ops.computing():
            self._decoder = Decoder(self._ops, spec, checkpoint)
            self._cache = KVCache(self._ops, spec, num_blocks=self._num_blocks, block_size=BLOCK_SIZE)
            self._rotaries = [Rotary(self._ops, rope, max_model_len=max_tokens) for rope in spec.ropes]
        self._windows = tuple(dict.fromkeys(layer.window for layer in spec.layers))

    def log_probabilities(self, sequences: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """[tokens that have a successor, vocab_size], one sequence after another."""
        spans: list[SequenceSpan] = []
        rows: list[int] = []
        first_row = first_block = 0
        for ids in sequences:
            blocks = range(first_block, first_block + -(-len(ids) // BLOCK_SIZE))
            spans.append(SequenceSpan(0, len(ids), blocks))
            rows += range(first_row, first_row + len(ids) - 1)
            first_row, first_block = first_row + len(ids), blocks.stop
        assert first_block <= self._num_blocks, "the sequences do not fit into the cache"
        with self._ops.computing():
            placement = self._ops.place(spans, block_size=BLOCK_SIZE, windows=self._windows)
            batch = ForwardBatch(
                token_ids=self._ops.token_ids([token for ids in sequences for token in ids]),
                placement=placement,
                rotations=tuple(rotary(placement) for rotary in self._rotaries),
                logit_rows=self._ops.row_ids(rows),
            )
            logits = np.array(self._decoder(batch, self._cache.layers), np.float32)
        logits -= logits.max(axis=-1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return logits


def divergence(reference: npt.NDArray[np.float32], ours: npt.NDArray[np.float32]) -> float:
    """Kullback and Leibler's, from the reference, in nats, mean over positions."""
    return float((np.exp(reference) * (reference - ours)).sum(axis=1, dtype=np.float64).mean())


def agreement(reference: npt.NDArray[np.float32], ours: npt.NDArray[np.float32]) -> float:
    """Share of positions with the same most probable token."""
    return float((reference.argmax(axis=1) == ours.argmax(axis=1)).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path("../shared/data/suites/wikitext-2/test.txt"))
    parser.add_argument("--num-windows", type=int, default=12)
    parser.add_argument("--window", type=int, default=512)
    options = parser.parse_args()
    path = smollm2_path()
    text = options.text.read_text(encoding="utf-8")[: options.num_windows * options.window * 8]
    ids = load_tokenizer(path).encode(text)[: options.num_windows * options.window]
    windows = [ids[at : at + options.window] for at in range(0, len(ids), options.window)]
    arithmetics = [("torch", "float32"), ("torch", "bfloat16"), ("native", "float32"), ("native", "bfloat16")]
    scorers = {}
    for name, dtype in arithmetics:
        choice = choose_ops(name, device="cpu", dtype=dtype, storages=frozenset(), block_size=BLOCK_SIZE)
        scorers[f"{name} {dtype}"] = Scorer(path, choice.make(2), max_tokens=options.window)
    losses: dict[str, list[float]] = {name: [] for name in scorers}
    divergences: dict[str, list[float]] = {name: [] for name in scorers}
    agreements: dict[str, list[float]] = {name: [] for name in scorers}
    for window in windows:
        reference = scorers["torch float32"].log_probabilities([window])
        targets = np.array(window[1:])[:, None]
        for name, scorer in scorers.items():
            ours = reference if name == "torch float32" else scorer.log_probabilities([window])
            losses[name].append(float(-np.take_along_axis(ours, targets, axis=1).mean()))
            divergences[name].append(divergence(reference, ours))
            agreements[name].append(agreement(reference, ours))
    result = Result(
        "perplexity", f"Perplexity over {len(windows)} windows of {options.window} tokens of {options.text.name}"
    )
    perplexities = {name: math.exp(sum(values) / len(values)) for name, values in losses.items()}
    for name in scorers:
        result.figures.append(Figure(f"{name}: perplexity", "", (perplexities[name],)))
        result.figures.append(Figure(f"{name}: divergence from torch float32", "nats", tuple(divergences[name])))
        result.figures.append(Figure(f"{name}: same most probable token", "share", tuple(agreements[name])))
    worst = max(perplexities[name] for name in scorers if name.startswith("native")) / perplexities["torch float32"]
    result.targets.append(Target("native perplexity within 1% of torch float32", worst, "x", worst < 1.01))
    result.save()


if __name__ == "__main__":
    main()
