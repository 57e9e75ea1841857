"""Rehearsals find bugs: each of a set that is planted on purpose, within two hundred seeds."""

import pytest
from tests.sim.planted_bugs import ENGINE_ALONE, PLANTED_BUGS, PlantedBug

from headrace.sim.fault_cases import run_case
from headrace.sim.scenario import run_scenario

MOST_SEEDS = 200
NUM_REQUESTS = 30


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            if bug.case == ENGINE_ALONE:
                run_scenario(seed, num_requests=NUM_REQUESTS)
            else:
                run_case(seed, bug.case, num_requests=NUM_REQUESTS)
        except TypeError:  # the bug does not fit where it is planted any more: nothing was found
            raise
        except Exception:  # an assertion, or whatever broke first: a seed that fails is what was looked for
            return
    pytest.fail(f"{bug.name}: not found in {MOST_SEEDS} seeds of {bug.case}")
