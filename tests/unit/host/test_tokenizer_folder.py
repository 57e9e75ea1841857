"""Tokenizers from checkpoint folders: which files count, which goes before which, and what is wrong with a folder."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from headrace.base.errors import CheckpointError, InvalidRequestError
from headrace.engine.host.token_spelling import BYTE_ALPHABET
from headrace.engine.host.tokenizer import load_tokenizer

BOS, EOS, TURN = 256, 257, 258


def byte_level() -> Tokenizer:
    backend = Tokenizer(models.BPE(vocab={piece: place for place, piece in enumerate(BYTE_ALPHABET)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>", "<|turn|>")])
    return backend


def with_bos(backend: Tokenizer) -> Tokenizer:
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return backend


def write(folder: Path, backend: Tokenizer | None, **files: Any) -> Path:
    """`files`: name with `__` for the dot -> content, as text or as JSON."""
    if backend is not None:
        backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return folder


CONFIG = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}}


def test_a_folder_with_nothing_but_a_tokenizer_json_is_enough(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level()))
    assert tokenizer.decode(tokenizer.encode("naïve 漢字")) == "naïve 漢字"
    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == ()
    assert tokenizer.chat_template is None
    assert tokenizer.vocab_size == 259


def test_special_tokens_are_read_as_text_or_as_objects(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level(), tokenizer_config__json=CONFIG))
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert tokenizer.bos_token_id == BOS
    assert tokenizer.eos_token_ids == (EOS,)


def test_special_tokens_that_the_configuration_lacks_come_from_the_map(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), tokenizer_config__json={"bos_token": None}, special_tokens_map__json=CONFIG)
    assert load_tokenizer(folder).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_generation_ends_at_the_tokenizers_eos_and_at_the_generation_configs(tmp_path: Path) -> None:
    folder = write(
        tmp_path, byte_level(), tokenizer_config__json=CONFIG, generation_config__json={"eos_token_id": [TURN, EOS]},
        config__json={"eos_token_id": 1},
    )  # fmt: skip
    assert load_tokenizer(folder).eos_token_ids == (EOS, TURN)


@pytest.mark.parametrize("config", [{"eos_token_id": TURN}, {"text_config": {"eos_token_id": TURN}}])
def test_without_a_generation_config_the_models_own_eos_counts(tmp_path: Path, config: dict[str, Any]) -> None:
    assert load_tokenizer(write(tmp_path, byte_level(), config__json=config)).eos_token_ids == (TURN,)


def test_what_goes_around_a_text_is_what_tokenizer_json_puts_there(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, with_bos(byte_level()), tokenizer_config__json=CONFIG))
    bare = tokenizer.encode("ab", add_special_tokens=False)
    assert tokenizer.encode("ab") == [BOS, *bare]


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({"add_bos_token": True}, [BOS], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": True, "add_eos_token": True}, [BOS], [EOS]),
        ({"add_eos_token": True}, [], [EOS]),
    ],
)
def test_the_configurations_word_on_bos_and_eos_is_the_last(
    tmp_path: Path, flags: dict[str, bool], before: list[int], after: list[int]
) -> None:
    folder = write(tmp_path, with_bos(byte_level()), tokenizer_config__json=CONFIG | flags)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("ab") == [*before, *tokenizer.encode("ab", add_special_tokens=False), *after]


def test_control_tokens_in_a_text_are_parsed_only_where_asked(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level()))
    assert tokenizer.encode("<|turn|>a") == [TURN, *tokenizer.encode("a")]
    literal = tokenizer.encode("<|turn|>a", parse_special=False)
    assert TURN not in literal
    assert tokenizer.decode(literal) == "<|turn|>a"


def test_both_ways_of_parsing_may_be_used_at_once_from_several_threads(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level()))
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda parse: tokenizer.encode("<|turn|>" * 50, parse_special=parse), [True, False] * 40))
    assert counts == [[TURN] * 50, tokenizer.encode("<|turn|>" * 50, parse_special=False)] * 40


def test_truncation_and_padding_left_over_from_training_are_off(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    assert len(load_tokenizer(write(tmp_path, backend)).encode("abcdefgh")) == 8


def test_half_of_a_surrogate_pair_is_the_callers_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, byte_level()))
    with pytest.raises(InvalidRequestError, match="half of a surrogate pair at character 2"):
        tokenizer.encode("ab\ud83d")


# Chat templates


def test_the_chat_template_is_in_the_configuration(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level(), tokenizer_config__json={"chat_template": "from config"})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.chat_template == "from config"
    assert tokenizer.chat_template_file == str(folder / "tokenizer_config.json")


def test_of_several_named_templates_the_one_named_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    folder = write(tmp_path, byte_level(), tokenizer_config__json={"chat_template": named})
    assert load_tokenizer(folder).chat_template == "plain"


def test_a_template_in_a_file_of_its_own_goes_before_the_configurations(tmp_path: Path) -> None:
    folder = write(
        tmp_path, byte_level(), chat_template__jinja="from file", chat_template__json={"chat_template": "from json"},
        tokenizer_config__json={"chat_template": "from config"},
    )  # fmt: skip
    for name, source in (("chat_template.jinja", "from file"), ("chat_template.json", "from json")):
        tokenizer = load_tokenizer(folder)
        assert tokenizer.chat_template == source
        assert tokenizer.chat_template_file == str(folder / name)
        (folder / name).unlink()
    assert load_tokenizer(folder).chat_template == "from config"


def test_a_template_that_is_no_text_is_refused_by_its_files_name(tmp_path: Path) -> None:
    folder = write(tmp_path, byte_level())
    (folder / "chat_template.jinja").write_bytes(b"{{ '\xff' }}")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja: cannot be read: .*utf-8"):
        load_tokenizer(folder)


# Spellings


def _metaspace_by_parts() -> Tokenizer:
    """As Llama 2's tokenizer.json: a normaliser writes U+2581, the decoder takes it back and strips one space."""
    backend = _sentence_piece_vocabulary()
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _metaspace() -> Tokenizer:
    backend = _sentence_piece_vocabulary()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return backend


