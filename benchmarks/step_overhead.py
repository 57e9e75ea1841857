"""What a decode step costs beside its arithmetic: the forward pass replayed from a tape, and called operation by operation.

A step's wall time is that between the ends of two forward passes. What is not forward pass is Python that nothing hides:
differences applied, the step laid out, tokens chosen, the result handed over, the next plan waited for. With steps planned
ahead, the mind's own work runs on another thread meanwhile; its processor time is told too, since it takes turns with the
threads that compute.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from benchmarks.harness import Figure, Result, Target, interleave
from benchmarks.local_engine import LocalEngine
from benchmarks.models import smollm2_path
from benchmarks.texts import prompts

from headrace.engine.host.tokenizer import load_tokenizer


@dataclass(slots=True)
class Stopwatch:
    """Stands in for a function, and notes when its calls begin and end."""

    function: Callable[..., object]
    calls: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, *arguments: object) -> object:
        began = time.perf_counter()
        result = self.function(*arguments)
        self.calls.append((began, time.perf_counter()))
        return result


@dataclass(frozen=True, slots=True)
class Steps:
    wall_ms: float
    outside_ms: float
    sampling_ms: float
    mind_ms: float

    @property
    def share(self) -> float:
        return 100 * self.outside_ms / self.wall_ms


class Measured:
    def __init__(self, engine: LocalEngine) -> None:
        runner = engine.worker._runner
        assert runner is not None
        self.engine = engine
        self._forward = Stopwatch(runner._graph.logits)
        self._sample = Stopwatch(runner._sampler.sample)
        runner._graph.logits = self._forward
        runner._sampler.sample = self._sample  # type: ignore[method-assign]

    def run(self, batch: list[list[int]], *, max_tokens: int) -> Steps:
        """Medians over the decode steps: the first ones, which take the prompts in, are left out."""
        self._forward.calls.clear()
        self._sample.calls.clear()
        mind = time.thread_time()
        self.engine.generate(batch, max_tokens=max_tokens)
        mind = time.thread_time() - mind
        calls = self._forward.calls[-(max_tokens - 4) :]
        walls = [after[1] - before[1] for before, after in pairwise(calls)]
        outside = [after[0] - before[1] for before, after in pairwise(calls)]
        sampling = [end - began for began, end in self._sample.calls[-(max_tokens - 4) :]]
        return Steps(*(1000 * _median(x) for x in (walls, outside, sampling, [mind / len(self._forward.calls)])))


def _median(x: list[float]) -> float:
    return sorted(x)[len(x) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    engines = {
        name: Measured(LocalEngine(path, ops="native", enforce_eager=enforce_eager, enable_prefix_caching=False))
        for name, enforce_eager in (("tape", False), ("eager", True))
    }
    result = Result("step_overhead", f"Greedy decode after 32-token prompts, {options.max_tokens} tokens each, natively")
    for size in options.batch_sizes:
        batch = prompts(tokenizer, [32] * size)
        taken: dict[str, list[Steps]] = {name: [] for name in engines}

        def measure(name: str, batch: list[list[int]] = batch, taken: dict[str, list[Steps]] = taken) -> float:
            taken[name].append(engines[name].run(batch, max_tokens=options.max_tokens))
            return taken[name][-1].wall_ms

        interleave({name: partial(measure, name) for name in engines}, num_runs=options.num_runs)
        for name, runs in taken.items():
            kept, what = runs[1:], f"{name}, {size} at once"
            result.figures += [
                Figure(f"{what}: step", "ms", tuple(run.wall_ms for run in kept)),
                Figure(f"{what}: speed", "tok/s", tuple(1000 * size / run.wall_ms for run in kept)),
                Figure(f"{what}: outside the forward pass", "ms", tuple(run.outside_ms for run in kept)),
                Figure(f"{what}: choosing tokens", "ms", tuple(run.sampling_ms for run in kept)),
                Figure(f"{what}: the mind's thread, processor time", "ms", tuple(run.mind_ms for run in kept)),
                Figure(f"{what}: share of Python", "%", tuple(run.share for run in kept)),
            ]
            if size == 16 and name == "tape":
                share = result.figures[-1].median
                result.targets.append(Target("Python takes under 5 % of a step of 16 sequences", share, "%", share < 5))
    result.save()
    for measured in engines.values():
        measured.engine.close()


if __name__ == "__main__":
    main()
