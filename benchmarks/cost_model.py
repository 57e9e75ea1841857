"""The GPU cost model beside measured serving points: errors and coverage, on runs, devices and families it has not seen.

    python -m benchmarks.cost_model DATA [--cache FILE]     DATA is aiconfigurator's folder with systems/silicon_sample.csv

Needs scipy. Kernel curves are fitted to kernel tables alone (`gpu_fits/kernels.py`); factors are those that ship. What is
learned from serving points (deviations of deployments, what precedes a first token) is learned without the held-out runs.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.gpu_fits.deployments_file import SHIPPED
from benchmarks.gpu_fits.deviations import Deviations, learn
from benchmarks.gpu_fits.first_token import TERMS, FirstToken, fit_first_token, quantities
from benchmarks.gpu_fits.points import Point, read_decode_workers, read_points
from benchmarks.gpu_fits.real_scheduler import differences
from benchmarks.gpu_fits.recipes import defaults, recipe
from benchmarks.gpu_fits.replay import Replayed, replay
from benchmarks.gpu_fits.tuning import UNFITTED, decode_size, folds, step_model, tpot_components
from benchmarks.harness import RESULTS, Figure, Result, Target

from headrace.specs.device import device

Array = np.ndarray[Any, Any]
PAGE = Path(__file__).parents[1] / "docs" / "cost-model.md"
TPOT_CLIP, TTFT_CLIP = 0.3, 0.8
"""Residuals beyond count as if they were that: a run whose flags nobody knows must not speak for its neighbours."""
_BEGIN, _END = "<!-- figures: written by benchmarks/cost_model.py -->", "<!-- end -->"
MAX_POINTS = 350
"""Of which variances are learned: whole runs."""
NUM_ANCHORS = 2
NUM_DEALS = 5
NUM_SPLITS = 40
_RUNS_OF_DOUBT = 5


@dataclass(frozen=True)
class Data:
    points: list[Point]
    tpot: Array
    """[points, COMPONENTS], microseconds."""
    ttft: Array
    prompt_steps: Array

    def where(self, mask: Array) -> "Data":
        kept = [point for point, held in zip(self.points, mask, strict=True) if held]
        return Data(kept, self.tpot[mask], self.ttft[mask], self.prompt_steps[mask])

    @property
    def measured_tpot(self) -> Array:
        return np.array([point.tpot_ms for point in self.points])

    @property
    def measured_ttft(self) -> Array:
        return np.array([point.ttft_ms for point in self.points])

    @property
    def physics_tpot(self) -> Array:
        return self.tpot @ np.exp(UNFITTED.shared) / 1e3

    @property
    def first_token_quantities(self) -> Array:
        return quantities(self.points, self.physics_steps, self.physics_tpot, self.prompt_steps)

    @property
    def physics_steps(self) -> Array:
        """Wait and prompts before the first token; launches are counted by `first_token`."""
        factors = np.exp(UNFITTED.shared)
        factors[-1] = 0.0
        return self.ttft @ factors / 1e3


def load(folder: Path, cache: Path | None, *, knows_scripts: bool = True) -> tuple[Data, Counter[str]]:
    points, left_out = read_points(folder / "systems" / "silicon_sample.csv")
    if cache is not None and not knows_scripts:
        cache = cache.with_stem(cache.stem + "-defaults")
    if cache is not None and cache.exists():
        stored = np.load(cache)
        if list(stored["rows"]) == [point.row for point in points]:
            return Data(points, stored["tpot"], stored["ttft"], stored["prompt_steps"]), left_out
    replayed: list[Replayed] = []
    for index, point in enumerate(points):
        replayed.append(replay(point, step_model(point), recipe(point) if knows_scripts else defaults(point)))
        if index % 100 == 0:
            print(f"  replayed {index} of {len(points)}", flush=True)
    data = Data(
        points,
        np.array([one.tpot for one in replayed]),
        np.array([one.ttft for one in replayed]),
        np.array([one.prompt_steps for one in replayed]),
    )
    if cache is not None:
        rows = np.array([point.row for point in points])
        np.savez(cache, rows=rows, tpot=data.tpot, ttft=data.ttft, prompt_steps=data.prompt_steps)
    return data, left_out


# What is learned from serving points


@dataclass(frozen=True)
class Learned:
    """Everything that serving points taught, from the points `known`."""

    known: Data
    tpot: Deviations
    first_token: FirstToken
    ttft: Deviations

    def tpot_log(self, asked: Data) -> "Belief":
        """Of the logarithm of TPOT in ms."""
        known = np.clip(np.log(self.known.measured_tpot / self.known.physics_tpot), -TPOT_CLIP, TPOT_CLIP)
        mean, covariance = self.tpot.condition(self.known.points, known, asked.points)
        return Belief(self.tpot, np.log(asked.physics_tpot), mean, covariance)

    def ttft_log(self, asked: Data) -> "Belief":
        known = np.clip(np.log(self.known.measured_ttft / self._ttft(self.known)), -TTFT_CLIP, TTFT_CLIP)
        mean, covariance = self.ttft.condition(self.known.points, known, asked.points)
        return Belief(self.ttft, np.log(self._ttft(asked)), mean, covariance)

    def _ttft(self, data: Data) -> Array:
        return self.first_token.predict(data.points, data.first_token_quantities)


@dataclass(frozen=True)
class Belief:
    """Logarithms of a metric at some points: physics, and what is believed of the residuals there."""

    deviations: Deviations
    physics: Array
    residual: Array
    covariance: Array

    @property
    def mean(self) -> Array:
        return self.physics + self.residual

    @property
    def deviation(self) -> Array:
        return self.deviations.deviations(self.covariance)

    def anchored(self, at: Array, measured: Array) -> "Belief":
        """Once the metric has been measured at the points `at`."""
        residual, covariance = self.deviations.anchor(
            self.residual, self.covariance, at, np.log(measured) - self.physics[at]
        )
        return Belief(self.deviations, self.physics, residual, covariance)


def learned_from(known: Data) -> Learned:
    tpot = learn(known.points, np.log(known.measured_tpot / known.physics_tpot), max_points=MAX_POINTS)
    first = fit_first_token(known.points, known.first_token_quantities)
    found = first.predict(known.points, known.first_token_quantities)
    ttft = learn(known.points, np.log(known.measured_ttft / found), max_points=MAX_POINTS)
    return Learned(known, tpot, first, ttft)


# How well it predicts


@dataclass(frozen=True)
class Predicted:
    """Logarithms and what the model believes of their errors, for every point while its group was held out."""

    tpot: Array
    tpot_deviation: Array
    ttft: Array
    ttft_deviation: Array
    anchored_ttft: Array
    """With two points of the deployment known; not a number for those two and for runs too small."""
    anchored_ttft_deviation: Array
    anchored_tpot: Array


def held_out(data: Data, by: str, *, seed: int = 0) -> Predicted:
    """`seed`: how runs are dealt into folds."""
    columns = [np.full(len(data.points), np.nan) for _ in range(7)]
    for mask in folds(data.points, by, seed=seed):
        known, asked = data.where(~mask), data.where(mask)
        learned = learned_from(known)
        tpot, ttft = learned.tpot_log(asked), learned.ttft_log(asked)
        columns[0][mask], columns[1][mask] = tpot.mean, tpot.deviation
        columns[2][mask], columns[3][mask] = ttft.mean, ttft.deviation
        if by == "run":
            anchored = _anchored(asked, ttft, tpot)
            for column, values in zip(columns[4:], anchored, strict=True):
                column[mask] = values
        print(f"  held out by {by}: {int(mask.sum())} points", flush=True)
    return Predicted(*columns)


def _anchored(asked: Data, ttft_belief: Belief, tpot_belief: Belief) -> tuple[Array, Array, Array]:
    """Each run in turn, with two of its points known: a fifth from either end by the TTFT that is expected of them."""
    count = len(asked.points)
    ttft, ttft_deviation, tpot = (np.full(count, np.nan) for _ in range(3))
    runs = np.array([point.run for point in asked.points])
    for run in sorted(set(runs)):
        members = np.flatnonzero(runs == run)
        if len(members) < NUM_ANCHORS + 2:
            continue
        ordered = members[np.argsort(ttft_belief.mean[members], kind="stable")]
        anchors = np.array([ordered[len(ordered) // 5], ordered[-1 - len(ordered) // 5]])
        rest = (runs == run) & ~np.isin(np.arange(count), anchors)
        found = ttft_belief.anchored(anchors, asked.measured_ttft[anchors])
        ttft[rest], ttft_deviation[rest] = found.mean[rest], found.deviation[rest]
        tpot[rest] = tpot_belief.anchored(anchors, asked.measured_tpot[anchors]).mean[rest]
    return ttft, ttft_deviation, tpot


def errors(predicted: Array, measured: Array) -> Array:
    """Relative, where there is a prediction."""
    held = ~np.isnan(predicted)
    return np.asarray(np.abs(np.exp(predicted[held]) / measured[held] - 1))


def coverage(points: Sequence[Point], predicted: Array, deviation: Array, measured: Array) -> dict[str, float]:
    """Of 90 % intervals by split conformal prediction: widths from half of the runs, coverage on the other half, many times
    over; all together and by group. Widths are in units of what the model believes of each point."""
    scores = np.abs(predicted - np.log(measured)) / deviation
    runs = np.array([point.run for point in points])
    names = np.array(sorted(set(runs)))
    groups: dict[str, Array] = {"all": np.ones(len(points), bool)}
    for key in ("backend", "load"):
        values = np.array([getattr(point, key) for point in points])
        groups |= {f"{key} {value}": values == value for value in sorted(set(values))}
    hits: dict[str, list[float]] = {name: [] for name in groups}
    generator = np.random.default_rng(0)
    for _ in range(NUM_SPLITS):
        half = np.isin(runs, generator.permutation(names)[: len(names) // 2])
        scaled = scores / _scales(scores, half, runs, groups)
        width = _conformal(scaled[half], num_units=len(names) // 2)
        for name, mask in groups.items():
            tested = mask & ~half
            if tested.sum() >= 20:
                hits[name].append(float((scaled[tested] <= width).mean()))
    return {name: float(np.mean(values)) for name, values in hits.items() if values}


def _scales(scores: Array, half: Array, runs: Array, groups: dict[str, Array]) -> Array:
    """How much wider each group's errors are than all, by the calibrating half alone; few runs are trusted less."""
    scales = np.ones(len(scores))
    whole = np.quantile(scores[half], 0.9)
    for name, mask in groups.items():
        known = mask & half
        num_runs = len(set(runs[known]))
        if name != "all" and num_runs:
            trust = num_runs / (num_runs + _RUNS_OF_DOUBT)
            scales[mask] *= (np.quantile(scores[known], 0.9) / whole) ** trust
    return scales


