"""How much memory the KV cache may take, and how many blocks and tokens that makes; and giving back what is free.

Knows what this machine and its control groups leave available, and the arithmetic of blocks. Does not allocate.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.base.units import GIB, KIB, MIB, format_bytes
from headrace.engine.host.config import AUTO_MAX_MODEL_LEN


@dataclass(frozen=True, slots=True)
class KVCacheSize:
    num_blocks: int
    max_model_len: int


def size_kv_cache(
    *,
    budget_bytes: int,
    budget_is_given: bool,
    bytes_per_block: int,
    block_size: int,
    max_model_len: int,
    model_max_len: int,
    max_num_seqs: int,
) -> KVCacheSize:
    """Blocks that fit into `budget_bytes`, and the longest sequence served.

    A budget that nobody gave is not used beyond what `max_num_seqs` sequences of full length could hold. Raises
    ConfigurationError where one sequence of `max_model_len` does not fit, or the model cannot go that far.
    """
    num_blocks = budget_bytes // bytes_per_block
    num_tokens = num_blocks * block_size
    if max_model_len > model_max_len:
        raise ConfigurationError(
            f"max_model_len {max_model_len} exceeds what the model was made for ({model_max_len} tokens); lower it"
        )
    if max_model_len == AUTO_MAX_MODEL_LEN and num_tokens > 0:
        wanted = min(model_max_len, num_tokens)
    else:
        wanted = max_model_len if max_model_len > 0 else model_max_len
    blocks_per_sequence = -(-wanted // block_size)
    if num_blocks < blocks_per_sequence:
        raise ConfigurationError(
            _too_small(budget_bytes, blocks_per_sequence * bytes_per_block, wanted=wanted, fitting=num_tokens)
        )
    if not budget_is_given:
        num_blocks = min(num_blocks, max_num_seqs * blocks_per_sequence)
    return KVCacheSize(num_blocks, wanted)


def _too_small(budget_bytes: int, needed_bytes: int, *, wanted: int, fitting: int) -> str:
    message = (
        f"the KV cache gets {format_bytes(budget_bytes)}, but one sequence of max_model_len {wanted} needs "
        f"{format_bytes(needed_bytes)}. Give it more (--kv-cache-memory {_round_up(needed_bytes)}, or a larger "
        "--memory-fraction)"
    )
    if fitting > 0:
        message += f", or shorten sequences: --max-model-len {fitting} fits (--max-model-len auto takes what fits)"
    return message


def _round_up(count: int) -> str:
    """A size as one types it, not below `count`.

    >>> _round_up(3 * 1024**3 + 1), _round_up(5_000_000)
    ('3.1G', '5M')
    """
    if count >= GIB:
        return f"{-(-count * 10 // GIB) / 10:g}G"
    return f"{-(-count // MIB)}M"


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process could still get: the machine's, or less where a control group says so.

    `root` is where `proc` and `sys` are looked for.
    """
    machine = _machine_available(root)
    return min([machine, *_control_group_available(root)])


def _machine_available(root: Path) -> int:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * KIB
    # No /proc (macOS): what is in use is not told cheaply, so half of the whole is taken to be free.
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _control_group_available(root: Path) -> list[int]:
    """What the control group of this process, and those around it, leave. Versions 1 and 2."""
    found = []
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = mount / path.strip("/")
        # In a container the path may be the host's and not exist here; the mount itself is then the container's group.
        for folder in [group, *group.parents]:
            found += _group_available(folder, limit, usage)
            if folder == mount:
                break
    return found


def _group_available(folder: Path, limit_name: str, usage_name: str) -> list[int]:
    limit = _lines(folder / limit_name)
    usage = _lines(folder / usage_name)
    if not limit or not usage or limit[0] == "max":
        return []
    # File pages that nobody used lately count as usage, but are given up on demand.
    statistics = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
    reclaimable = int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
    return [max(0, int(limit[0]) - int(usage[0]) + reclaimable)]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def return_freed_memory() -> None:
    """To the system, what this process has freed and glibc would keep for itself: a vocabulary, once it is built, leaves
    a third of what the process holds behind. With another C library nothing happens. Takes some milliseconds."""
    import ctypes  # here, since a start does not wait for this

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
