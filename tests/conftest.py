"""What holds for all tests: the real models, fetched once per machine and kept, and that no test fails because it took long.

Knows where models are cached and how they are fetched. Does not know what is tested with them.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kernels_build import use_named_build
from hypothesis import HealthCheck, settings

use_named_build()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background of a script; processes inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Hypothesis would fail an example that took 200 ms, and a test whose examples are slow to draw: both tell of the machine.
settings.register_profile("untimed", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

_FILES = {
    "smollm2-135m": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma3-270m": "gemma-3-270m-q4_k_m.gguf",
}


def _cached_model(name: str) -> Path:
    cache = Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")
    path = cache / "models" / name / _FILES[name]
    if not path.is_file():
        pull = [sys.executable, "-m", "headrace.cli.main", "pull", name]
        done = subprocess.run(pull, capture_output=True, text=True, check=False)
        if done.returncode != 0 or not path.is_file():
            pytest.fail(f"`headrace pull {name}` left no {path}:\n{done.stdout}{done.stderr}")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The embedded default model, SmolLM2-135M-Instruct in Q4_1: 98 MB."""
    return _cached_model("smollm2-135m")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M (base) in Q4_K_M, under Gemma's terms: 253 MB. For tests marked slow."""
    return _cached_model("gemma3-270m")
