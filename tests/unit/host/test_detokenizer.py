"""Text that grows token by token: whole characters, stop strings, special tokens, the space at the beginning."""

from collections.abc import Sequence

import pytest
from tests.fakes import BOS, EOS, IM_END, ByteTokenizer

from headrace.base.errors import InvalidRequestError
from headrace.engine.host.detokenizer import IncrementalDetokenizer, token_logprob
from headrace.engine.host.generation import Tokenizer
from headrace.engine.host.stop_strings import StopStrings
from headrace.engine.host.token_spelling import BYTE_ALPHABET
from headrace.engine.host.tokenizer import TextTokenizer
from headrace.engine.host.tokenizer_gguf import TokenType, parts_from_gguf
from headrace.engine.mind.step import TokenLogprobs


class WordTokenizer(ByteTokenizer):
    """Tokens that are words, so that a test can cut a text where it likes."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id].encode()

    def is_special(self, token_id: int) -> bool:
        return self.words[token_id].startswith("<|")


def sentence_piece(*pieces: str) -> TextTokenizer:
    """A vocabulary of these pieces, in this order, that puts a space before a text."""
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(pieces),
        "tokenizer.ggml.token_type": [int(TokenType.CONTROL if piece == "<s>" else TokenType.NORMAL) for piece in pieces],
    }
    return TextTokenizer(parts_from_gguf(metadata, source="here"))


def pieces_of(detokenizer: IncrementalDetokenizer, token_ids: Sequence[int]) -> list[str]:
    """The text after each single token, and what the end brings."""
    return [*(detokenizer.push([token_id]).text for token_id in token_ids), detokenizer.finish()]


def over_words(*words: str, **options: object) -> list[str]:
    detokenizer = IncrementalDetokenizer(WordTokenizer(*words), **options)  # type: ignore[arg-type]
    return pieces_of(detokenizer, range(len(words)))


# Characters


def test_half_a_character_is_held_until_it_is_whole() -> None:
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), list("aé🌊".encode())) == [
        "a", "", "é", "", "", "", "🌊", "",
    ]  # fmt: skip


def test_bytes_that_can_become_nothing_are_replaced_at_once() -> None:
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), [0xFF, 0x61]) == ["\ufffd", "a", ""]
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), [0xE6, 0xBC, 0x61]) == ["", "", "\ufffda", ""]


def test_a_character_that_is_cut_off_is_replaced_at_the_end() -> None:
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), [0x61, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]


def test_several_tokens_at_once_give_the_text_of_all() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer())
    assert detokenizer.push(list("naï".encode())[:3]).text == "na"
    assert detokenizer.push(list("ïve".encode())[1:]).text == "ïve"
    assert detokenizer.push([]).text == ""


def test_special_tokens_are_left_out_unless_wanted() -> None:
    tokens = [BOS, 0x61, IM_END]
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), tokens) == ["", "a", "", ""]
    shown = IncrementalDetokenizer(ByteTokenizer(), skip_special_tokens=False)
    assert pieces_of(shown, tokens) == ["<|bos|>", "a", "<|im_end|>", ""]


def test_special_tokens_that_are_looked_for_stay_and_others_go() -> None:
    words = ["a", "<|call|>", "b", "<|other|>", "c"]
    assert "".join(over_words(*words, shown_special_token_ids=frozenset({1}))) == "a<|call|>bc"


def test_a_skipped_token_between_two_halves_does_not_part_them() -> None:
    assert pieces_of(IncrementalDetokenizer(ByteTokenizer()), [0xC3, EOS, 0xA9]) == ["", "", "é", ""]


# The space that SentencePiece puts before a text


def test_an_answer_continues_its_prompt_and_keeps_its_first_space() -> None:
    tokenizer = sentence_piece("▁Paris", "▁is")
    assert pieces_of(IncrementalDetokenizer(tokenizer), [0, 1]) == [" Paris", " is", ""]


def test_a_text_of_its_own_loses_the_space_that_encoding_put_there() -> None:
    tokenizer = sentence_piece("▁Paris", "▁is")
    assert pieces_of(IncrementalDetokenizer(tokenizer, at_text_start=True), [0, 1]) == ["Paris", " is", ""]


@pytest.mark.parametrize("tokens", [[0, 3, 1], [2, 2, 1], [2], [3, 2, 1], [1, 0], [3]])
@pytest.mark.parametrize("skip", [True, False])
def test_a_text_of_its_own_is_what_the_tokenizer_decodes(tokens: list[int], skip: bool) -> None:
    tokenizer = sentence_piece("▁Paris", "x", "▁", "<s>")
    detokenizer = IncrementalDetokenizer(tokenizer, at_text_start=True, skip_special_tokens=skip)
    assert "".join(pieces_of(detokenizer, tokens)) == tokenizer.decode(tokens, skip_special_tokens=skip)


def test_a_byte_level_text_keeps_its_first_space() -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": list(BYTE_ALPHABET),
        "tokenizer.ggml.merges": [],
    }
    tokenizer = TextTokenizer(parts_from_gguf(metadata, source="here"))
    detokenizer = IncrementalDetokenizer(tokenizer, at_text_start=True)
    assert "".join(pieces_of(detokenizer, tokenizer.encode("  a"))) == "  a"


# Stop strings


def test_a_stop_string_within_a_token_ends_the_text_before_it() -> None:
    detokenizer = IncrementalDetokenizer(WordTokenizer("one", " END two"), stop=["END"])
    assert detokenizer.push([0]).text == "one"
    delta = detokenizer.push([1])
    assert (delta.text, delta.stopped_by, delta.num_token_ids) == (" ", "END", 1)
    assert detokenizer.stopped_by == "END"


def test_a_stop_string_across_three_tokens_ends_the_text_and_was_never_shown() -> None:
    assert over_words("a E", "N", "D b", "c", stop=["END"]) == ["a ", "", "", "", ""]


def test_text_that_could_begin_a_stop_string_is_held_until_it_cannot() -> None:
    assert over_words("EN", "D", "ER", "X", stop=["ENDERS"]) == ["", "", "", "ENDERX", ""]


def test_no_more_than_the_possible_beginning_is_held() -> None:
    assert over_words("abcab", "c", "x", stop=["cabd"]) == ["ab", "cab", "cx", ""]


def test_what_was_held_comes_at_the_end() -> None:
    assert over_words("so E", "N", stop=["END"]) == ["so ", "", "EN"]


def test_a_stop_string_across_the_bytes_of_a_character_is_found() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=["é!"])
    assert pieces_of(detokenizer, list("aé!b".encode())) == ["a", "", "", "", "", ""]
    assert detokenizer.stopped_by == "é!"


def test_a_stop_string_that_only_the_last_half_character_completes_is_found_at_the_end() -> None:
    detokenizer = IncrementalDetokenizer(ByteTokenizer(), stop=["a\ufffd"])
    assert pieces_of(detokenizer, [0x62, 0x61, 0xC3]) == ["b", "", "", ""]
    assert detokenizer.stopped_by == "a\ufffd"


def test_the_stop_string_may_stay_in_the_output_and_then_nothing_is_held() -> None:
    assert over_words("a E", "N", "D b", "c", stop=["END"], include_stop_str_in_output=True) == ["a E", "N", "D", "", ""]


def test_the_stop_string_completed_first_wins_wherever_the_tokens_were_cut() -> None:
    for words in (("xabcd",), ("x", "a", "b", "c", "d"), ("xab", "cd")):
        detokenizer = IncrementalDetokenizer(WordTokenizer(*words), stop=["abcd", "bc"])
        assert "".join(pieces_of(detokenizer, range(len(words)))) == "xa"
        assert detokenizer.stopped_by == "bc"


@pytest.mark.parametrize("stop", [["bc", "abc"], ["abc", "bc"]])
def test_of_two_that_end_together_the_first_listed_wins(stop: list[str]) -> None:
    detokenizer = IncrementalDetokenizer(WordTokenizer("xabc"), stop=stop)
    detokenizer.push([0])
    assert detokenizer.stopped_by == stop[0]


def test_a_stop_string_that_overlaps_itself_is_found_where_it_is_first_complete() -> None:
    assert over_words("aa", "a", "b", "aab", stop=["aab"]) == ["", "a", "", "", ""]


def test_many_stop_strings_are_watched_at_once() -> None:
    stop = [f"<stop-{number}>" for number in range(500)]
    detokenizer = IncrementalDetokenizer(WordTokenizer("a<sto", "p-4", "21>z"), stop=stop)
    assert "".join(pieces_of(detokenizer, range(3))) == "a"
    assert detokenizer.stopped_by == "<stop-421>"


def test_tokens_after_the_one_that_completed_the_stop_string_are_not_taken() -> None:
    detokenizer = IncrementalDetokenizer(WordTokenizer("a", "EN", "D", "b"), stop=["END"])
    delta = detokenizer.push([0, 1, 2, 3])
    assert (delta.text, delta.stopped_by, delta.num_token_ids) == ("a", "END", 3)
    again = detokenizer.push([3])
    assert (again.text, again.stopped_by, again.num_token_ids) == ("", "END", 0)
    assert detokenizer.finish() == ""


def test_stop_strings_that_look_like_patterns_are_taken_literally() -> None:
    assert over_words("a.b", "*]^", "c", stop=["*]^"]) == ["a.b", "", "", ""]
    assert over_words("a-b", "c", stop=["]", "^", "-", "\\"]) == ["a", "", ""]


def test_special_tokens_that_are_left_out_do_not_stop_a_text() -> None:
    words = ("a", "<|x|>", "b")
    assert over_words(*words, stop=["<|x|>"]) == ["a", "", "b", ""]
    assert over_words(*words, stop=["<|x|>"], skip_special_tokens=False) == ["a", "", "", ""]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="must not contain an empty string") as refusal:
        IncrementalDetokenizer(ByteTokenizer(), stop=["x", ""])
    assert refusal.value.param == "stop"


def test_continuations_may_share_the_compiled_stop_strings() -> None:
    stops = StopStrings(["END"])
    first, second = (IncrementalDetokenizer(WordTokenizer("EN", "D"), stop=stops) for _ in range(2))
    first.push([0])
    second.push([1])
    assert first.push([1]).stopped_by == "END"
    assert second.stopped_by is None


# min_tokens


@pytest.mark.parametrize(
    ("min_tokens", "text"), [(0, " is L"), (5, " is Lee, and I'm a stud"), (8, " is Lee, and I'm a student in th")]
)
def test_stop_strings_count_only_where_a_token_after_the_first_min_tokens_completes_them(min_tokens: int, text: str) -> None:
    """The first two cases are vLLM's own."""
    words = [" is", " Lee", ",", " and", " I", "'m", " a", " student", " in", " the", " college"]
    detokenizer = IncrementalDetokenizer(WordTokenizer(*words), stop=["e"], min_tokens=min_tokens)
    assert detokenizer.push(range(len(words))).text == text


