"""Fetching packaged models with the real pip, from packages made here: found in a folder, no network asked."""

import hashlib
import json
import shutil
import sys
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.cli.packaged_models import PACKAGED_MODELS, Package, PackagedModel

PARTS = (b"water " * 1000, b"wheel " * 500)
WHOLE = b"".join(PARTS)


def make_wheel(folder: Path, name: str, content: bytes) -> None:
    member = f"{name}/part"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: something-that-does-not-exist\n"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", wheel)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip is told to look in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, content in enumerate(PARTS):
        make_wheel(folder, f"tiny_part{number}", content)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def model_path(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the model `tiny` belongs."""
    model = PackagedModel(
        description="a model of two parts",
        file_name="tiny.gguf",
        num_bytes=len(WHOLE),
        sha256=hashlib.sha256(WHOLE).hexdigest(),
        license="none",
        packages=tuple(Package(f"tiny_part{number}==1.0", f"tiny_part{number}/part", 100) for number in range(2)),
    )
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", model)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models" / "tiny" / "tiny.gguf"


def test_a_model_in_parts_is_fetched_without_what_its_packages_ask_for(model_path: Path) -> None:
    assert main(["pull", "tiny"]) == 0
    assert model_path.read_bytes() == WHOLE
    assert list(model_path.parent.iterdir()) == [model_path], "nothing else is left"


def test_a_model_that_is_here_needs_no_pip(model_path: Path, index: Path) -> None:
    assert main(["pull", "tiny"]) == 0
    shutil.rmtree(index)
    assert main(["pull", "tiny"]) == 0
    assert main(["pull", "tiny", "--verify"]) == 0


def test_the_makers_advice_on_sampling_lies_beside_the_model_unless_somebody_put_theirs(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advised = replace(PACKAGED_MODELS["tiny"], generation_config={"temperature": 0.2})
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", advised)
    assert main(["pull", "tiny"]) == 0
    advice = model_path.parent / "generation_config.json"
    assert json.loads(advice.read_text()) == {"temperature": 0.2}
    advice.write_text("{}")
    model_path.unlink()
    assert main(["pull", "tiny"]) == 0
    assert advice.read_text() == "{}"


def test_a_damaged_model_is_fetched_again_where_it_is_looked_at(
    model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pull", "tiny"]) == 0
    model_path.write_bytes(WHOLE.replace(b"wheel", b"whale", 1))
    assert main(["pull", "tiny", "--verify"]) == 0
    assert model_path.read_bytes() == WHOLE
    assert "tiny.gguf is damaged" in capsys.readouterr().out


def test_a_model_cut_short_is_fetched_again(model_path: Path) -> None:
    model_path.parent.mkdir(parents=True)
    model_path.write_bytes(WHOLE[:10])
    assert main(["pull", "tiny"]) == 0
    assert model_path.read_bytes() == WHOLE


def refusal(capsys: pytest.CaptureFixture[str], model_path: Path) -> str:
    assert main(["pull", "tiny"]) == 3
    assert not model_path.exists()
    assert not list(model_path.parent.iterdir()), "nothing half done is left"
    return capsys.readouterr().err


def test_another_content_than_the_known_one_is_refused(
    model_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(index, "tiny_part1", b"poison")
    assert "not the file that it should be" in refusal(capsys, model_path)


def test_a_package_without_the_model_is_refused(model_path: Path, index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = index / "tiny_part1-1.0-py3-none-any.whl"
    (index / "other").mkdir()
    make_wheel(index / "other", "tiny_part1", b"")
    with zipfile.ZipFile(index / "other" / wheel.name) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in old.namelist():
            if name != "tiny_part1/part":
                new.writestr(name, old.read(name))
    assert "it has no tiny_part1/part" in refusal(capsys, model_path)


def test_without_an_index_the_error_says_what_pip_said_and_what_needs_no_network(
    model_path: Path, index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (index / "tiny_part1-1.0-py3-none-any.whl").unlink()
    said = refusal(capsys, model_path)
    assert "pip could not fetch tiny_part1==1.0: Could not find a version" in said
    assert "headrace serve PATH" in said


def test_without_pip_the_error_says_how_to_get_it(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python-without-pip"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert "-m ensurepip" in refusal(capsys, model_path)


def test_without_space_the_error_says_how_much_is_needed(
    model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(100, 99, 1))
    said = refusal(capsys, model_path)
    assert "needs 9.0 KiB" in said
    assert "HEADRACE_CACHE" in said


def test_a_cache_that_cannot_be_written_is_named(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "a file"))
    assert main(["pull", "tiny"]) == 3
    assert "HEADRACE_CACHE" in capsys.readouterr().err
