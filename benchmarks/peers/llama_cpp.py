"""llama.cpp: built for this processor from the sources that llama-cpp-python's sdist carries.

Knows its programs, their options and what they print. One-shot runs are of `llama-batched-bench`, which has no HTTP and is
the quickest way to run it; online it is `llama-server`.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import installation
from benchmarks.peers.installation import FOLDER, install, run

from headrace.cli.environment import child_environment

VERSION = "0.3.36"
NAME = "llama.cpp"
_TARGETS = ("llama-server", "llama-bench", "llama-batched-bench")


def folder() -> Path:
    return install(NAME, _install, minutes=12)


def _install(folder: Path) -> None:
    log = folder / "install.log"
    downloads = FOLDER / "downloads"
    archive = downloads / f"llama_cpp_python-{VERSION}.tar.gz"
    if not archive.exists():
        what = ("--no-deps", "--no-binary", ":all:", "--dest", str(downloads), f"llama-cpp-python=={VERSION}")
        installation.pip(Path(sys.executable), log, "download", *what)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    source, build = folder / f"llama_cpp_python-{VERSION}" / "vendor" / "llama.cpp", folder / "build"
    _keep_tile_configuration(source)
    options = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=ON", "-DLLAMA_OPENSSL=OFF",
               "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF",
               "-DBUILD_SHARED_LIBS=ON")  # fmt: skip
    run(["cmake", "-S", str(source), "-B", str(build), *options], log)
    run(["cmake", "--build", str(build), "--target", *_TARGETS], log)  # CMAKE_BUILD_PARALLEL_LEVEL is CMake's own to read


def _keep_tile_configuration(source: Path) -> None:
    """GCC 12 takes `_tile_loadconfig` to read 8 of its 64 bytes, drops what was written to the rest, and the programs die
    of an illegal instruction where the processor has AMX."""
    file = source / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    text = file.read_text()
    load = "_tile_loadconfig(&tc);"
    if load in text:
        file.write_text(text.replace(load, f'asm volatile("" : : "r"(&tc) : "memory"); {load}'))


def program(name: str) -> Path:
    return folder() / "build" / "bin" / name


def installed_bytes() -> int:
    """Of the server and the libraries that it loads; what is built beside them does not count."""
    binaries = folder() / "build" / "bin"
    return sum(
        installation.tree_bytes(path) for path in binaries.iterdir() if ".so" in path.name or path.name == "llama-server"
    )


def environment() -> dict[str, str]:
    """A thread for each processor that may be used, bound to it and spinning: the best of six ways that were tried."""
    places = ",".join(f"{{{cpu}}}" for cpu in sorted(os.sched_getaffinity(0)))
    return child_environment(OMP_PROC_BIND="true", OMP_PLACES=places, OMP_WAIT_POLICY="active")


def num_threads() -> int:
    return len(os.sched_getaffinity(0))


def batched(model: Path, *, prompt: int, output: int, sequences: int, shared: bool = False) -> dict[str, float]:
    """One run of llama-batched-bench: seconds of prompts (`t_pp`) and of decoding (`t_tg`), and both (`t`).

    `shared`: all sequences have one prompt, computed once.
    """
    places = prompt + sequences * output if shared else sequences * (prompt + output)
    command = [
        str(program("llama-batched-bench")), "-m", str(model), "-c", str(places + 256), "-b", "2048", "-ub", "512",
        "-t", str(num_threads()), "-tb", str(num_threads()), "-npp", str(prompt), "-ntg", str(output),
        "-npl", str(sequences), "--output-format", "jsonl", *(["-pps", "-kvu"] if shared else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"llama-batched-bench ended with {done.returncode}: {done.stderr[-400:]}")
    figures = json.loads(lines[-1])
    return {name: float(figures[name]) for name in ("t_pp", "t_tg", "t")}


def server_command(model: Path, *, port: int, max_num_seqs: int, max_model_len: int) -> Sequence[str]:
    """With one pool of KV for all, and the cache of prompts that it has by default."""
    return [
        str(program("llama-server")), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-np", str(max_num_seqs),
        "-c", str(max_num_seqs * max_model_len), "-b", "2048", "-ub", "512", "-t", str(num_threads()),
        "-tb", str(num_threads()), "--no-webui",
    ]  # fmt: skip
