"""llama.cpp's own test vectors: texts, and the token ids that each family's vocabulary makes of them.

They lie in a folder of public data that not everyone has; without it these tests are skipped. Only families whose vocabulary
lies there too can be checked.
"""

from pathlib import Path

import pytest

from headrace.engine.host.tokenizer import load_tokenizer

VOCABULARIES = Path(__file__).resolve().parents[4] / "shared" / "data" / "suites" / "llama.cpp" / "vocab"
SEPARATOR = "\n__ggml_vocab_test__\n"
FAMILIES = ("bert-bge", "deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder")
BYTE_COMPLETE = ("deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2", "starcoder")


def vocabulary_path(family: str) -> Path:
    path = VOCABULARIES / f"ggml-vocab-{family}.gguf"
    if not path.is_file():
        pytest.skip(f"needs {path.name} in ../shared/data/suites/llama.cpp/vocab")
    return path


def texts_of(path: Path) -> list[str]:
    return path.with_name(path.name + ".inp").read_bytes().decode().split(SEPARATOR)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_vector_of_the_family_gives_the_same_token_ids(family: str) -> None:
    path = vocabulary_path(family)
    texts = texts_of(path)
    expected = [[int(word) for word in line.split()] for line in path.with_name(path.name + ".out").read_text().split("\n")]
    tokenizer = load_tokenizer(path)
    actual = [tokenizer.encode(text, add_special_tokens=False, parse_special=False) for text in texts]
    assert len(texts) > 40
    assert actual == expected[: len(texts)]


@pytest.mark.parametrize("family", BYTE_COMPLETE)
def test_every_text_of_the_vectors_comes_back_unchanged(family: str) -> None:
    path = vocabulary_path(family)
    tokenizer = load_tokenizer(path)
    for text in texts_of(path):
        assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


def test_every_vocabulary_of_the_folder_is_among_the_families_checked_here() -> None:
    if not VOCABULARIES.is_dir():
        pytest.skip("needs ../shared/data/suites/llama.cpp/vocab")
    present = {path.stem.removeprefix("ggml-vocab-") for path in VOCABULARIES.glob("*.gguf")}
    assert present == set(FAMILIES)
