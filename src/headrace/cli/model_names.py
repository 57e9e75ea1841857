"""What people may type for a model, and where that is on this machine: fetched, if it is not here yet.

    smollm2-135m              a model that comes as a Python package (packaged_models.py)
    path/to/folder            a Hugging Face checkpoint
    path/to/model.gguf        a GGUF file
    org/model                 a checkpoint on a hub
    org/model:file.gguf       a GGUF file on a hub

Tried in this order; `./smollm2-135m` is a folder for certain.
"""

from pathlib import Path

from rich.console import Console

from headrace.base.errors import CheckpointError, nearest
from headrace.cli.environment import read_environment
from headrace.cli.hub import fetch_from_hub, parse_hub_name
from headrace.cli.packaged_models import PACKAGED_MODELS, fetch, is_here, packaged_model_path


def resolve_model(name: str, *, revision: str | None = None, console: Console | None = None) -> Path:
    """The model's folder or file. `console` shows progress. Raises CheckpointError where there is none."""
    if name in PACKAGED_MODELS:
        cache_folder = read_environment().cache_folder
        if is_here(name, cache_folder):
            return packaged_model_path(name, cache_folder)
        return fetch(name, cache_folder, console or Console(stderr=True))
    path = Path(name).expanduser()
    if path.exists():
        return _local_model(path)
    hub_name = parse_hub_name(name)
    if hub_name is not None:
        return fetch_from_hub(hub_name, revision)
    if "/" in name or name.endswith(".gguf"):
        raise CheckpointError(f"there is no file or folder {name!r}")
    raise CheckpointError(
        f"no model is named {name!r}{nearest(name, PACKAGED_MODELS)}: give a checkpoint folder, a .gguf file, a hub name "
        f"(org/model), or one of {', '.join(PACKAGED_MODELS)}"
    )


def names_served(name: str, path: Path) -> tuple[str, ...]:
    """Under which names clients may ask for it, where nobody said: a short one first, then what was typed."""
    if name in PACKAGED_MODELS or not Path(name).expanduser().exists():
        return (name,)
    short = path.name.removesuffix(".gguf") or name
    return (short,) if short == name else (short, name)


def _local_model(path: Path) -> Path:
    path = path.resolve()
    if path.is_dir() and not (path / "config.json").is_file():
        files = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; it has {', '.join(files)}: name one of these" if files else ""
        raise CheckpointError(f"{path} is no Hugging Face checkpoint: it has no config.json{hint}")
    if path.is_file() and path.suffix != ".gguf":
        raise CheckpointError(f"{path} is no model: a model is a checkpoint folder or a .gguf file")
    return path
