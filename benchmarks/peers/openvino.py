"""OpenVINO GenAI: its wheels, and the driver that runs in their environment.

Knows how it is installed and started. Of its precisions a Q4_0 file, which it reads itself, was the quickest at everything.
"""

from pathlib import Path

from benchmarks.peers import installation

NAME = "openvino"
_REQUIREMENT = "openvino-genai==2026.4.1.0"


def folder() -> Path:
    return installation.install(NAME, _install, minutes=1)


def _install(folder: Path) -> None:
    installation.make_environment(folder, _REQUIREMENT)


def installed_bytes() -> int:
    return installation.packages_bytes(folder() / "venv")


def driver_command(model: Path) -> list[str]:
    python = folder() / "venv" / "bin" / "python"
    return [str(python), str(Path(__file__).parent / "drivers" / "openvino_driver.py"), str(model)]