def _sentence_piece_vocabulary() -> Tokenizer:
    pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a"]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    return Tokenizer(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True))


@pytest.mark.parametrize("make", [_metaspace_by_parts, _metaspace])
def test_sentence_piece_spelling_is_recognised_by_its_decoder(tmp_path: Path, make: Callable[[], Tokenizer]) -> None:
    backend = make()
    tokenizer = load_tokenizer(write(tmp_path, backend))
    for text in ("ab a", "a é漢", "a  b ", "b"):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == backend.decode(tokens) == text
    assert tokenizer.token_bytes(tokenizer.encode("a")[0]) == b" a"
    assert tokenizer.token_bytes(0xE2) == b"\xe2"


def test_a_word_piece_continues_its_word(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "river": 1, "##side": 2}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    tokenizer = load_tokenizer(write(tmp_path, backend))
    assert tokenizer.encode("Riverside river") == [1, 2, 1]
    assert tokenizer.decode([1, 2, 1]) == "riverside river"


def test_plain_words_are_their_own_bytes(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"é": 0, "b": 1}, unk_token="b"))
    assert load_tokenizer(write(tmp_path, backend)).token_bytes(0) == "é".encode()


# What is wrong with a folder


def test_a_folder_without_tokenizer_json_says_which_file_is_needed_and_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing; download it, or write it with transformers"):
        load_tokenizer(tmp_path)


def test_a_sentence_piece_model_alone_is_not_enough(tmp_path: Path) -> None:
    folder = write(tmp_path, None, tokenizer__model="binary")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing; tokenizer\.model alone does not say"):
        load_tokenizer(folder)


@pytest.mark.parametrize("content", ["{", '{"version": "1.0"}', '{"model": {"type": "Unheard"}}'])
def test_a_damaged_tokenizer_json_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        load_tokenizer(write(tmp_path, None, tokenizer__json=content))


@pytest.mark.parametrize("name", ["tokenizer_config__json", "generation_config__json"])
def test_a_damaged_configuration_is_named(tmp_path: Path, name: str) -> None:
    file_name = name.replace("__", ".")
    with pytest.raises(CheckpointError, match=f"{file_name}: cannot be read"):
        load_tokenizer(write(tmp_path, byte_level(), **{name: "{"}))
    with pytest.raises(CheckpointError, match=f"{file_name}: holds no JSON object"):
        load_tokenizer(write(tmp_path, byte_level(), **{name: "[]"}))


def test_a_path_that_is_neither_folder_nor_gguf_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint folder and no \.gguf file"):
        load_tokenizer(tmp_path / "model.bin")
