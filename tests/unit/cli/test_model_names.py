"""What people type for a model, and what they are told when it is none."""

from pathlib import Path

import pytest

from headrace.base.errors import CheckpointError
from headrace.cli.environment import read_environment
from headrace.cli.hub import HubName, parse_hub_name
from headrace.cli.model_names import names_served, resolve_model


def checkpoint(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_checkpoint_folder_and_a_gguf_file_are_themselves(tmp_path: Path) -> None:
    folder, file = checkpoint(tmp_path / "model"), tmp_path / "model.gguf"
    file.touch()
    assert resolve_model(str(folder)) == folder.resolve()
    assert resolve_model(str(file)) == file.resolve()


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("smolm2-135m", "did you mean 'smollm2-135m'?"),
        ("gpt", "give a checkpoint folder, a .gguf file, a hub name"),
        ("./no/such/folder", "there is no file or folder './no/such/folder'"),
        ("missing.gguf", "there is no file or folder 'missing.gguf'"),
    ],
)
def test_what_is_no_model_is_named(name: str, complaint: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_model(name)
    assert complaint in str(caught.value)


def test_a_folder_of_gguf_files_is_refused_with_their_names(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    with pytest.raises(CheckpointError, match=r"no config\.json; it has a\.gguf"):
        resolve_model(str(tmp_path))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(CheckpointError, match=r"folder or a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))


def test_hub_names_are_told_from_paths() -> None:
    assert parse_hub_name("org/model") == HubName("org/model", None)
    assert parse_hub_name("org/model:q4.gguf") == HubName("org/model", "q4.gguf")
    assert parse_hub_name("org/model:notes.txt") is None
    for path in ("./org/model", "/org/model", "a/b/c", "~/model", "../x"):
        assert parse_hub_name(path) is None


def test_a_model_is_served_under_a_short_name_and_under_what_was_typed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "my-model")
    assert names_served(str(folder), folder) == ("my-model", str(folder))
    file = tmp_path / "other.Q4_1.gguf"
    file.touch()
    assert names_served(str(file), file) == ("other.Q4_1", str(file))
    assert names_served("smollm2-135m", file) == ("smollm2-135m",)
    assert names_served("org/model", folder) == ("org/model",)


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    assert read_environment().cache_folder == tmp_path
    monkeypatch.setenv("HEADRACE_CACHE", "")
    assert read_environment().cache_folder == Path.home() / ".cache" / "headrace"


def test_an_api_key_is_not_shown_where_the_environment_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_API_KEY", "a secret")
    environment = read_environment()
    assert environment.api_key == "a secret"
    assert "secret" not in repr(environment)
