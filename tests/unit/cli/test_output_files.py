"""Files that commands write: a folder that is not there is told of before the work, not after it."""

from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.cli.output_files import write_output

ASKED = {
    "simulate": ["--workload", "w.jsonl"],
    "plan": ["llama-3.1-8b", "--workload", "w.jsonl", "--slo", "ttft:500"],
    "compare": ["a.json", "b.json"],
    "roofline": [],
    "calibrate": [],
    "bench": [],
}
"""Words that would be enough for each command, if the files were there."""


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("simulate", "--result"),
        ("simulate", "--html"),
        ("simulate", "--replay-html"),
        ("simulate", "--trace-file"),
        ("simulate", "--event-log"),
        ("plan", "--result"),
        ("plan", "--plot"),
        ("compare", "--html"),
        ("roofline", "--plot"),
        ("roofline", "--result"),
        ("calibrate", "--output"),
        ("bench", "--html"),
        ("bench", "--write-workload"),
    ],
)
def test_a_file_in_a_folder_that_is_not_there_is_refused_by_the_name_of_its_option(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, *ASKED[command], option, str(tmp_path / "nowhere" / "file")])
    assert stop.value.code == 2
    assert f"argument {option}: {tmp_path}/nowhere/file cannot be written: there is no folder" in capsys.readouterr().err


def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["roofline", "--plot", str(tmp_path)])
    assert f"{tmp_path} is a folder: name a file in it" in capsys.readouterr().err


def test_what_cannot_be_written_after_all_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"{tmp_path} cannot be written: Is a directory"):
        write_output(tmp_path, "text")


def test_text_is_written_as_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    write_output(tmp_path / "page.html", "←")
    assert (tmp_path / "page.html").read_bytes() == "←".encode()
