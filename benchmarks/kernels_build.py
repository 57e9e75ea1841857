"""Another build of the native kernels than the package's own, for tests and benchmarks: HEADRACE_KERNELS names the file.

It stands in for the package's in this process alone: an engine process would load the package's own.
"""

import importlib.util
import os
import sys

_NAME = "headrace.engine.ops.native._kernels"


def named_build() -> str:
    """The file, or nothing."""
    return os.environ.get("HEADRACE_KERNELS", "")


def use_named_build() -> None:
    """Call it before anything imports the kernels."""
    path = named_build()
    if not path:
        return
    assert _NAME not in sys.modules, "the package's own kernels are loaded already"
    spec = importlib.util.spec_from_file_location(_NAME, path)
    assert spec is not None and spec.loader is not None, f"HEADRACE_KERNELS names no extension: {path}"
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[_NAME])
