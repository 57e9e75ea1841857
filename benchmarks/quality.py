"""What each format of weights and of the KV cache costs in quality: perplexity on a text and minimal pairs (BLiMP) told
apart, beside float32 throughout. The checkpoint's own 4-bit weights, dequantised, are what float32 means here.

A run that was stopped goes on where it was: each format's figures are kept in a file as soon as they are there.
"""

import argparse
import json
import math
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from benchmarks.harness import Figure, Result, Target
from benchmarks.models import smollm2_path
from benchmarks.perplexity import BLOCK_SIZE, Scorer, agreement, divergence
from rich.progress import track

from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.ops.native.ops import NativeOps
from headrace.engine.worker.cores import num_compute_threads

_STEP_TOKENS = 512
_SUITES = Path("../shared/data/suites")
_TABLE = Path("docs/quality.md")


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    quantization: str = "auto"
    kv_dtype: str = "float32"
    dtype: str = "float32"


REFERENCE = Format("weights F32", "none")
FORMATS = (
    REFERENCE,
    Format("weights Q4_1, as shipped"),
    Format("weights Q4_1, KV bfloat16", "auto", "bfloat16"),
    Format("weights Q4_1, KV int8", "auto", "int8"),
    Format("weights Q4_1, KV fp8_e4m3", "auto", "fp8_e4m3"),
    Format("weights Q8_0", "q8_0"),
    Format("weights Q4_0", "q4_0"),
    Format("weights BF16, rows and KV BF16", "none", "bfloat16", dtype="bfloat16"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """Token ids of a sentence that is grammatical and of one that is not, as alike as can be."""

    good: list[int]
    bad: list[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-windows", type=int, default=8, help="of 512 tokens, for perplexity")
    parser.add_argument("--num-compared", type=int, default=2, help="windows whose probabilities are compared as a whole")
    parser.add_argument("--pairs-per-paradigm", type=int, default=6)
    parser.add_argument("--kept", type=Path, default=Path("build/quality.json"), help="figures so far; delete to start anew")
    parser.add_argument("--report-only", action="store_true", help="write down what is kept, complete or not")
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    text = (_SUITES / "wikitext-2/test.txt").read_text(encoding="utf-8")[: options.num_windows * _STEP_TOKENS * 8]
    ids = tokenizer.encode(text)[: options.num_windows * _STEP_TOKENS]
    windows = [ids[at : at + _STEP_TOKENS] for at in range(0, len(ids), _STEP_TOKENS)]
    begin = [tokenizer.encode("<|endoftext|>")[0]]
    sentences = list(_blimp(_SUITES / "blimp/blimp_data.tar.xz", options.pairs_per_paradigm))
    pairs = [Pair(begin + tokenizer.encode(good), begin + tokenizer.encode(bad)) for good, bad in sentences]

    asked = [len(windows), options.num_compared, len(pairs)]
    kept: dict[str, dict[str, float]] = {}
    if options.kept.exists():
        document = json.loads(options.kept.read_text())
        kept = document["figures"] if document["asked"] == asked else {}

    if options.report_only:
        _report(kept, num_tokens=len(ids), num_pairs=len(pairs))
        return

    def keep(form: Format, figures: dict[str, float]) -> None:
        kept.setdefault(form.name, {}).update(figures)
        options.kept.parent.mkdir(exist_ok=True)
        options.kept.write_text(json.dumps({"asked": asked, "figures": kept}, indent=1))

    without_text = [form for form in FORMATS if "perplexity" not in kept.get(form.name, {})]
    if without_text:
        reference = _scorer(path, REFERENCE)
        compared = [reference.log_probabilities([window]) for window in windows[: options.num_compared]]
        for form in without_text:
            keep(form, _read_text(form.name, _scorer(path, form), windows, compared))
    for form in FORMATS:
        if "blimp" not in kept[form.name]:
            keep(form, _tell_apart(form.name, _scorer(path, form), pairs))
    _report(kept, num_tokens=len(ids), num_pairs=len(pairs))


def _scorer(path: Path, form: Format) -> Scorer:
    ops = NativeOps(
        dtype=form.dtype, num_threads=num_compute_threads(), kv_dtype=form.kv_dtype, quantization=form.quantization
    )
    return Scorer(path, ops, max_tokens=2 * _STEP_TOKENS)


def _read_text(
    name: str, scorer: Scorer, windows: Sequence[list[int]], compared: Sequence[npt.NDArray[np.float32]]
) -> dict[str, float]:
    losses, divergences, agreements = [], [], []
    for i, window in enumerate(track(windows, description=f"{name}: text")):
        ours = scorer.log_probabilities([window])
        losses.append(float(-np.take_along_axis(ours, np.array(window[1:])[:, None], axis=1).mean()))
        if i < len(compared):
            divergences.append(divergence(compared[i], ours))
            agreements.append(agreement(compared[i], ours))
    return {
        "perplexity": math.exp(sum(losses) / len(losses)),
        "divergence": sum(divergences) / len(divergences),
        "agreement": sum(agreements) / len(agreements),
    }


def _tell_apart(name: str, scorer: Scorer, pairs: Sequence[Pair]) -> dict[str, float]:
    num_right = 0
    for batch in track(list(_batches(pairs)), description=f"{name}: pairs"):
        scores = _sentence_scores(scorer, [ids for pair in batch for ids in (pair.good, pair.bad)])
        num_right += sum(good > bad for good, bad in zip(scores[::2], scores[1::2], strict=True))
    return {"blimp": num_right / len(pairs)}


def _sentence_scores(scorer: Scorer, sentences: Sequence[list[int]]) -> list[float]:
    """The log-probability of each as a whole."""
    rows = scorer.log_probabilities(sentences)
    scores, first = [], 0
    for ids in sentences:
        end = first + len(ids) - 1
        scores.append(float(np.take_along_axis(rows[first:end], np.array(ids[1:])[:, None], axis=1).sum()))
        first = end
    return scores


def _batches(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """As many as fit into a step, each sequence in whole blocks."""
    batch: list[Pair] = []
    num_places = 0
    for pair in pairs:
        needed = sum(-(-len(ids) // BLOCK_SIZE) * BLOCK_SIZE for ids in (pair.good, pair.bad))
        if num_places + needed > 2 * _STEP_TOKENS:
            yield batch
            batch, num_places = [], 0
        batch.append(pair)
        num_places += needed
    if batch:
        yield batch


def _blimp(archive: Path, num_pairs: int) -> Iterator[tuple[str, str]]:
    """The first pairs of each of the 67 paradigms."""
    with tarfile.open(archive) as files:
        for member in sorted(files.getmembers(), key=lambda m: m.name):
            if not member.name.endswith(".jsonl") or "/." in member.name:
                continue
            file = files.extractfile(member)
            assert file is not None
            for line in file.read().splitlines()[:num_pairs]:
                entry = json.loads(line)
                yield entry["sentence_good"], entry["sentence_bad"]


def _report(kept: dict[str, dict[str, float]], *, num_tokens: int, num_pairs: int) -> None:
    what = f"Perplexity over {num_tokens} tokens of wikitext-2 in windows of {_STEP_TOKENS}, {num_pairs} pairs of BLiMP"
    result = Result("quality", f"{what}; SmolLM2-135M-Instruct, native kernels")
    units = {"perplexity": "", "divergence": "nats", "agreement": "share", "blimp": "share"}
    names = {
        "perplexity": "perplexity",
        "divergence": "divergence from float32",
        "agreement": "same most probable token as float32",
        "blimp": "pairs told apart",
    }
    measured = [form for form in FORMATS if form.name in kept]
    for form in measured:
        for key, value in kept[form.name].items():
            result.figures.append(Figure(f"{form.name}: {names[key]}", units[key], (value,)))
    best = kept[REFERENCE.name]["perplexity"]
    for form in measured[1:]:
        ratio = kept[form.name]["perplexity"] / best
        result.targets.append(Target(f"{form.name}: perplexity within 2% of float32", ratio, "x", ratio < 1.02))
    result.save()
    _TABLE.write_text(_page(kept, what))


def _page(kept: dict[str, dict[str, float]], what: str) -> str:
    lines = [
        "# What formats cost in quality",
        "",
        f"{what}.",
        "The model is SmolLM2-135M-Instruct. F32 means the shipped 4-bit weights' own numbers in float32 throughout; the",
        "other weight formats are those numbers rounded again, except the shipped. Quantised weights meet rows rounded to",
        "int8. Where no format of the KV cache is named, it is float32. Written by `python -m benchmarks.quality`, which",
        "goes on where it was stopped; the figures are those of `benchmarks/results/quality.json`.",
        "",
        "| format | perplexity | divergence from F32, nats | same first token | BLiMP |",
        "|---|---|---|---|---|",
    ]
    for form in (form for form in FORMATS if form.name in kept):
        f = kept[form.name]
        blimp = f"{f['blimp']:.1%}" if "blimp" in f else "not measured"
        lines.append(f"| {form.name} | {f['perplexity']:.3f} | {f['divergence']:.5f} | {f['agreement']:.1%} | {blimp} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
