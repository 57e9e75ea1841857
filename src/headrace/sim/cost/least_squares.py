"""Least squares with coefficients that may not be negative: small, exact and without an array library.

Lawson & Hanson (1974), chapter 23, on the normal equations: right for the dozen well-scaled columns that a cost has.
"""

from collections.abc import Sequence

_TINY = 1e-12


def non_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The x >= 0 that makes the sum of (row . x - target)^2 least. Columns that nothing constrains get 0.

    >>> non_negative_least_squares([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]], [3.0, 5.0, 7.0])
    [1.0, 2.0]
    """
    num_columns = len(rows[0])
    scales = [max((abs(row[j]) for row in rows), default=0.0) or 1.0 for j in range(num_columns)]
    gram = [[0.0] * num_columns for _ in range(num_columns)]
    moments = [0.0] * num_columns
    for row, target in zip(rows, targets, strict=True):
        scaled = [(j, value / scales[j]) for j, value in enumerate(row) if value]
        for j, value in scaled:
            moments[j] += value * target
            line = gram[j]
            for k, other in scaled:
                line[k] += value * other
    solution = _active_set(gram, moments)
    return [round(value / scale, 12) for value, scale in zip(solution, scales, strict=True)]


def _active_set(gram: list[list[float]], moments: list[float]) -> list[float]:
    num_columns = len(moments)
    size = max(abs(value) for value in moments) or 1.0
    passive: list[int] = []
    x = [0.0] * num_columns
    refused: set[int] = set()
    for _ in range(10 * num_columns):
        gradient = [moments[j] - sum(gram[j][k] * x[k] for k in passive) for j in range(num_columns)]
        candidates = [j for j in range(num_columns) if j not in passive and j not in refused and gradient[j] > _TINY * size]
        if not candidates:
            break
        entered = max(candidates, key=lambda j: gradient[j])
        passive.append(entered)
        while True:
            trial = _solve(gram, moments, passive)
            if trial is None or (len(passive) == 1 and trial[0] <= 0):  # a column that the others already span
                passive.remove(entered)
                refused.add(entered)
                break
            if all(value > 0 for value in trial):
                x = [0.0] * num_columns
                for j, value in zip(passive, trial, strict=True):
                    x[j] = value
                refused.clear()
                break
            step = min(
                x[j] / (x[j] - value) if x[j] != value else 0.0
                for j, value in zip(passive, trial, strict=True)
                if value <= 0
            )
            for j, value in zip(passive, trial, strict=True):
                x[j] += step * (value - x[j])
            leaving = [j for j, value in zip(passive, trial, strict=True) if value <= 0 and x[j] <= _TINY]
            if entered in leaving:
                refused.add(entered)
            for j in leaving:
                passive.remove(j)
                x[j] = 0.0
            if not passive:
                break
    return x


def _solve(gram: list[list[float]], moments: list[float], chosen: list[int]) -> list[float] | None:
    """Gaussian elimination with pivots of the chosen equations; None where they do not determine a solution."""
    system = [[gram[j][k] for k in chosen] + [moments[j]] for j in chosen]
    count = len(chosen)
    for column in range(count):
        pivot = max(range(column, count), key=lambda i: abs(system[i][column]))
        if abs(system[pivot][column]) <= _TINY * max(1.0, abs(gram[chosen[column]][chosen[column]])):
            return None
        system[column], system[pivot] = system[pivot], system[column]
        for i in range(column + 1, count):
            factor = system[i][column] / system[column][column]
            if factor:
                for k in range(column, count + 1):
                    system[i][k] -= factor * system[column][k]
    solution = [0.0] * count
    for i in reversed(range(count)):
        solution[i] = (system[i][count] - sum(system[i][k] * solution[k] for k in range(i + 1, count))) / system[i][i]
    return solution
