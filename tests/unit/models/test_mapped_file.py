"""A file as memory."""

import re
import sys
from pathlib import Path

import pytest

from headrace.engine.models.mapped_file import MappedFile


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what is resident")
def test_pages_that_were_released_take_no_memory_and_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 4096)
    file = MappedFile(path)
    assert sum(file.view) > 0  # looks at every page
    assert resident_kib(path) == 1024
    file.release_pages()
    assert resident_kib(path) == 0
    assert file.view[1000] == 1000 % 256
    file.close()


def resident_kib(path: Path) -> int:
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    (mapping,) = [text for text in mappings if str(path) in text]
    (resident,) = re.findall(r"^Rss: +(\d+) kB$", mapping, flags=re.MULTILINE)
    return int(resident)
