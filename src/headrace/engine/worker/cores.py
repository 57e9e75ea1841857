"""How many threads are worth computing with on this machine.

Knows affinity, siblings of a core and the control groups' shares of time. Does not know what is computed.

Two threads of one physical core share its arithmetic units, so matrix products gain nothing from the second; and threads
beyond a control group's share are stopped for the rest of each period, together with everyone who waits for them.
"""

import math
import os
from pathlib import Path


def num_compute_threads(root: Path = Path("/")) -> int:
    """One per physical core that this process may use, or fewer where its share of time is smaller.

    `root` is where `proc` and `sys` are looked for.
    """
    cores = _num_physical_cores(root, _usable_cpus())
    return max(1, min([cores, *(math.ceil(share) for share in _shares_of_time(root))]))


def _usable_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # macOS


def _num_physical_cores(root: Path, cpus: list[int]) -> int:
    siblings = {_read(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    # Where the system does not tell, every processor counts as a core.
    return len(cpus) if "" in siblings else len(siblings)


def _shares_of_time(root: Path) -> list[float]:
    """In processors, for the control group of this process and those around it. Versions 1 and 2."""
    found = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup/cpu"
        else:
            continue
        group = mount / path.strip("/")
        # In a container the path may be the host's and not exist here; the mount itself is then the container's group.
        for folder in [group, *group.parents]:
            found += _share_of_group(folder)
            if folder == mount:
                break
    return found


def _share_of_group(folder: Path) -> list[float]:
    if both := _read(folder / "cpu.max").split():
        quota, period = both
    else:
        quota, period = _read(folder / "cpu.cfs_quota_us").strip(), _read(folder / "cpu.cfs_period_us").strip()
    is_limited = quota.isdigit() and period.isdigit()  # "max", "-1" or no such file: no limit
    return [int(quota) / int(period)] if is_limited else []


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
