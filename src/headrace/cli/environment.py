"""The one reader of environment variables. Knows their names; does not know what they are used for.

    HEADRACE_CACHE     where models are kept; ~/.cache/headrace where it is not set
    HEADRACE_API_KEY   the key that clients must send, so that it need not stand on a command line

Libraries read theirs themselves: HF_HOME, HF_TOKEN, HF_ENDPOINT and HF_HUB_OFFLINE are huggingface_hub's, NO_COLOR and
COLUMNS are Rich's, and pip has its own. GLIBC_TUNABLES is the C library's.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    cache_folder: Path
    api_key: str | None = field(default=None, repr=False)


def read_environment() -> Environment:
    """An empty variable is one that is not set."""
    cache = os.environ.get("HEADRACE_CACHE")
    return Environment(
        cache_folder=Path(cache).expanduser() if cache else Path.home() / ".cache" / "headrace",
        api_key=os.environ.get("HEADRACE_API_KEY") or None,
    )


def child_environment(**changed: str) -> dict[str, str]:
    """What a program started from here gets: this process's own, with changes."""
    return {**os.environ, **changed}


def let_children_use_huge_pages() -> None:
    """The engine process's malloc will ask for them: torch's weights and activations come from it, and are read a fifth
    faster so. The C library reads this before anything of ours runs, hence in the parent. What the user says counts."""
    given = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" not in given:
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (given, "glibc.malloc.hugetlb=1")))
