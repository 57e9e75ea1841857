"""Workload files by path, packed or not."""

from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.cli.input_files import opened, reading
from headrace.measure.workload.request import Workload
from headrace.measure.workload.workload_file import read_workload


def read_workload_file(path: Path) -> Workload:
    """Raises ConfigurationError where there is none, or where it is none."""
    with reading(path), opened(path) as file:
        return read_workload(file)


def read_workload_to_do(path: Path) -> Workload:
    """The same; raises ConfigurationError where it asks nothing, too."""
    workload = read_workload_file(path)
    if not workload.requests:
        raise ConfigurationError(f"{path}: the workload {workload.name!r} has no requests: there is nothing to do")
    return workload
