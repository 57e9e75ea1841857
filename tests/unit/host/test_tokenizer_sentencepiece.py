"""SentencePiece-style vocabularies against the `sentencepiece` package itself, on small models trained here."""

import io
import random
from typing import Any

import pytest
import sentencepiece

from headrace.engine.host.tokenizer import TextTokenizer
from headrace.engine.host.tokenizer_gguf import TokenType, parts_from_gguf

TRAINING_TEXT = (
    "the river runs past the old mill and turns the wheel that turns the stone while water flows early in spring "
    "bananas anagram aaa aaaa banana nanana l'été naïve café größe Straße река мельница вода колесо 水車 川 流れ 12 345 6789"
)
WORDS = TRAINING_TEXT.split()
ALPHABET = [*"abcdeinorstuy ", *"  ▁éßя水🌊\n\t<>/0x1", "<0x41>", "</s>", "ana", "nan"]


def corpus(seed: int, num_lines: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 20))) for _ in range(num_lines)]


def train(**options: Any) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus(1, 2000)),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.999,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def as_gguf(model: sentencepiece.SentencePieceProcessor, *, add_space_prefix: bool) -> TextTokenizer:
    """The vocabulary as llama.cpp's converter writes it."""
    size = model.get_piece_size()

    def kind(token: int) -> TokenType:
        if model.is_unknown(token):
            return TokenType.UNKNOWN
        if model.is_control(token):
            return TokenType.CONTROL
        if model.is_byte(token):
            return TokenType.BYTE
        # The package has no question for user-defined pieces; they are those that were given no score.
        return TokenType.USER_DEFINED if model.get_score(token) == 0.0 and token < 20 else TokenType.NORMAL

    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(token) for token in range(size)],
        "tokenizer.ggml.scores": [model.get_score(token) for token in range(size)],
        "tokenizer.ggml.token_type": [int(kind(token)) for token in range(size)],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": add_space_prefix,
    }
    return TextTokenizer(parts_from_gguf(metadata, source="trained here"))


def texts(seed: int) -> list[str]:
    rng = random.Random(seed)
    known = corpus(seed, 200)
    strange = ["".join(rng.choices(ALPHABET, k=rng.randint(1, 40))) for _ in range(400)]
    repeated = ["".join(rng.choices("aban", k=rng.randint(1, 3))) * rng.randint(1, 12) for _ in range(200)]
    return known + strange + repeated


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_trained_vocabulary_encodes_and_decodes_as_sentencepiece_does(adds_space: bool) -> None:
    """Like Llama 2 with the space that is put first, like Gemma without it."""
    model = train(add_dummy_prefix=adds_space)
    tokenizer = as_gguf(model, add_space_prefix=adds_space)
    for text in texts(2):
        expected = model.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == expected, text
        # In a piece U+2581 and a space are the same; the original text's U+2581 is lost in both.
        assert tokenizer.decode(expected) == model.decode(expected) == text.replace("▁", " ")


def test_pieces_that_the_user_defined_are_found_before_anything_merges() -> None:
    defined = ["<div>", "nan", "\n\n", "aa"]
    model = train(add_dummy_prefix=False, user_defined_symbols=defined)
    tokenizer = as_gguf(model, add_space_prefix=False)
    rng = random.Random(3)
    for _ in range(300):
        text = "".join(rng.choices([*defined, *"aban \n", "<div", "anan"], k=rng.randint(1, 20)))
        assert tokenizer.encode(text, add_special_tokens=False, parse_special=False) == model.encode(text), text
