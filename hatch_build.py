"""Compiles the native kernels when the package is built or installed, where that can be done.

Knows CMake and where the result belongs. A machine without a C++ compiler gets the package without the kernels: torch then
computes, where it is installed, and `headrace serve` says so, or says what to install. HEADRACE_NATIVE=require makes a
failure an error; HEADRACE_NATIVE=off compiles nothing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = Path("src/headrace")
_TARGETS = {"_kernels": _PACKAGE / "engine" / "ops" / "native", "_hash_chain": _PACKAGE / "engine" / "mind"}
"""Each extension, and where it belongs."""


class NativeKernels(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        wanted = os.environ.get("HEADRACE_NATIVE", "auto")
        if wanted not in ("auto", "require", "off"):
            raise SystemExit(f"HEADRACE_NATIVE is auto, require or off, not {wanted!r}")
        root = Path(self.root)
        for name, folder in _TARGETS.items():
            for old in (root / folder).glob(f"{name}.*.so"):
                old.unlink()  # what an earlier build left may not fit the sources
        if wanted == "off":
            return
        try:
            built = _compile(root)
        except (OSError, subprocess.CalledProcessError, ImportError) as error:
            output = getattr(error, "output", "") or ""
            if wanted == "require":
                raise SystemExit(f"the native kernels were not built: {error}\n{output}") from error
            self.app.display_warning(
                f"the native kernels were not built, so only torch can compute (headrace[torch]): {error}\n{output[-2000:]}"
            )
            return
        for name, folder in _TARGETS.items():
            (extension,) = built.glob(f"{name}.*.so")
            shutil.copy2(extension, root / folder / extension.name)
            build_data["artifacts"].append(f"/{folder}/{extension.name}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _compile(root: Path) -> Path:
    """The folder of the extensions, which is kept so that the next build compiles only what changed."""
    import nanobind

    tag = f"{sys.implementation.cache_tag}-{sys.platform}"
    folder = root / "build" / f"native-{tag}"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    definitions = [
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dnanobind_DIR={nanobind.cmake_dir()}",
        "-DCMAKE_BUILD_TYPE=Release",
    ]
    cache = folder / "CMakeCache.txt"
    if cache.is_file() and f"nanobind_DIR:PATH={nanobind.cmake_dir()}" not in cache.read_text():
        shutil.rmtree(folder)  # made with another environment's, as isolated builds do each time
    _run(["cmake", "-S", str(root / "native"), "-B", str(folder), *generator, *definitions])
    _run(["cmake", "--build", str(folder), "--parallel", str(os.cpu_count() or 1)])
    return folder


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
