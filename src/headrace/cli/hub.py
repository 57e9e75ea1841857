"""Models from a Hugging Face hub. Knows how they are named, which of their files matter, and what can go wrong.

All else is `huggingface_hub`'s: its cache, its resumed downloads, its progress bars, its token, its mirror (HF_ENDPOINT).
A model that is in its cache is served without a network.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.base.errors import CheckpointError, nearest

_PART = r"[A-Za-z0-9][\w.-]*"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(:(?P<file>[^:]+\.gguf))?")

_FILES_OF_A_CHECKPOINT = ("*.safetensors", "*.json", "*.jinja", "*.model")
"""Weights, configuration, tokenizer and template; not the same weights once more in other formats."""
_NOT_IN_FOLDERS = ("*/*",)
"""Repositories keep copies for other programs in folders."""


class HubName(NamedTuple):
    repository: str
    """`organisation/model`"""
    file: str | None
    """One GGUF file of it; None: the checkpoint in safetensors."""


def parse_hub_name(name: str) -> HubName | None:
    """What a hub name means, or None if this is none.

    >>> parse_hub_name("org/model:quants/model-Q4_K_M.gguf")
    HubName(repository='org/model', file='quants/model-Q4_K_M.gguf')
    >>> parse_hub_name("./folder/model") is None
    True
    """
    match = _NAME.fullmatch(name)
    return HubName(match["repository"], match["file"]) if match else None


def fetch_from_hub(name: HubName, revision: str | None) -> Path:
    """The model's folder or file in the hub's local cache. Raises CheckpointError where it cannot be had."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                name.repository,
                revision=revision,
                allow_patterns=[name.file] if name.file else list(_FILES_OF_A_CHECKPOINT),
                ignore_patterns=None if name.file else list(_NOT_IN_FOLDERS),
            )
        )
    except errors.GatedRepoError as error:
        raise CheckpointError(
            f"{name.repository} wants its terms accepted first: do that on its page, then set HF_TOKEN to a token of yours"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no {name.repository}, or shows it only with a token (HF_TOKEN): check how it is spelt"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name.repository} has no revision {revision!r}: check --revision") from error
    except (OSError, ValueError, errors.EntryNotFoundError) as error:
        raise CheckpointError(
            f"cannot fetch {name.repository}: {_first_line(error)}. Is there a network, and does it reach the hub "
            "(HF_ENDPOINT names another one)? A model on this machine needs neither: headrace serve PATH"
        ) from error
    return _one_file(name, folder) if name.file else _checkpoint(name, folder)


def _one_file(name: HubName, folder: Path) -> Path:
    assert name.file is not None
    path = folder / name.file
    if not path.is_file():
        files = _gguf_files(name)
        raise CheckpointError(
            f"{name.repository} has no file {name.file!r}{nearest(name.file, files)}{_listed(' (GGUF files: {})', files)}"
        )
    return path


def _checkpoint(name: HubName, folder: Path) -> Path:
    if any(folder.glob("*.safetensors")):
        return folder
    files = _gguf_files(name)
    raise CheckpointError(
        f"{name.repository} holds no safetensors"
        + _listed(
            f": name one of its GGUF files, for example {name.repository}:{files[0] if files else ''} (it has {{}})", files
        )
    )


def _gguf_files(name: HubName) -> list[str]:
    """Those of the repository, where the hub can be asked."""
    import huggingface_hub

    try:
        return sorted(path for path in huggingface_hub.HfApi().list_repo_files(name.repository) if path.endswith(".gguf"))
    except (OSError, ValueError):
        return []


def _listed(template: str, names: Iterable[str]) -> str:
    joined = ", ".join(names)
    return template.format(joined) if joined else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
