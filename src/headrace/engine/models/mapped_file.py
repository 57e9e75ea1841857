"""A file as memory: read-only, without copies. Knows nothing of formats."""

import contextlib
import mmap
from pathlib import Path

from headrace.base.errors import CheckpointError


class MappedFile:
    def __init__(self, path: Path) -> None:
        """Raises CheckpointError where the file cannot be read or is empty."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.raw = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise CheckpointError(f"{path}: the file is empty") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        self.view = memoryview(self.raw)
        self.num_bytes = len(self.view)

    def release_pages(self) -> None:
        """Lets go of what is in memory, which comes back from the file when it is looked at again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.raw.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Gives the file back. While someone holds a view of it, the memory stays mapped; it goes with the last view."""
        with contextlib.suppress(BufferError):
            self.view.release()
            self.raw.close()
