"""How much the KV cache may take: the machine's word, the control group's word, and the arithmetic of blocks; and what is
given back."""

import ctypes
import os
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.base.units import GIB, KIB, MIB
from headrace.engine.host.memory import KVCacheSize, available_bytes, return_freed_memory, size_kv_cache


def machine(root: Path, *, available_kb: int, groups: str, files: dict[str, str]) -> Path:
    tree = {
        "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available_kb} kB\n",
        "proc/self/cgroup": groups,
        **files,
    }
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_control_group_the_machines_available_memory_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, available_kb=4 * 1024 * 1024, groups="0::/\n", files={})
    assert available_bytes(root) == 4 * GIB


def test_a_version_2_group_limits_less_its_usage_and_more_by_idle_file_pages(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user/app"
    files = {
        f"{group}/memory.max": f"{2 * GIB}\n",
        f"{group}/memory.current": f"{1 * GIB}\n",
        f"{group}/memory.stat": f"anon 5\ninactive_file {256 * MIB}\n",
    }
    root = machine(tmp_path, available_kb=8 * 1024 * 1024, groups="0::/user/app\n", files=files)
    assert available_bytes(root) == GIB + 256 * MIB


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/user/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/user/memory.current": f"{GIB // 2}\n",
        "sys/fs/cgroup/user/app/memory.max": "max\n",
        "sys/fs/cgroup/user/app/memory.current": "0\n",
    }
    root = machine(tmp_path, available_kb=8 * 1024 * 1024, groups="0::/user/app\n", files=files)
    assert available_bytes(root) == GIB // 2


def test_a_version_1_group_in_a_container_is_found_at_the_mount(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
    }
    groups = "9:name=systemd:/\n4:cpu,memory:/docker/abc\n"
    root = machine(tmp_path, available_kb=8 * 1024 * 1024, groups=groups, files=files)
    assert available_bytes(root) == 2 * GIB


def size(
    budget_bytes: int,
    *,
    max_model_len: int = 0,
    model_max_len: int = 1000,
    budget_is_given: bool = True,
) -> KVCacheSize:
    return size_kv_cache(
        budget_bytes=budget_bytes,
        budget_is_given=budget_is_given,
        bytes_per_block=MIB,
        block_size=16,
        max_model_len=max_model_len,
        model_max_len=model_max_len,
        max_num_seqs=4,
    )


def test_a_given_budget_is_used_to_the_last_whole_block() -> None:
    assert size(100 * MIB + 5) == KVCacheSize(num_blocks=100, max_model_len=1000)


def test_a_budget_that_nobody_gave_stops_at_what_full_sequences_could_use() -> None:
    assert size(4000 * MIB, budget_is_given=False).num_blocks == 4 * 63


def test_a_cache_too_small_for_one_sequence_is_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigurationError) as caught:
        size(50 * MIB)
    message = str(caught.value)
    assert "--kv-cache-memory 63M" in message
    assert "--max-model-len 800 fits" in message


def test_what_the_refusal_proposes_is_accepted() -> None:
    assert size(63 * MIB).max_model_len == 1000
    assert size(50 * MIB, max_model_len=800).max_model_len == 800


def test_a_cache_of_no_block_at_all_proposes_memory_only() -> None:
    with pytest.raises(ConfigurationError) as caught:
        size(MIB - 1, max_model_len=-1)
    assert "fits" not in str(caught.value)


def test_auto_takes_the_longest_that_fits_and_never_more_than_the_model() -> None:
    assert size(50 * MIB, max_model_len=-1).max_model_len == 800
    assert size(500 * MIB, max_model_len=-1).max_model_len == 1000


def test_a_length_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max_model_len 2000 exceeds"):
        size(500 * MIB, max_model_len=2000)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells a process's size there")
def test_freed_memory_goes_back_to_the_system() -> None:
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("only glibc keeps what is freed and can be asked to give it back")
    kept = [bytes(64 * KIB) for _ in range(1024)]  # below the size from which each would be mapped, and unmapped, by itself
    last = kept[-1]
    before = resident_bytes()
    del kept
    return_freed_memory()
    assert resident_bytes() < before - 32 * MIB
    assert len(last) == 64 * KIB


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
