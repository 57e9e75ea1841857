"""What docs/bench.md shows is carried out, block after block in one folder, against a real server at another address."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.real_server import RealServer
from tests.patience import PATIENCE_S

_PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
_BLOCKS = re.findall(r"^```bash\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
_COMMAND = 'headrace() { "$HEADRACE_PYTHON" -m headrace.cli.main "$@"; }\n'


def test_the_blocks_of_the_page_do_what_they_show(server: RealServer, tmp_path: Path) -> None:
    assert len(_BLOCKS) >= 5
    for block in _BLOCKS:
        outcome = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _COMMAND + block.replace("http://127.0.0.1:8000", server.url)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
            env={**os.environ, "HEADRACE_PYTHON": sys.executable},
            check=False,
        )
        assert outcome.returncode == 0, block + outcome.stdout + outcome.stderr
    assert {"first.json", "first.html", "sweep.html", "real.json", "simulated.json", "both.html"} <= {
        path.name for path in tmp_path.iterdir()
    }
