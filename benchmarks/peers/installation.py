"""Where the peers are kept, and how they get there: an environment for each, outside the repository, made once.

Knows pip, CMake and what an environment weighs. Does not know what is measured.
"""

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.cli.environment import child_environment, read_environment

FOLDER = read_environment().cache_folder / "peers"

_BASE_PACKAGES = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence.pth")
"""What a fresh environment has before anything is installed in it."""


def install(name: str, steps: Callable[[Path], None], *, minutes: float) -> Path:
    """The peer's folder, made by `steps` unless it is there already. One that failed half way is made again."""
    folder = FOLDER / name
    done = folder / ".installed"
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be at it: wait, and take what they made
        if done.exists():
            return folder
        print(f"  installing {name} in {folder}: about {minutes:g} minutes, once", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        steps(folder)
        done.write_text(f"{time.monotonic() - began:.0f} s\n")
    return folder


def forget(name: str) -> None:
    """So that it is installed again."""
    (FOLDER / name / ".installed").unlink(missing_ok=True)


def make_environment(folder: Path, *requirements: str) -> Path:
    """A virtual environment with these packages; its Python."""
    python = folder / "venv" / "bin" / "python"
    log = folder / "install.log"
    run([sys.executable, "-m", "venv", str(folder / "venv")], log)
    if requirements:
        pip(python, log, "install", *requirements)
    return python


def pip(python: Path, log: Path, *arguments: str) -> None:
    run([str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], log)


def run(command: Sequence[str], log: Path, *, cwd: Path | None = None, **environment: str) -> None:
    """To its end, its output in the log."""
    with log.open("ab") as output:
        done = subprocess.run(
            list(command),
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=child_environment(**environment),
            check=False,
        )
    if done.returncode != 0:
        last_words = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SystemExit(f"{' '.join(command[:6])} … failed with {done.returncode}; {log} ends with:\n{last_words}")


def packages_bytes(environment: Path) -> int:
    """What was installed in a virtual environment: the sum of its files' sizes, without what every environment has."""
    (packages,) = environment.glob("lib/python*/site-packages")
    return sum(
        tree_bytes(entry)
        for entry in packages.iterdir()
        if not entry.name.startswith(_BASE_PACKAGES)
    )  # fmt: skip


def tree_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
