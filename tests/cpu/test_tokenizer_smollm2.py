"""The embedded default model's tokenizer, from its GGUF, against transformers' from the same file."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from headrace.engine.host.tokenizer import TextTokenizer, load_tokenizer

PROSE = (
    "The mill stood where the valley narrowed, and its wheel had not stopped since 1874. \"Isn't it loud?\" she'd asked; "
    "he hadn't heard. They'll come by at 12:30, won't they? It cost 3,999.95 (or so we're told)...\n\n\tAnd then: nothing.  "
    "Über den Fluß führte eine Brücke. L'été, le moulin s'arrête; où va l'eau ? ¿Dónde está el molino? Река течёт мимо. "
    "水車は川のそばにある。방앗간은 강가에 있다. चक्की नदी के पास है। المطحنة بجانب النهر ١٢٣. 🌊🏞️👩‍👩‍👧 x² + y² ≤ ½·z₀\r\n"
)
CODE = """
def turn(wheel: Wheel, *, speed_rpm: float = 12.5) -> list[int]:
    '''Turns.'''
    if speed_rpm <= 0 or not wheel:  # nothing to do
        raise ValueError(f"{speed_rpm!r} is no speed\\n")
    return [int(x ** 2) for x in range(0x10, 1_000, 3)] + wheel.__dict__["teeth"]
<html lang="en"><body class='a b'>&nbsp;&lt;</body></html>  {"a": [1, 2.50e-3, null], "b\\u00e9": true};;;;  //======
"""
CHAT = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@cache
def ours_and_theirs(path: Path) -> tuple[TextTokenizer, Any]:
    import transformers

    theirs = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # transformers does not know the name `smollm` for a way of cutting words, and falls back to GPT-2's. The model's own
    # tokenizer.json cuts digits apart first.
    theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return load_tokenizer(path), theirs


def texts() -> list[str]:
    rng = random.Random(11)
    whole = [PROSE, CODE, CHAT, "", " ", "\n", "  \n \t ", "a" * 3000, "ab " * 1000, " " * 500, "<|im_start|", "im_end|>"]
    cut = []
    for _ in range(600):
        source = rng.choice((PROSE, CODE, CHAT))
        start = rng.randrange(len(source))
        cut.append(source[start : start + rng.randint(1, 120)])
    mixed = ["".join(rng.choices(PROSE + CODE, k=rng.randint(1, 60))) for _ in range(400)]
    return whole + cut + mixed


def test_encoding_equals_transformers(smollm2_path: Path) -> None:
    ours, theirs = ours_and_theirs(smollm2_path)
    for text in texts():
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False), text


def test_control_tokens_as_text_equal_transformers(smollm2_path: Path) -> None:
    ours, theirs = ours_and_theirs(smollm2_path)
    for text in (CHAT, "<|im_end|><|im_end|>", "x<|endoftext|>y", "<repo_name>"):
        assert ours.encode(text, parse_special=False) == theirs.encode(text, split_special_tokens=True), text


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_random_tokens_equals_transformers(smollm2_path: Path, skip: bool) -> None:
    ours, theirs = ours_and_theirs(smollm2_path)
    rng = random.Random(12)
    for _ in range(1500):
        tokens = [
            rng.randrange(20) if rng.random() < 0.2 else rng.randrange(ours.vocab_size) for _ in range(rng.randint(1, 12))
        ]
        expected = theirs.decode(tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(tokens, skip_special_tokens=skip) == expected, tokens


def test_its_facts_are_the_files(smollm2_path: Path) -> None:
    ours, theirs = ours_and_theirs(smollm2_path)
    assert ours.vocab_size == 49152
    assert ours.bos_token_id == theirs.bos_token_id == 1
    assert ours.eos_token_ids == (theirs.eos_token_id, 0)  # <|im_end|> ends a turn, <|endoftext|> a text
    assert ours.chat_template == theirs.chat_template
    roles = ("bos_token", "eos_token", "unk_token", "pad_token")
    assert ours.special_tokens == {role: theirs.special_tokens_map[role] for role in roles}


@pytest.mark.slow
def test_gemma_3_comes_back_byte_for_byte(gemma3_path: Path) -> None:
    """262,144 pieces whose merges follow from their scores; user-defined runs of white space; bytes for the rest."""
    tokenizer = load_tokenizer(gemma3_path)
    for text in texts():
        tokens = tokenizer.encode(text)
        assert tokens[0] == tokenizer.bos_token_id
        assert b"".join(tokenizer.token_bytes(token) for token in tokens[1:]) == text.encode()
        assert tokenizer.decode(tokens) == text
    assert tokenizer.encode("<start_of_turn>user\n\n\nHi  there", add_special_tokens=False) == [
        105, 2364, 109, 10979, 138, 13534,
    ]  # fmt: skip
    assert tokenizer.eos_token_ids == (1, 106)
