"""Whatever a file that somebody names turns out to be, the command says what is wrong with it, and names it."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from headrace.cli.main import main

BENCH = ["bench", "--write-workload", "out.jsonl"]
READERS = {
    "custom": [*BENCH, "--dataset-name", "custom", "--dataset-path"],
    "sharegpt": [*BENCH, "--dataset-name", "sharegpt", "--dataset-path"],
    "mooncake": [*BENCH, "--dataset-name", "mooncake", "--dataset-path"],
    "azure": [*BENCH, "--dataset-name", "azure", "--dataset-path"],
    "agentic": [*BENCH, "--dataset-name", "agentic", "--dataset-path"],
    "servegen": [*BENCH, "--dataset-name", "servegen", "--servegen-rates", "rates.csv", "--dataset-path"],
    "servegen rates": [*BENCH, "--dataset-name", "servegen", "--dataset-path", "windows.json", "--servegen-rates"],
    "workload": [*BENCH, "--dataset-name", "workload", "--dataset-path"],
    "mix": [*BENCH, "--num-prompts", "2", "--mix"],
    "slo": [*BENCH, "--slo"],
    "simulate": ["simulate", "--workload"],
    "a fleet": ["simulate", "--workload", "workload.jsonl"],
    "an engine": ["simulate", "--workload", "workload.jsonl", "--engine"],
    "replay": ["simulate", "--replay"],
    "plan": ["plan", "llama-3.1-8b", "--slo", "ttft:500", "--workload"],
    "prices": ["plan", "llama-3.1-8b", "--slo", "ttft:500", "--workload", "workload.jsonl", "--prices"],
    "compare": ["compare", "result.json"],
    "calibrate": ["calibrate", "--recording"],
    "serve": ["serve"],
}
"""Words that end where the name of the file that is read belongs."""

CONTENTS = {
    "empty": b"",
    "words": b"some words\nand more\n",
    "no text": bytes(range(128, 256)),
    "a number": b"3",
    "a list": b"[1, 2]",
    "a list of objects": b'[{"messages": 3}, {}]',
    "an object": b"{}",
    "half an object": b'{"timestamp": 0, "input_length": 10, "output',
    "wrong kinds": b'{"id": 1, "block_size": "x", "requests": [3], "messages": ["x"], "conversations": ["x"], "prompt": 3, '
    b'"timestamp": "x", "input_length": -1, "output_length": 1, "hash_ids": ["x"], "weight": "x", "itls": 3, "ttfts": 3}',
    "wrong numbers": b'{"prompt": "a", "max_tokens": -3, "timestamp": -5, "input_length": 3, "output_length": 1, '
    b'"hash_ids": [], "id": "a", "block_size": 0, "requests": []}',
    "a table": b'slo = 3\nh100_sxm = "x"\nname = "x"\n',
}


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands need besides."""
    folder = tmp_path_factory.mktemp("whole")
    workload = str(folder / "workload.jsonl")
    assert main(["bench", "--num-prompts", "2", "--write-workload", workload]) == 0
    assert main(["simulate", "--workload", workload, "--result", str(folder / "result.json")]) == 0
    (folder / "rates.csv").write_text("0,2.0,1.0,Gamma,1.0,0.5\n")
    (folder / "windows.json").write_text('{"0": {"input_tokens": "{100: 1.0}", "output_tokens": "{10: 1.0}"}}')
    return folder


@pytest.fixture
def folder(whole_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complaint(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said where a command is refused; a stack trace would be an exception here."""
    capsys.readouterr()
    status = main(words)
    said = capsys.readouterr().err
    assert status in (2, 3), said
    return said


@pytest.mark.parametrize(
    ("words", "content"),
    [
        pytest.param(words, content, id=f"{reader}: {kind}")
        for reader, words in READERS.items()
        for kind, content in CONTENTS.items()
        if (reader, kind) != ("an engine", "empty")  # which says nothing, and everything has a default
    ],
)
def test_a_file_of_another_kind_is_refused_by_its_name(
    words: list[str], content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a-file").write_bytes(content)
    assert "a-file" in complaint([*words, "a-file"], capsys)


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
@pytest.mark.parametrize("ending", [".gz", ".tar", ".tar.xz", ".toml", ".json", ".gguf"])
def test_a_file_that_is_not_what_its_ending_says_is_refused_by_its_name(
    words: list[str], ending: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"a-file{ending}").write_bytes(b"not at all")
    assert f"a-file{ending}" in complaint([*words, f"a-file{ending}"], capsys)


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_packed_file_that_was_cut_off_is_refused_by_its_name(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a-file.gz").write_bytes(gzip.compress(os.urandom(4000))[:-300])
    assert "a-file.gz" in complaint([*words, "a-file.gz"], capsys)


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_file_that_is_not_there_and_a_folder_in_its_place_are_refused_by_name(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a-folder").mkdir()
    assert "not-there.gguf" in complaint([*words, "not-there.gguf"], capsys)
    assert "a-folder" in complaint([*words, "a-folder"], capsys)