def _conformal(scores: Array, *, num_units: int, share: float = 0.9) -> float:
    """The width that holds `share` of what comes: a little more than held that share of what came, since only so many
    exchangeable units (runs, not points) have come."""
    ordered = np.sort(scores[~np.isnan(scores)])
    return float(ordered[min(len(ordered) - 1, int(np.ceil(share * (1 + 1 / num_units) * len(ordered))) - 1)])


# What is kept


def ship(data: Data, learned: Learned, quantiles: dict[str, float]) -> None:
    """Deviations of the deployments that were measured, and widths for those that were not."""
    deployments: dict[str, Any] = {}
    for point in data.points:
        architecture, label = device(point.device).architecture, point.run.split("|")[3]
        deployments.setdefault(f"{point.model}|{point.backend}|{architecture}|{label}", []).append(point)
    everywhere = learned.tpot_log(data)
    cells = {}
    for name, members in sorted(deployments.items()):
        held = np.array([point in members for point in data.points])
        residual = everywhere.residual[held]
        loads = np.log10([point.concurrency / 30 for point in members])
        spread = float(np.ptp(loads))
        slope = float(np.polyfit(loads, residual, 1)[0]) if len(members) > 3 and spread > 0.5 else 0.0
        level = float(np.mean(residual - slope * loads))
        cells[name] = {"level": round(level, 4), "slope": round(slope, 4), "num_points": len(members)}
    first = {
        name: dict(
            zip(
                TERMS,
                (float(f"{v:.4g}") for v in np.exp(learned.first_token.shared + logs)),
                strict=True,
            )
        )
        for name, logs in learned.first_token.groups.items()
    }
    document = {
        "source": "serving points of ai-dynamo/aiconfigurator at 095f58a (Apache-2.0), learned by benchmarks/cost_model.py",
        "meaning": "level and slope of the logarithm of time over the model's, at 30 users and for each decade of them; "
        "first_token is what public benchmark runs showed before a first token; handover is what fleets showed that "
        "answer prompts which others have computed",
        "half_widths_90": {name: round(value, 4) for name, value in quantiles.items()},
        "deployments": cells,
        "first_token": first,
        "handover": json.loads(SHIPPED.read_text())["handover"],  # by benchmarks/disaggregated.py
    }
    SHIPPED.write_text(json.dumps(document, indent=1) + "\n")


