"""Threads for the cores that there are: siblings count once, and a control group's share is not exceeded."""

import os
from pathlib import Path

import pytest

from headrace.engine.worker.cores import num_compute_threads


def machine(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, siblings: list[str], files: dict[str, str] | None = None
) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(len(siblings))), raising=False)
    for cpu, text in enumerate(siblings):
        _write(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", text + "\n")
    for name, text in (files or {}).items():
        _write(root / name, text)
    return root


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_two_threads_of_one_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert num_compute_threads(machine(tmp_path, monkeypatch, siblings=["0,4", "1,5", "2,6", "3,7"] * 2)) == 4


def test_every_processor_counts_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    assert num_compute_threads(tmp_path) == 3


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/pods/a\n", "sys/fs/cgroup/pods/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/not/here\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (
            {
                "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
    ],
)
def test_a_control_groups_share_of_time_is_not_exceeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    root = machine(tmp_path, monkeypatch, siblings=[str(cpu) for cpu in range(8)], files=files)
    assert num_compute_threads(root) == expected


def test_this_machine_has_cores() -> None:
    assert 1 <= num_compute_threads() <= (os.cpu_count() or 1)
