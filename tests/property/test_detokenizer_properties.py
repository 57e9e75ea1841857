"""Whatever the tokens and wherever they are cut: the pieces make up the text, no half characters, stop strings found."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import ByteTokenizer

from headrace.engine.host.detokenizer import IncrementalDetokenizer
from headrace.engine.host.stop_strings import StopStrings, StopWatch
from headrace.engine.host.token_spelling import BYTE_ALPHABET
from headrace.engine.host.tokenizer import TextTokenizer
from headrace.engine.host.tokenizer_gguf import TokenType, parts_from_gguf


def sentence_piece() -> TextTokenizer:
    """Control tokens, all bytes, spaces, words and characters of several bytes."""
    control = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["▁", "▁▁", "▁the", "the", "é", "▁漢", "字", "🌊", "a", "\n"]
    kinds = [TokenType.CONTROL] * len(control) + [TokenType.BYTE] * 256 + [TokenType.NORMAL] * len(pieces)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": control + byte_tokens + pieces,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
    }
    return TextTokenizer(parts_from_gguf(metadata, source="here"))


def byte_level() -> TextTokenizer:
    """All bytes, some pairs that cut characters in two, and a control token."""
    character = {byte: character for character, byte in BYTE_ALPHABET.items()}
    pairs = [b"\xc3\xa9", b"\xe6\xbc", b"\xa2\xe5", b" a", b"\x9f\x8c"]
    merges = [f"{character[first]} {character[second]}" for first, second in pairs]
    pieces = [*BYTE_ALPHABET, *(merge.replace(" ", "") for merge in merges), "<|end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * (len(pieces) - 1) + [int(TokenType.CONTROL)],
        "tokenizer.ggml.merges": merges,
    }
    return TextTokenizer(parts_from_gguf(metadata, source="here"))


TOKENIZERS = (sentence_piece(), byte_level())
SPECIAL_AND_MERGED = st.integers(250, 300)
tokenizers = st.sampled_from(TOKENIZERS)
token_lists = st.lists(st.one_of(st.integers(0, 300), SPECIAL_AND_MERGED), max_size=40)
cut_sizes = st.lists(st.integers(1, 5), max_size=40)


def cut(tokens: Sequence[int], sizes: list[int]) -> list[Sequence[int]]:
    """The tokens in groups of these sizes; what is left over one by one."""
    groups, start = [], 0
    for size in sizes:
        groups.append(tokens[start : start + size])
        start += size
    return [*groups, *([token] for token in tokens[start:])]


def text_of(detokenizer: IncrementalDetokenizer, groups: list[Sequence[int]]) -> str:
    return "".join(detokenizer.push(group).text for group in groups) + detokenizer.finish()


@given(tokenizers, token_lists, cut_sizes, st.booleans())
def test_the_pieces_make_up_what_decoding_all_at_once_gives(
    tokenizer: TextTokenizer, tokens: list[int], sizes: list[int], skip: bool
) -> None:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip, at_text_start=True)
    assert text_of(detokenizer, cut(tokens, sizes)) == tokenizer.decode(tokens, skip_special_tokens=skip)


@given(tokenizers, token_lists, cut_sizes)
def test_an_answer_makes_up_what_its_prompt_and_itself_decode_to_less_the_prompt(
    tokenizer: TextTokenizer, tokens: list[int], sizes: list[int]
) -> None:
    prompt = tokenizer.encode("the")
    answer = text_of(IncrementalDetokenizer(tokenizer), cut(tokens, sizes))
    assert tokenizer.decode(prompt) + answer == tokenizer.decode([*prompt, *tokens])


@given(tokenizers, token_lists)
def test_nothing_is_held_back_that_is_already_certain(tokenizer: TextTokenizer, tokens: list[int]) -> None:
    """After every token: what was shown is all that any continuation agrees on, at most a character of 4 bytes less."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    raw, shown = b"", ""
    for token in tokens:
        raw += b"" if tokenizer.is_special(token) else tokenizer.token_bytes(token)
        shown += detokenizer.push([token]).text
        pending = len(raw.decode("utf-8", "replace")) - len(shown)
        assert pending in (0, 1)
        assert raw.decode("utf-8", "replace").startswith(shown)
        # Held only where one more byte can still make a difference.
        assert pending == 0 or any(_completes(raw, shown, more) for more in (b"\x80", b"\x90", b"\xa0"))


def _completes(raw: bytes, shown: str, more: bytes) -> bool:
    """Whether these bytes with `more` after them are not the replaced bytes with a replaced `more`."""
    return (raw + more).decode("utf-8", "replace") != raw.decode("utf-8", "replace") + more.decode("utf-8", "replace")


@given(st.text(max_size=60), st.lists(st.integers(1, 5), max_size=60))
def test_every_text_comes_back_from_its_bytes_wherever_they_are_cut(text: str, sizes: list[int]) -> None:
    for tokenizer in TOKENIZERS:
        tokens = tokenizer.encode(text, parse_special=False, add_special_tokens=False)
        spelt = b"".join(tokenizer.token_bytes(token) for token in tokens).decode()
        assert text_of(IncrementalDetokenizer(tokenizer), cut(tokens, sizes)) == spelt
        assert tokenizer.decode(tokens) in (text, text.replace("▁", " "))


# Stop strings, over a small alphabet so that they collide

small_texts = st.text(alphabet="abé", max_size=40)
stop_lists = st.lists(st.text(alphabet="abé", min_size=1, max_size=4), min_size=1, max_size=5)


def first_completed(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The naive rule: the shortest beginning of the text that ends in a stop string; of several, the first listed."""
    for end in range(1, len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end if include else end - len(stop)], stop
    return text, None


@given(small_texts, stop_lists, cut_sizes, st.booleans())
def test_stop_strings_end_a_text_as_the_naive_rule_says_wherever_tokens_are_cut(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=stops, include_stop_str_in_output=include)
    expected = first_completed(text, stops, include)
    assert (text_of(detokenizer, cut(list(text.encode()), sizes)), detokenizer.stopped_by) == expected


@given(small_texts, stop_lists)
def test_what_is_held_back_is_the_longest_end_that_begins_a_stop_string(text: str, stops: list[str]) -> None:
    watch = StopWatch(StopStrings(stops), include_in_output=False)
    seen = shown = ""
    for character in text:
        released, stopped_by = watch.feed(character)
        seen, shown = seen + character, shown + released
        if stopped_by is not None:
            break
        ends = (seen[start:] for start in range(len(seen) + 1))
        held = next(end for end in ends if any(stop.startswith(end) for stop in stops))
        assert shown + held == seen


@given(small_texts, stop_lists, st.integers(0, 10), cut_sizes)
def test_stop_strings_before_min_tokens_are_text(text: str, stops: list[str], min_tokens: int, sizes: list[int]) -> None:
    """Tokens are bytes here: a stop string counts from the first character that a later byte completes."""
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=stops, min_tokens=min_tokens)
    answer = text_of(detokenizer, cut(list(text.encode()), sizes))
    for end in range(1, len(text) + 1):
        honoured = len(text[:end].encode()) > min_tokens
        found = next((stop for stop in stops if honoured and text[:end].endswith(stop)), None)
        if found is not None:
            assert (answer, detokenizer.stopped_by) == (text[: end - len(found)], found)
            return
    assert (answer, detokenizer.stopped_by) == (text, None)