def table(data: Data, predicted: Predicted) -> list[dict[str, Any]]:
    """By device, model and layout, with runs held out."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for index, point in enumerate(data.points):
        layout = point.parallel
        words = f"TP{layout.tensor_parallel_size}"
        words += f" DP{layout.data_parallel_size}" if layout.data_parallel_size > 1 else ""
        words += f" EP{layout.expert_parallel_size}" if layout.expert_parallel_size > 1 else ""
        groups.setdefault((point.device, point.model, words), []).append(index)
    rows = []
    for (name, model, words), members in sorted(groups.items()):
        index = np.array(members)
        tpot = np.abs(np.exp(predicted.tpot[index]) / data.measured_tpot[index] - 1)
        ttft = np.abs(np.exp(predicted.ttft[index]) / data.measured_ttft[index] - 1)
        rows.append(
            {
                "device": name, "model": model, "layout": words, "num_points": len(members),
                "tpot_median": round(float(np.median(tpot)), 4), "tpot_p90": round(float(np.quantile(tpot, 0.9)), 4),
                "ttft_median": round(float(np.median(ttft)), 4), "ttft_p90": round(float(np.quantile(ttft, 0.9)), 4),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()
    sys.argv[1:] = ["DATA"]  # the result's command names no folder of this machine
    data, left_out = load(options.data, options.cache)
    result = Result(
        "cost_model",
        f"Predicted beside measured serving points of public benchmarks: {len(data.points)} points of "
        f"{len({point.run for point in data.points})} runs, aggregated serving, split by run, by device or by model family",
    )
    closed = np.array([tpot_components(point) for point in data.points]) @ np.exp(UNFITTED.shared) / 1e3
    physics = np.log(data.physics_tpot)
    _figures(result, "TPOT, kernels alone, nothing learned from serving points", errors(physics, data.measured_tpot))
    gap = np.abs(closed / data.physics_tpot - 1)
    result.figures.append(
        Figure("closed form beside the replay, TPOT, median difference", "%", (100 * float(np.median(gap)),))
    )
    apart = differences(data.points, list(data.physics_tpot), list(_launched(data)))
    for index, metric in enumerate(("TPOT", "TTFT")):
        median = float(np.median([abs(pair[index]) for pair in apart]))
        words = f"the replay beside Headrace's own scheduler, mean {metric}, {len(apart)} points of vLLM, median difference"
        result.figures.append(Figure(words, "%", (100 * median,)))
    workers = read_decode_workers(options.data / "systems" / "silicon_sample.csv")
    alone = np.array([_decode_ms(point) for point in workers])
    measured = np.array([point.tpot_ms for point in workers])
    _figures(result, f"TPOT of {len(workers)} disaggregated decode workers, kernels alone", np.abs(alone / measured - 1))
    splits = [held_out(data, "run", seed=seed) for seed in range(NUM_DEALS)]
    _by_run(result, data, splits)
    by_run = splits[0]
    num_runs = len({point.run for point in data.points})
    quantiles: dict[str, float] = {}
    for by, words in (("run", ""), ("device", "a device never seen"), ("family", "a model family never seen")):
        predicted = by_run if by == "run" else held_out(data, by)
        if words:
            found = errors(predicted.tpot, data.measured_tpot)
            _figures(result, f"TPOT, {words}", found)
            _target(result, f"TPOT, {words}: median within 10 %", float(np.median(found)), 10)
            _figures(result, f"TTFT, {words}", errors(predicted.ttft, data.measured_ttft))
        quantiles[f"tpot, {by}"] = _conformal(np.abs(predicted.tpot - np.log(data.measured_tpot)), num_units=num_runs)
        quantiles[f"ttft, {by}"] = _conformal(np.abs(predicted.ttft - np.log(data.measured_ttft)), num_units=num_runs)
    unknown = held_out(load(options.data, options.cache, knows_scripts=False)[0], "run")
    _figures(result, "TTFT, split by run, engines with their defaults", errors(unknown.ttft, data.measured_ttft))
    for metric, log, deviation, measured in (
        ("TPOT", by_run.tpot, by_run.tpot_deviation, data.measured_tpot),
        ("TTFT", by_run.ttft, by_run.ttft_deviation, data.measured_ttft),
    ):
        shares = coverage(data.points, log, deviation, measured)
        for name, share in shares.items():
            result.figures.append(Figure(f"{metric}: 90 % intervals hold, {name}", "%", (100 * share,)))
        worst = max(shares.values(), key=lambda share: abs(share - 0.9))
        result.targets.append(
            Target(
                f"{metric}: 90 % intervals hold 87 to 93 %, in every backend and load (furthest)", 100 * worst, "%",
                all(0.87 <= share <= 0.93 for share in shares.values()),
            )
        )  # fmt: skip
    result.notes.append(
        "the columns name model, GPU, engine, version, day and users; what the public benchmark's launch scripts say of "
        "those (gpu_fits/recipes.py) is used where not stated otherwise"
    )
    for reason, count in left_out.most_common():
        result.notes.append(f"left out: {count} rows, {reason}")
    result.save()
    path = RESULTS / "cost_model.json"
    document = json.loads(path.read_text())
    document["by_device_model_and_layout"] = table(data, by_run)
    document["by_group"] = _by_group(data, by_run)
    path.write_text(json.dumps(document, indent=1) + "\n")
    _write_page(document)
    ship(data, learned_from(data), quantiles)


def _by_run(result: Result, data: Data, splits: Sequence[Predicted]) -> None:
    """Runs dealt into folds in several ways: which of them are together moves a median by as much as most changes of a
    model do, so a target is for the mean over all."""
    asked: list[tuple[str, Callable[[Predicted], Array], Array, float | None, float | None]] = [
        ("TPOT, split by run", lambda one: one.tpot, data.measured_tpot, 8, 25),
        ("TTFT from the columns alone, split by run", lambda one: one.ttft, data.measured_ttft, 20, None),
        ("TTFT once calibrated on two own points", lambda one: one.anchored_ttft, data.measured_ttft, 12, None),
        ("TPOT once calibrated on two own points", lambda one: one.anchored_tpot, data.measured_tpot, None, None),
    ]
    for words, of, measured, median_limit, p90_limit in asked:
        found = [errors(of(one), measured) for one in splits]
        for name, share, limit in (("median", 0.5, median_limit), ("p90", 0.9, p90_limit)):
            values = tuple(100 * float(np.quantile(one, share)) for one in found)
            result.figures.append(Figure(f"{words}: {name} error", "%", values))
            if limit is not None:
                mean = float(np.mean(values)) / 100
                _target(result, f"{words}: {name} within {limit:g} %, mean of {len(values)} ways to deal", mean, limit)


def _write_page(document: dict[str, Any]) -> None:
    """The figures of the page, between its marks."""
    lines = [f"{document['what']}. `benchmarks/results/cost_model.json` has all of it.", ""]
    lines += ["| target | measured | |", "|---|---|---|"]
    for target in document["targets"]:
        lines.append(
            f"| {target['text']} | {target['reached']:.1f} {target['unit']} | {'met' if target['is_met'] else 'missed'} |"
        )
    lines += ["", "Errors with runs held out, in percent (median / 90th percentile):", ""]
    lines += ["| by | | TPOT | TTFT |", "|---|---|---|---|"]
    for key, values in document["by_group"].items():
        for name, (tpot, tpot_p90, ttft, ttft_p90) in values.items():
            lines.append(f"| {key} | {name} | {tpot} / {tpot_p90} | {ttft} / {ttft_p90} |")
    lines += ["", "By device, model and layout, where there are ten points or more:", ""]
    lines += ["| device | model | layout | points | TPOT | TTFT |", "|---|---|---|---|---|---|"]
    for row in document["by_device_model_and_layout"]:
        if row["num_points"] >= 10:
            tpot = f"{100 * row['tpot_median']:.1f} / {100 * row['tpot_p90']:.1f}"
            ttft = f"{100 * row['ttft_median']:.1f} / {100 * row['ttft_p90']:.1f}"
            lines.append(f"| {row['device']} | {row['model']} | {row['layout']} | {row['num_points']} | {tpot} | {ttft} |")
    text = PAGE.read_text()
    before, after = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    PAGE.write_text(text[:before] + "\n" + "\n".join(lines) + "\n" + text[after:])


def _decode_ms(point: Point) -> float:
    """A worker that only decodes."""
    per_rank = max(1, point.concurrency // point.parallel.data_parallel_size)
    return step_model(point).step_us(decode_size(point, per_rank)) / 1e3


def _launched(data: Data) -> Array:
    """Time to the end of the step that samples a first token, launches included, in ms."""
    return data.ttft @ np.exp(UNFITTED.shared) / 1e3


def _by_group(data: Data, predicted: Predicted) -> dict[str, dict[str, list[float]]]:
    """TPOT median and p90, TTFT median and p90, in percent, with runs held out."""
    keys: dict[str, Callable[[Point], str]] = {
        "device": lambda p: p.device, "backend": lambda p: p.backend, "family": lambda p: p.family, "load": lambda p: p.load
    }  # fmt: skip
    found: dict[str, dict[str, list[float]]] = {}
    for key, name in keys.items():
        names = np.array([name(point) for point in data.points])
        for value in sorted(set(names)):
            held = names == value
            tpot = errors(predicted.tpot[held], data.measured_tpot[held])
            ttft = errors(predicted.ttft[held], data.measured_ttft[held])
            quantities = (np.median(tpot), np.quantile(tpot, 0.9), np.median(ttft), np.quantile(ttft, 0.9))
            found.setdefault(key, {})[str(value)] = [round(100 * float(q), 1) for q in quantities]
    return found


def _figures(result: Result, words: str, found: Array) -> None:
    result.figures.append(Figure(f"{words}: median error", "%", (100 * float(np.median(found)),)))
    result.figures.append(Figure(f"{words}: p90 error", "%", (100 * float(np.quantile(found, 0.9)),)))


def _target(result: Result, words: str, value: float, limit: float) -> None:
    result.targets.append(Target(words, 100 * value, "%", 100 * value <= limit))


if __name__ == "__main__":
    main()
