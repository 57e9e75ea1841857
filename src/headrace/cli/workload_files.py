"""Workload files by path. Knows how to say which file cannot be read."""

from pathlib import Path

from headrace.base.errors import ConfigurationError
from headrace.measure.workload.request import Workload
from headrace.measure.workload.workload_file import read_workload


def read_workload_file(path: Path) -> Workload:
    """Raises ConfigurationError where there is none, or where it is none."""
    try:
        with path.open("rb") as file:
            return read_workload(file)
    except OSError as error:
        raise ConfigurationError(f"the workload {path} cannot be read: {error.strerror}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def read_workload_to_do(path: Path) -> Workload:
    """The same; raises ConfigurationError where it asks nothing, too."""
    workload = read_workload_file(path)
    if not workload.requests:
        raise ConfigurationError(f"{path}: the workload {workload.name!r} has no requests: there is nothing to do")
    return workload