def test_a_stop_string_that_began_before_min_tokens_and_ends_after_it_counts() -> None:
    assert over_words("a", "E", "ND", "b", stop=["END"], min_tokens=2) == ["a", "", "", "", ""]


def test_a_stop_string_that_came_too_early_is_text() -> None:
    assert over_words("END", " more", " END", stop=["END"], min_tokens=1) == ["END", " more", " ", ""]


def test_tokens_without_text_count_towards_min_tokens() -> None:
    assert over_words("<|a|>", "<|b|>", "END", stop=["END"], min_tokens=2) == ["", "", "", ""]


# Log-probabilities


def test_log_probabilities_carry_the_tokens_texts_and_bytes() -> None:
    tokenizer: Tokenizer = ByteTokenizer()
    entry = TokenLogprobs(token_id=0xC3, logprob=-0.5, rank=2, top_token_ids=(0x61, 0xC3), top_logprobs=(-0.25, -0.5))
    described = token_logprob(tokenizer, entry)
    assert (described.token_id, described.text, described.raw) == (0xC3, "\ufffd", b"\xc3")
    assert (described.logprob, described.rank) == (-0.5, 2)
    assert [(top.text, top.raw, top.logprob, top.rank, top.top) for top in described.top] == [
        ("a", b"a", -0.25, 1, ()),
        ("\ufffd", b"\xc3", -0.5, 2, ()),
    ]
