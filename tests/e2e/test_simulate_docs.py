"""What docs/simulate.md shows is carried out, block after block in one folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

from headrace.router.mind.profile import POLICIES
from headrace.sim.fault_cases import CASES
from headrace.sim.fleet_spec import FaultKind

_PAGE = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
_BLOCKS = re.findall(r"^```bash\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
_COMMAND = 'headrace() { "$HEADRACE_PYTHON" -m headrace.cli.main "$@"; }\n'


def test_the_blocks_of_the_page_do_what_they_show(tmp_path: Path) -> None:
    assert len(_BLOCKS) >= 2
    for block in _BLOCKS:
        outcome = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _COMMAND + block],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
            env={**os.environ, "HEADRACE_PYTHON": sys.executable},
            check=False,
        )
        assert outcome.returncode == 0, block + outcome.stdout + outcome.stderr
    assert {"fleet.json", "fleet.html", "replay.html", "trace.json", "log.json"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_the_page_names_every_policy_case_and_fault() -> None:
    for name in (*POLICIES, *CASES, *FaultKind):
        assert f"`{name}`" in _PAGE, name
