"""GBNF as llama.cpp writes it: its own example grammars, and words of random grammars found by expanding them."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.grammar.vocabularies import LongTokenizer, vocabulary

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.gbnf import gbnf_to_lark, is_gbnf
from headrace.engine.grammar.registry import make_backend
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

BACKEND = make_backend("llguidance", vocabulary())
GRAMMARS = Path(__file__).resolve().parents[4] / "shared" / "data" / "suites" / "llama.cpp" / "grammars"


def accepts(grammar: str, answer: str) -> bool:
    matcher = BACKEND.compile(StructuredOutput(kind=OutputKind.GRAMMAR, text=grammar)).matcher()
    return all(matcher.accept(token) for token in LongTokenizer().encode(answer)) and matcher.may_end()


EXAMPLES = {
    "arithmetic": (["1+2=3\n", "(x +1)*y2 = 4\n1=2\n"], ["1+2\n", "1+=2\n"]),
    "c": (["int main(){int x = 1+2;return f(x);}"], ["int main(){int x = ;}", "main(){}"]),
    "chess": (["1. e4 e5\n2. Nf3 Nc6\n"], ["1. e4\n2. Nf3 Nc6\n", "1. e9 e5\n2. Nf3 Nc6\n"]),
    "english": (["Hello there."], ["你好"]),
    "japanese": (["こんにちは、 世界"], ["hello"]),
    "json": (['{"a": [1, 2.5e3, true], "b": "x\\n"}'], ["[1", '{"a": tru}', '{"a" 1}']),
    "json_arr": (['[\n"a"]', "[\n1,\n2]"], ["[", "{}"]),
    "list": (["- one\n- two\n"], ["- one", "one\n"]),
}


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_llama_cpps_own_grammars_mean_the_same_here(name: str) -> None:
    if not GRAMMARS.is_dir():
        pytest.skip("../shared/data/suites/llama.cpp/grammars is not here")
    grammar = (GRAMMARS / f"{name}.gbnf").read_text()
    valid, invalid = EXAMPLES[name]
    assert [answer for answer in valid if not accepts(grammar, answer)] == []
    assert [answer for answer in invalid if accepts(grammar, answer)] == []


def test_every_example_of_llama_cpp_is_tried() -> None:
    if not GRAMMARS.is_dir():
        pytest.skip("../shared/data/suites/llama.cpp/grammars is not here")
    assert {path.stem for path in GRAMMARS.glob("*.gbnf")} == set(EXAMPLES)


@pytest.mark.parametrize(
    ("grammar", "valid", "invalid"),
    [
        ('root ::= [0-9]+ "0"', ["10", "000"], ["0", "1"]),  # greedy digits would swallow the last one
        ('root ::= a b\na ::= [ \\n]*\nb ::= "\\n"', ["\n", " \n\n"], [" "]),
        ('root ::= "ab" | [a-z] "c"', ["ab", "ac"], ["aa"]),
        ("root ::= [a-c]{2,3}", ["ab", "abc"], ["a", "abca"]),
        ("root ::= [a-c]{2}", ["ab"], ["a", "abc"]),
        ("root ::= [a-c]{2,}", ["ab", "abcabc"], ["a"]),
        ('root ::= ("a" |\n  "b" # a comment\n)', ["a", "b"], ["c"]),
        (r'root ::= "\x41" "\u6c34" "\"" "\\"', ['A水"\\'], ["A"]),
        (r"root ::= [^a-z\]\n]", ["A", "-", "水"], ["a", "]", "\n"]),
        ("root ::= [-a]", ["-", "a"], ["b"]),
        ("root ::= .", ["x", "\n", "水"], ["xx"]),
        ('root ::= "" | "x" root', ["", "xx"], ["y"]),
        ('long-name-1 ::= "x"\nroot ::= long-name-1+', ["xx"], [""]),
    ],
)
def test_each_notation_means_what_llama_cpp_means_by_it(grammar: str, valid: list[str], invalid: list[str]) -> None:
    assert [answer for answer in valid if not accepts(grammar, answer)] == []
    assert [answer for answer in invalid if accepts(grammar, answer)] == []


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ('root ::= "a', "no part of a grammar"),
        ("root ::= other", "no rule named other"),
        ('other ::= "a"', "no rule named root"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a" ) "b"', "expected"),
        ('root ::= "a"\nroot ::= "b"', "defined twice"),
        ("root ::= [z-a]", "empty"),
        ('root ::= "a"{3,2}', "no repetition"),
        (r'root ::= "\q"', "no escape"),
        (r'root ::= "\ud800"', "no character"),
    ],
)
def test_a_grammar_that_is_wrong_is_refused_with_the_place(grammar: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as refused:
        gbnf_to_lark(grammar, "structured_outputs.grammar")
    assert refused.value.param == "structured_outputs.grammar"


def test_a_grammar_nested_beyond_all_use_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        gbnf_to_lark("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "f")


def test_a_grammar_beyond_all_use_is_refused_unread_with_the_limit_and_a_way_out() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"too large \(300011 characters\): GBNF may have 200000.*choice"
    ) as refused:
        gbnf_to_lark('root ::= "' + "a" * 300_000 + '"', "structured_outputs.grammar")
    assert refused.value.param == "structured_outputs.grammar"


def test_a_rule_that_never_ends_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="no answer can have this form"):
        BACKEND.compile(StructuredOutput(kind=OutputKind.GRAMMAR, text="root ::= root"))


def test_gbnf_and_lark_are_told_apart_by_how_they_define_rules() -> None:
    assert is_gbnf('root ::= "a"')
    assert is_gbnf('# words\nx-1\n  ::= "a"')
    assert not is_gbnf('start: "a ::= b"')
    assert not is_gbnf("start: WORD\nWORD: /[a-z]+/")


# Random grammars over a and b, as trees that are both written and expanded

Tree = st.recursive(
    st.sampled_from(["a", "b", "ab", "[ab]"]),
    lambda inner: st.one_of(
        st.tuples(st.just("seq"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("or"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.sampled_from(["*", "+", "?"]), st.lists(inner, min_size=1, max_size=1)),
    ),
    max_leaves=6,
)


def written(tree: object) -> str:
    match tree:
        case "[ab]":
            return "[ab]"
        case str():
            return f'"{tree}"'
        case ("seq", list(parts)):
            return "(" + " ".join(map(written, parts)) + ")"
        case ("or", list(parts)):
            return "(" + " | ".join(map(written, parts)) + ")"
        case (str(mark), [part]):
            return f"({written(part)}){mark}"
    raise AssertionError(tree)


def expanded(tree: object, rng: random.Random) -> str:
    match tree:
        case "[ab]":
            return rng.choice("ab")
        case str():
            return tree
        case ("seq", list(parts)):
            return "".join(expanded(part, rng) for part in parts)
        case ("or", list(parts)):
            return expanded(rng.choice(parts), rng)
        case (str(mark), [part]):
            counts = {"*": (0, 3), "+": (1, 3), "?": (0, 1)}[mark]
            return "".join(expanded(part, rng) for _ in range(rng.randint(*counts)))
    raise AssertionError(tree)


@settings(max_examples=60)
@given(Tree, st.integers(0, 2**32))
def test_every_word_of_a_grammar_is_accepted(tree: object, seed: int) -> None:
    grammar = f"root ::= {written(tree)}"
    rng = random.Random(seed)
    for _ in range(3):
        word = expanded(tree, rng)
        assert accepts(grammar, word), (grammar, word)
