"""One table of options, read from a command line and from a file: the same names, kinds and refusals in both."""

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigurationError
from headrace.base.units import GIB
from headrace.cli.config_file import read_config_file
from headrace.cli.parser import Parser
from headrace.cli.serve_options import ServeOptions, add_options, merge


def typed(*words: str) -> dict[str, Any]:
    parser = Parser()
    add_options(parser)
    return vars(parser.read(words))


def written(folder: Path, text: str) -> Path:
    path = folder / "headrace.toml"
    path.write_text(text)
    return path


def test_what_nobody_gives_has_its_default() -> None:
    assert merge(typed(), {}) == ServeOptions()


def test_every_kind_of_value_can_be_typed() -> None:
    options = merge(
        typed(
            "folder/model", "--served-model-name", "a", "b", "--max-model-len", "auto", "--kv-cache-memory", "1.5GiB",
            "--memory-fraction", "0.5", "--no-enable-prefix-caching", "--port", "0", "--on-engine-death", "restart",
        ),
        {},
    )  # fmt: skip
    assert options == ServeOptions(
        model="folder/model", served_model_name=("a", "b"), max_model_len=-1, kv_cache_memory=int(1.5 * GIB),
        memory_fraction=0.5, enable_prefix_caching=False, port=0, on_engine_death="restart",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--gpu-memory-utilization", "0.5"], "memory_fraction"),
        (["--kv-cache-memory-bytes", "5"], "kv_cache_memory"),
        (["--long-prefill-token-threshold", "5"], "max_tokens_per_prompt_chunk"),
    ],
)
def test_other_servers_names_are_understood(words: list[str], name: str) -> None:
    assert name in typed(*words)


def test_every_kind_of_value_can_be_written_in_a_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        'model = "folder/model"\nserved_model_name = ["a", "b"]\nmax_model_len = "auto"\nkv_cache_memory = "1.5GiB"\n'
        "memory_fraction = 1\nenable_prefix_caching = false\nport = 0\n",
    )
    assert merge({}, read_config_file(path)) == ServeOptions(
        model="folder/model", served_model_name=("a", "b"), max_model_len=-1, kv_cache_memory=int(1.5 * GIB),
        memory_fraction=1, enable_prefix_caching=False, port=0,
    )  # fmt: skip


def test_a_single_name_in_a_file_needs_no_list(tmp_path: Path) -> None:
    assert read_config_file(written(tmp_path, 'served_model_name = "a"\n')) == {"served_model_name": ("a",)}


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    from_file = read_config_file(written(tmp_path, "port = 1\nmax_num_seqs = 7\n"))
    options = merge(typed("--port", "2"), from_file)
    assert (options.port, options.max_num_seqs) == (2, 7)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_model_length = 5\n", "there is no option 'max_model_length'; did you mean 'max_model_len'?"),
        ("[server]\nport = 5\n", "there is no option 'server'"),
        ('port = "8000x"\n', "port must be a whole number, not '8000x'"),
        ("port = true\n", "port must be a whole number, not True"),
        ("enable_prefix_caching = 1\n", "enable_prefix_caching must be true or false, not 1"),
        ('kv_cache_memory = "lots"\n', "kv_cache_memory: 'lots' is not a size"),
        ('dtype = "float23"\n', "dtype: 'float23' is none of auto, float32, bfloat16; did you mean 'float32'?"),
        ("port = \n", "is no TOML"),
    ],
)
def test_what_a_file_should_not_say_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_config_file(path)
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gone\.toml: No such file"):
        read_config_file(tmp_path / "gone.toml")
