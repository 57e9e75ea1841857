"""Tokenizers from GGUF metadata: what the file may say, what it may leave out, and what is wrong with it."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.base.errors import CheckpointError
from headrace.engine.host.pre_tokenizers import PRE_TOKENIZATIONS
from headrace.engine.host.token_spelling import BYTE_ALPHABET, Spelling, spelled_bytes
from headrace.engine.host.tokenizer import TextTokenizer
from headrace.engine.host.tokenizer_gguf import TokenType, parts_from_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (
    TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.BYTE,
)  # fmt: skip
BYTE_TOKENS = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]


def load(metadata: Mapping[str, Any]) -> TextTokenizer:
    return TextTokenizer(parts_from_gguf(metadata, source="model.gguf"))


def byte_level(
    *, added: list[tuple[str, int]] | None = None, merges: list[str] | None = None, **keys: Any
) -> dict[str, Any]:
    """A byte-level vocabulary: every byte, what the merges make, and the added tokens, in this order."""
    merges = merges or []
    pieces = [*BYTE_ALPHABET, *dict.fromkeys(merge.replace(" ", "") for merge in merges)]
    tokens = [(piece, int(NORMAL)) for piece in pieces] + (added or [])
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [piece for piece, _ in tokens],
        "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.merges": merges,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def sentence_piece(
    pieces: Mapping[str, float], *, added: list[tuple[str, int]] | None = None, **keys: Any
) -> dict[str, Any]:
    """`<unk>`, `<s>`, `</s>`, the bytes, the pieces with their scores, and the added tokens, in this order."""
    control = [("<unk>", int(UNKNOWN)), ("<s>", int(CONTROL)), ("</s>", int(CONTROL)), *BYTE_TOKENS]
    tokens = [*control, *((piece, int(NORMAL)) for piece in pieces), *(added or [])]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _ in tokens],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in tokens],
        "tokenizer.ggml.scores": [pieces.get(piece, 0.0) for piece, _ in tokens],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


CHATML = [("<|im_start|>", int(CONTROL)), ("<|im_end|>", int(CONTROL)), ("<think>", int(USER_DEFINED))]
LETTERS = {"▁": -1.0, "a": -2.0, "b": -3.0, "▁a": -4.0, "ab": -5.0, "▁ab": -6.0}


def test_merges_apply_in_the_order_of_the_file() -> None:
    tokenizer = load(byte_level(merges=["b c", "a b"]))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("abc")] == ["a", "bc"]


def test_a_byte_level_token_may_be_half_a_character() -> None:
    tokenizer = load(byte_level())
    tokens = tokenizer.encode("é")
    assert [tokenizer.token_bytes(token) for token in tokens] == [b"\xc3", b"\xa9"]
    assert tokenizer.token_text(tokens[0]) == "\ufffd"
    assert tokenizer.decode(tokens) == "é"


def test_every_byte_string_that_tokens_can_spell_decodes_to_its_own_text() -> None:
    tokenizer = load(byte_level())
    by_byte = {tokenizer.token_bytes(token): token for token in range(256)}
    rng = random.Random(7)
    for _ in range(200):
        raw = rng.randbytes(rng.randrange(12))
        tokens = [by_byte[bytes([byte])] for byte in raw]
        assert b"".join(tokenizer.token_bytes(token) for token in tokens) == raw
        assert tokenizer.decode(tokens) == raw.decode("utf-8", "replace")


def test_control_tokens_in_a_text_are_parsed_only_where_asked() -> None:
    tokenizer = load(byte_level(added=CHATML))
    parsed = tokenizer.encode("<|im_start|>x")
    literal = tokenizer.encode("<|im_start|>x", parse_special=False)
    assert parsed == [256, *tokenizer.encode("x")]
    assert len(literal) == len("<|im_start|>x")
    assert tokenizer.decode(literal) == "<|im_start|>x"


def test_user_defined_tokens_are_parsed_always_and_shown_always() -> None:
    tokenizer = load(byte_level(added=CHATML))
    for parse_special in (True, False):
        assert tokenizer.encode("<think>", parse_special=parse_special) == [258]
    assert tokenizer.decode([256, 258, 257]) == "<think>"
    assert tokenizer.decode([256, 258, 257], skip_special_tokens=False) == "<|im_start|><think><|im_end|>"
    assert [tokenizer.is_special(token) for token in (256, 257, 258, 0)] == [True, True, False, False]


def test_an_added_token_is_spelt_as_it_is_and_not_in_the_byte_alphabet() -> None:
    tokenizer = load(byte_level(added=[("é ", int(USER_DEFINED))]))
    assert tokenizer.encode("é x")[0] == 256
    assert tokenizer.token_bytes(256) == "é ".encode()


def test_padding_rows_of_an_embedding_are_no_tokens_to_look_for() -> None:
    tokenizer = load(byte_level(added=[("[PAD256]", int(USER_DEFINED))]))
    assert tokenizer.encode("[PAD256]") != [256]
    assert tokenizer.vocab_size == 257


@pytest.mark.parametrize(("says", "num_bos"), [(True, 1), (False, 0), (None, 0)])
def test_a_bos_goes_first_where_the_file_says_so(says: bool | None, num_bos: int) -> None:
    metadata = byte_level(added=CHATML, bos_token_id=256)
    if says is not None:
        metadata["tokenizer.ggml.add_bos_token"] = says
    tokenizer = load(metadata)
    bare = tokenizer.encode("b", add_special_tokens=False)
    assert tokenizer.encode("b") == [256] * num_bos + bare


def test_llama_3_files_want_a_bos_without_saying_so() -> None:
    metadata = byte_level(added=CHATML, bos_token_id=256) | {"tokenizer.ggml.pre": "llama-bpe"}
    assert load(metadata).encode("") == [256]


def test_an_eos_goes_last_where_the_file_says_so() -> None:
    tokenizer = load(byte_level(added=CHATML, eos_token_id=257, add_eos_token=True))
    assert tokenizer.encode("")[-1] == 257


def test_a_generation_ends_at_the_files_eos_and_at_every_known_end_of_turn() -> None:
    added = [*CHATML, ("<|endoftext|>", int(CONTROL)), ("</s>", int(NORMAL)), ("<eos>", int(CONTROL))]
    tokenizer = load(byte_level(added=added, eos_token_id=257))
    assert tokenizer.eos_token_ids[0] == 257
    assert set(tokenizer.eos_token_ids) == {257, 259, 261}


def test_an_end_of_turn_that_the_file_took_for_text_is_a_control_token_all_the_same() -> None:
    tokenizer = load(byte_level(added=[("<|im_end|>", int(NORMAL))]))
    assert tokenizer.eos_token_ids == (256,)
    assert tokenizer.is_special(256)


def test_an_end_of_message_within_an_answer_does_not_end_it() -> None:
    added = [(text, int(CONTROL)) for text in ("<|return|>", "<|call|>", "<|end|>")]
    assert set(load(byte_level(added=added)).eos_token_ids) == {256, 257}


def test_special_tokens_are_known_by_their_roles() -> None:
    tokenizer = load(byte_level(added=CHATML, bos_token_id=256, eos_token_id=257, padding_token_id=257))
    assert tokenizer.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    assert tokenizer.bos_token_id == 256


def test_the_chat_template_comes_with_the_file() -> None:
    tokenizer = load(byte_level() | {"tokenizer.chat_template": "{{ x }}"})
    assert (tokenizer.chat_template, tokenizer.chat_template_file) == ("{{ x }}", "model.gguf")
    tokenizer = load(byte_level())
    assert (tokenizer.chat_template, tokenizer.chat_template_file) == (None, "")


def test_ids_outside_the_vocabulary_stand_for_nothing() -> None:
    tokenizer = load(byte_level())
    assert tokenizer.token_bytes(10_000) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.decode([65, 10_000]) == tokenizer.decode([65])


# SentencePiece


def test_the_pair_whose_joint_piece_scores_highest_merges_first() -> None:
    tokenizer = load(sentence_piece({"▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "bc": -5.0, "ab": -6.0}))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("abc", add_special_tokens=False)] == [" ", "a", "bc"]


def test_a_space_is_put_before_a_text_and_taken_off_again() -> None:
    tokenizer = load(sentence_piece(LETTERS))
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    assert [tokenizer.token_bytes(token) for token in tokens] == [b" ab"]
    assert tokenizer.decode(tokens) == "ab"
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"


def test_a_vocabulary_without_the_space_prefix_leaves_texts_alone() -> None:
    tokenizer = load(sentence_piece(LETTERS, add_space_prefix=False))
    assert [tokenizer.token_text(token) for token in tokenizer.encode("ab", add_special_tokens=False)] == ["ab"]
    assert tokenizer.decode(tokenizer.encode(" ab")) == " ab"


def test_what_is_in_no_piece_falls_back_to_bytes() -> None:
    tokenizer = load(sentence_piece(LETTERS))
    tokens = tokenizer.encode("a漢", add_special_tokens=False)
    assert [tokenizer.token_bytes(token) for token in tokens[1:]] == [b"\xe6", b"\xbc", b"\xa2"]
    assert tokenizer.decode(tokens) == "a漢"


def test_a_byte_tokens_name_in_a_text_is_text() -> None:
    tokenizer = load(sentence_piece(LETTERS))
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"


def test_a_sentence_piece_file_has_a_bos_unless_it_says_otherwise() -> None:
    assert load(sentence_piece(LETTERS)).encode("a")[0] == 1
    assert load(sentence_piece(LETTERS, add_bos_token=False)).encode("a")[0] != 1


def test_phi_3s_control_tokens_swallow_the_space_after_them() -> None:
    metadata = sentence_piece(LETTERS, added=[("<|user|>", int(CONTROL))])
    user = len(metadata["tokenizer.ggml.tokens"]) - 1
    plain, phi = load(metadata), load(metadata | {"general.name": "Phi-3 mini"})
    assert phi.encode("<|user|>\n ab") == phi.encode("<|user|>ab")
    assert plain.encode("<|user|>\n ab") != plain.encode("<|user|>ab")
    assert phi.encode("<|user|>ab")[1] == user


def test_gemma_4_cuts_lines_and_spells_as_sentence_piece_does() -> None:
    control = [("<bos>", int(CONTROL)), *BYTE_TOKENS]
    pieces = [*control, *((piece, int(NORMAL)) for piece in ("▁", "a", "b", "\n", "▁a", "\n\n"))]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": [piece for piece, _ in pieces],
        "tokenizer.ggml.token_type": [int(kind) for _, kind in pieces],
        "tokenizer.ggml.merges": ["▁ a", "\n \n"],
        "tokenizer.ggml.bos_token_id": 0,
    }
    tokenizer = load(metadata)
    tokens = tokenizer.encode("b a\n\né")
    assert [tokenizer.token_bytes(token) for token in tokens[1:]] == [b"b", b" a", b"\n\n", b"\xc3", b"\xa9"]
    assert tokens[0] == 0
    assert tokenizer.decode(tokens) == "b a\n\né"


# What is wrong with a file


def test_an_unknown_way_of_cutting_words_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(CheckpointError, match=r"model.gguf: tokenizer.ggml.pre is 'smolm'.*did you mean 'smollm'.*qwen2"):
        load(byte_level() | {"tokenizer.ggml.pre": "smolm"})


@pytest.mark.parametrize("model", ["t5", "rwkv", "plamo2", "none"])
def test_an_unsupported_kind_of_vocabulary_is_an_error_that_names_the_supported_ones(model: str) -> None:
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.model is '{model}'.*bert, gemma4, gpt2, llama"):
        load({"tokenizer.ggml.model": model})


def test_a_file_without_a_vocabulary_says_so() -> None:
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        load({})
    with pytest.raises(CheckpointError, match="empty or missing"):
        load({"tokenizer.ggml.model": "gpt2"})


def test_a_byte_level_vocabulary_without_merges_is_refused() -> None:
    metadata = byte_level()
    del metadata["tokenizer.ggml.merges"]
    with pytest.raises(CheckpointError, match="no merges"):
        load(metadata)


def test_merges_that_name_unknown_tokens_are_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot be used"):
        load(byte_level() | {"tokenizer.ggml.merges": ["a b"]})
    with pytest.raises(CheckpointError, match="is no pair"):
        load(byte_level() | {"tokenizer.ggml.merges": ["ab"]})


def test_a_token_that_is_there_twice_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'a' twice"):
        load(byte_level(added=[("a", int(NORMAL))]))


def test_arrays_that_are_too_short_or_of_the_wrong_type_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"256 tokens, but 1 entries in tokenizer.ggml.token_type"):
        load(byte_level() | {"tokenizer.ggml.token_type": [1]})
    with pytest.raises(CheckpointError, match="no array of type str"):
        load(byte_level() | {"tokenizer.ggml.tokens": [1, 2]})


def test_a_token_that_is_no_text_is_refused() -> None:
    with pytest.raises(CheckpointError, match="cannot be used"):
        load(byte_level(added=[("\udcff", int(NORMAL))]))


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZATIONS))
def test_every_known_way_of_cutting_words_loses_no_character(pre: str) -> None:
    added = [("▁", int(NORMAL)), *((piece, int(kind)) for piece, kind in BYTE_TOKENS)]
    tokenizer = load(byte_level(added=added) | {"tokenizer.ggml.pre": pre})
    text = (
        "Hello, I'LL don't 1234567 x=½ ٣٤\r\n\r\n\t  naïve Ünïcode 漢字かなカナ 한국어 ไทย "
        "‘quoted’ e\u0301!?…  \n 🌊 <|end|> "
    )
    assert tokenizer.decode(tokenizer.encode(text, parse_special=False)) == text


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "It's 2024  now", ["It", "'s", " 2024", " ", " now"]),
        ("smollm", "It's 2024  now", ["It", "'s", " ", "2", "0", "2", "4", " ", " now"]),
        ("qwen2", "IT'S 2024  now", ["IT", "'S", " ", "2", "0", "2", "4", " ", " now"]),
        ("llama-bpe", "IT'S 20245  now\n\nx", ["IT", "'S", " ", "202", "45", " ", " now", "\n\n", "x"]),
        ("gpt-4o", "camelCase isn't 20245", ["camel", "Case", " isn't", " ", "202", "45"]),
        ("tekken", "camelCase isn't 20", ["camel", "Case", " isn", "'t", " ", "2", "0"]),
        ("deepseek-v3", "x=2024漢字 ok", ["x", "=", "202", "4", "漢字", " ok"]),
        ("deepseek-llm", "Wort, 42\n漢字", ["Wort", ",", " ", "4", "2", "\n", "漢字"]),
        ("deepseek-coder", "a  = 42;\n", ["a", "  = ", "4", "2", ";", "\n"]),
        ("falcon", "x+=12345`", ["x", "+=", "123", "45", "`"]),
        ("qwen35", "हिन्दी 12", ["हिन्दी", " ", "1", "2"]),
        ("tiny_aya", "1234567", ["1", "234", "567"]),
        ("superbpe", "abc 1234567", ["abc ", "1", "234", "567"]),
        ("bloom", "Salut, toi.", ["Salut", ",", " toi", "."]),
    ],
)
def test_words_are_cut_as_the_family_cuts_them(pre: str, text: str, words: list[str]) -> None:
    backend = parts_from_gguf(byte_level() | {"tokenizer.ggml.pre": pre}, source="model.gguf").backend
    assert backend.pre_tokenizer is not None
    pieces = backend.pre_tokenizer.pre_tokenize_str(text)
    assert [spelled_bytes(Spelling.BYTE_LEVEL, piece).decode() for piece, _ in pieces] == words
