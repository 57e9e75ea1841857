"""`headrace version`: what is installed here, in one line for a bug report."""

import argparse
import platform
from importlib import metadata

from headrace import __version__
from headrace.engine.ops.registry import has_kernels


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("version", help="say what is installed here", description="Says what is installed here.")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    print(f"headrace {__version__} (Python {platform.python_version()}, {_kernels()}, {_torch()}, {platform.platform()})")
    return 0


def _kernels() -> str:
    return "native kernels" if has_kernels() else "no native kernels"


def _torch() -> str:
    try:
        return f"torch {metadata.version('torch')}"
    except metadata.PackageNotFoundError:
        return "no torch"
