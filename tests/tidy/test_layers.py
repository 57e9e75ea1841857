"""Who may import whom, and what runs without the heavy libraries. The contracts themselves are in `.importlinter`."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S
from tests.tidy.repository import ROOT, SOURCES, parsed, python_sources, shown

_WITHOUT_TORCH = (
    "headrace.sim.simulation",
    "headrace.sim.replay",
    "headrace.engine.mind.engine_core",
    "headrace.engine.host.client",
    "headrace.engine.host.loop",
    "headrace.engine.models.weights",
    "headrace.engine.layers.forward_batch",
    "headrace.engine.ops.registry",
    "headrace.server.app",
    "headrace.engine.worker.worker",
    "headrace.engine.host.process",
)

_EVERY_COMMAND = """
import sys
from headrace.cli.main import _COMMANDS
from headrace.cli.parser import Parser
commands = Parser(prog="headrace").add_subparsers()
for add_parser in _COMMANDS.values():
    add_parser(commands)
sys.exit("torch" in sys.modules)
"""

_EVERY_BENCHMARK = """
import importlib, pkgutil, benchmarks
found = [module.name for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks.")]
for name in found:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in ("scipy", "pyarrow"):  # of the extra `fits`
            raise
print(len(found))
"""


def test_imports_keep_every_contract() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("module", _WITHOUT_TORCH)
def test_what_does_not_compute_imports_no_torch(module: str) -> None:
    command = [sys.executable, "-c", f"import sys, {module}; sys.exit('torch' in sys.modules)"]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert outcome.returncode == 0, f"importing {module} imports torch, or fails:\n{outcome.stderr}"


def test_no_command_imports_torch() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", _EVERY_COMMAND], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert outcome.returncode == 0, f"a command imports torch, or fails:\n{outcome.stderr}"


def test_every_benchmark_finds_what_it_imports() -> None:
    pytest.importorskip("headrace.engine.ops.native._kernels", reason="several measure the compiled kernels")
    outcome = subprocess.run(
        [sys.executable, "-c", _EVERY_BENCHMARK], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert int(outcome.stdout) >= 20, "the benchmarks were not found"


def test_base_imports_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"headrace"}
    foreign = [
        f"{shown(path)}: {name}"
        for path in python_sources()
        if path.is_relative_to(SOURCES / "base")
        for name in _imported_packages(parsed(path))
        if name not in allowed
    ]
    assert not foreign


def _imported_packages(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found
