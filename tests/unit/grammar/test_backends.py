"""Every grammar library behind the protocol: what is accepted, what may come next, where an answer may end."""

import importlib.util
import json
import threading
from typing import Any

import numpy as np
import pytest
from tests.unit.grammar.vocabularies import EOS, IM_END, IM_START, LongTokenizer, vocabulary

from headrace.base.errors import ConfigurationError, InvalidRequestError
from headrace.engine.grammar.protocol import GrammarBackend, Matcher
from headrace.engine.grammar.registry import BACKENDS, check_installed, make_backend
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name"],
    "additionalProperties": False,
}
VOCABULARY = vocabulary()


@pytest.fixture(scope="module", params=list(BACKENDS))
def backend(request: pytest.FixtureRequest) -> GrammarBackend:
    try:
        check_installed(request.param)
    except ConfigurationError as error:
        pytest.skip(f"an extra: {error}")
    return make_backend(request.param, VOCABULARY)


@pytest.fixture(scope="module")
def llguidance() -> GrammarBackend:
    return make_backend("llguidance", VOCABULARY)


def form(kind: OutputKind, text: Any, **options: Any) -> StructuredOutput:
    return StructuredOutput(kind=kind, text=text if isinstance(text, str) else json.dumps(text), **options)


def accepts(backend: GrammarBackend, wanted: StructuredOutput, answer: str) -> bool:
    matcher = backend.compile(wanted).matcher()
    tokens = LongTokenizer().encode(answer)
    return all(matcher.accept(token) for token in tokens) and matcher.may_end()


def allowed(matcher: Matcher) -> list[int]:
    mask = np.zeros(VOCABULARY.num_mask_words, dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(VOCABULARY.token_bytes))
    return [int(token) for token in np.nonzero(bits)[0]]


def advance(backend: GrammarBackend, wanted: StructuredOutput, answer: str) -> Matcher:
    matcher = backend.compile(wanted).matcher()
    for token in LongTokenizer().encode(answer):
        assert matcher.accept(token)
    return matcher


@pytest.mark.parametrize(
    ("answer", "is_valid"),
    [
        ('{"name": "Ada", "age": 36}', True),
        ('{"name":"水 é"}', True),
        ('{"name": "Ada", "age": 151}', False),
        ('{"name": "Ada", "age": "36"}', False),
        ('{"age": 36}', False),
        ('{"name": "Ada", "more": 1}', False),
        ('{"name": "Ada"', False),
        ("[]", False),
    ],
)
def test_a_json_schema_accepts_its_instances_and_nothing_else(backend: GrammarBackend, answer: str, is_valid: bool) -> None:
    assert accepts(backend, form(OutputKind.JSON_SCHEMA, PERSON), answer) is is_valid


UNIQUE = {"type": "array", "uniqueItems": True}


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (form(OutputKind.JSON_SCHEMA, UNIQUE), "the keyword uniqueItems is not supported"),
        (
            form(OutputKind.JSON_SCHEMA, {**UNIQUE, "contains": {}}),
            "the keywords contains and uniqueItems are not supported",
        ),
        (
            form(OutputKind.STRUCTURAL_TAG, {"format": {"type": "json_schema", "json_schema": UNIQUE}}),
            "the keyword uniqueItems is not supported",
        ),
        (form(OutputKind.JSON_SCHEMA, {"oneOf": [{"type": "integer"}, {"type": "number"}]}), "use anyOf"),
        (form(OutputKind.JSON_SCHEMA, '{"items":' * 150 + "{}" + "}" * 150), "it is nested too deeply"),
        (form(OutputKind.JSON_SCHEMA, {"type": "integer", "minimum": 1e40}), "must lie within 64 bits"),
        (
            form(OutputKind.JSON_SCHEMA, {"allOf": [{"type": "string", "pattern": f"a.*{c}"} for c in "bcdefghijklmno"]}),
            "give fewer patterns for one text",
        ),
        (form(OutputKind.REGEX, "(a"), "error: unclosed group"),
        (form(OutputKind.GRAMMAR, "start: wheel"), 'unknown name: "wheel"\n   1 | start: wheel'),
    ],
)
def test_a_refusal_speaks_of_what_was_asked_and_of_nothing_that_was_made_of_it(
    llguidance: GrammarBackend, wanted: StructuredOutput, reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        llguidance.compile(wanted)
    said = str(refusal.value)
    assert reason in said
    for inner in ("coerce_one_of", "verbose", "%llguidance", "part_1", "Unimplemented", "line 1 column", "(And"):
        assert inner not in said
    assert wanted.kind is OutputKind.GRAMMAR or " | " not in said


def test_answers_of_one_form_do_not_hear_of_one_another(backend: GrammarBackend) -> None:
    """Many begin alike, some at the same time, and each is allowed what it would be allowed alone."""
    wanted = form(OutputKind.JSON_SCHEMA, PERSON)
    shared = backend.compile(wanted)
    answers = [
        '{"name": "Ada"}',
        '{"name":"Ada", "age": 15',
        '{ "name": "A',
        "{\n",
        '\n{"name"',
        "x",
        '{"name": "Ada", "age": 9}',
    ]
    together = [shared.matcher() for _ in answers]
    alone = [backend.compile(wanted).matcher() for _ in answers]
    texts = [LongTokenizer().encode(answer) for answer in answers]
    for place in range(max(map(len, texts))):
        for one, other, tokens in zip(together, alone, texts, strict=True):
            if place < len(tokens):
                assert allowed(one) == allowed(other)
                assert one.accept(tokens[place]) is other.accept(tokens[place])
                assert one.may_end() is other.may_end()
    for one, other in zip(together, alone, strict=True):
        assert allowed(one) == allowed(other)
    for _ in range(2):
        late, fresh = shared.matcher(), backend.compile(wanted).matcher()
        for token in texts[1]:
            assert allowed(late) == allowed(fresh)
            assert late.accept(token)
            assert fresh.accept(token)


def test_a_mask_is_written_over_whatever_stood_there(backend: GrammarBackend) -> None:
    def masks(stood_there: int) -> list[bytes]:
        matcher, mask = backend.compile(wanted).matcher(), np.empty(VOCABULARY.num_mask_words, dtype=np.int32)
        written = []
        for token in LongTokenizer().encode("ab水é9"):
            mask.fill(stood_there)
            matcher.fill(mask)
            written.append(mask.tobytes())
            assert matcher.accept(token)
        mask.fill(stood_there)
        matcher.fill(mask)
        return [*written, mask.tobytes()]

    for wanted in (form(OutputKind.REGEX, "[a-z]+水.[0-9]"), form(OutputKind.REGEX, "(.|\\n)*")):
        written = masks(0)
        assert len(set(written)) > 1 or wanted.text != "[a-z]+水.[0-9]"
        assert masks(-1) == written


@pytest.mark.parametrize("choices", [["yes", "yes please", "yes!"], ["", "a"], ['a\nb\t"\\/', "水"], ["<|im_end|>", "x"]])
def test_choices_are_accepted_as_they_are_written_one_beginning_another_or_none(
    backend: GrammarBackend, choices: list[str]
) -> None:
    wanted = form(OutputKind.CHOICE, choices)
    assert all(accepts(backend, wanted, choice) for choice in choices)
    others = {choice[:end] for choice in choices for end in range(len(choice))} | {f"{choice}x" for choice in choices}
    assert not [other for other in others - set(choices) if accepts(backend, wanted, other)]


def test_there_may_be_many_choices(llguidance: GrammarBackend) -> None:
    wanted = form(OutputKind.CHOICE, [f"option {i}" for i in range(10_000)])
    assert accepts(llguidance, wanted, "option 9999")
    assert not accepts(llguidance, wanted, "option 10000")


def test_an_object_may_have_many_optional_properties(llguidance: GrammarBackend) -> None:
    names = [f"p{i}" for i in range(1500)]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}, "additionalProperties": False}
    wanted = form(OutputKind.JSON_SCHEMA, schema)
    assert accepts(llguidance, wanted, '{"p3": null, "p1499": null}')
    assert not accepts(llguidance, wanted, '{"p1500": null}')


def test_the_first_mask_is_the_same_however_often_and_after_whatever_it_is_asked(llguidance: GrammarBackend) -> None:
    compiled = llguidance.compile(form(OutputKind.REGEX, "[ab]x"))
    first, second = compiled.matcher(), compiled.matcher()
    assert allowed(first) == allowed(first) == [ord("a"), ord("b")]
    assert first.accept(ord("a"))
    assert allowed(first) == [ord("x")]
    assert allowed(second) == [ord("a"), ord("b")]
    refusing = compiled.matcher()
    assert not refusing.accept(ord("z"))
    assert allowed(refusing) != [ord("a"), ord("b")]


@pytest.mark.parametrize(("answer", "is_valid"), [("042-ab", True), ("42-ab", False), ("042-ab ", False), ("042-a", False)])
def test_a_regular_expression_matches_the_whole_answer(backend: GrammarBackend, answer: str, is_valid: bool) -> None:
    assert accepts(backend, form(OutputKind.REGEX, "[0-9]{3}-[a-z]{2}"), answer) is is_valid


@pytest.mark.parametrize(
    ("answer", "is_valid"), [("yes", True), ('"no"\n', True), ("naïve 水", True), ("ye", False), ("no", False)]
)
def test_one_of_the_choices_is_the_answer(backend: GrammarBackend, answer: str, is_valid: bool) -> None:
    assert accepts(backend, form(OutputKind.CHOICE, ["yes", '"no"\n', "naïve 水"]), answer) is is_valid


@pytest.mark.parametrize(("answer", "is_valid"), [("((x)y)", True), ("(x", False), ("x)", False), ("", False)])
def test_a_recursive_grammar_counts_its_parentheses(backend: GrammarBackend, answer: str, is_valid: bool) -> None:
    grammar = 'root ::= "(" (root | [a-z])* ")"'
    assert accepts(backend, form(OutputKind.GRAMMAR, grammar), answer) is is_valid


def test_the_end_is_allowed_exactly_where_the_form_may_end(backend: GrammarBackend) -> None:
    wanted = form(OutputKind.REGEX, "a(bc)*")
    for answer, may_end in [("", False), ("a", True), ("ab", False), ("abc", True), ("abcb", False)]:
        matcher = advance(backend, wanted, answer)
        assert [token for token in allowed(matcher) if token in (EOS, IM_END)] == ([EOS, IM_END] if may_end else [])
        assert matcher.may_end() is may_end


def test_where_nothing_can_follow_only_the_end_is_allowed(backend: GrammarBackend) -> None:
    assert allowed(advance(backend, form(OutputKind.CHOICE, ["yes", "no"]), "yes")) == [EOS, IM_END]


def test_control_tokens_are_no_text(backend: GrammarBackend) -> None:
    special = set(VOCABULARY.special_token_ids) - {EOS, IM_END}
    assert not special & set(allowed(advance(backend, form(OutputKind.REGEX, r"(.|\n)*"), "x")))


def test_every_allowed_token_is_accepted_and_no_other(backend: GrammarBackend) -> None:
    compiled = backend.compile(form(OutputKind.JSON_SCHEMA, PERSON))
    for beginning in ("", '{"', '{"name": "é', '{"name": "x", "age": 1'):
        matcher = advance(backend, form(OutputKind.JSON_SCHEMA, PERSON), beginning)
        may = set(allowed(matcher)) - {EOS, IM_END}
        for token in range(len(VOCABULARY.token_bytes)):
            if token in (EOS, IM_END):
                continue
            again = compiled.matcher()
            for known in LongTokenizer().encode(beginning):
                assert again.accept(known)
            # A mask may be stricter than the form: where the text is settled it asks for its usual tokens.
            assert again.accept(token) or token not in may


def test_matchers_of_one_form_do_not_touch_one_another(backend: GrammarBackend) -> None:
    compiled = backend.compile(form(OutputKind.CHOICE, ["ab", "cd"]))
    first, second = compiled.matcher(), compiled.matcher()
    assert first.accept(ord("a"))
    assert {ord("a"), ord("c")} <= set(allowed(second))


def test_white_space_can_be_forbidden(backend: GrammarBackend) -> None:
    wanted = form(OutputKind.JSON_SCHEMA, PERSON, disable_any_whitespace=True)
    assert accepts(backend, wanted, '{"name":"x"}') or accepts(backend, wanted, '{"name": "x"}')
    assert not accepts(backend, wanted, '{ "name" :\n"x" }')


def test_additional_properties_can_be_forbidden(backend: GrammarBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert not accepts(backend, form(OutputKind.JSON_SCHEMA, schema, disable_additional_properties=True), '{"b": 1}')


def test_the_interpreter_is_free_while_a_library_compiles(llguidance: GrammarBackend) -> None:
    """Or the engine's loop would stand still for as long as a hostile form takes."""
    refused = threading.Event()

    def compile_() -> None:
        with pytest.raises(InvalidRequestError):
            llguidance.compile(form(OutputKind.REGEX, "((a{100}){100}){100}"))
        refused.set()

    thread = threading.Thread(target=compile_)
    thread.start()
    num_passes = 0
    while not refused.is_set():
        num_passes += 1
    thread.join()
    assert num_passes > 1_000


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (OutputKind.JSON_SCHEMA, '{"type": '),
        (OutputKind.JSON_SCHEMA, '"text"'),
        (OutputKind.JSON_SCHEMA, "false"),
        (OutputKind.JSON_SCHEMA, '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true}'),
        (OutputKind.REGEX, "(a"),
        (OutputKind.REGEX, "a(?=b)"),
        (OutputKind.GRAMMAR, "root ::= missing"),
        (OutputKind.GRAMMAR, 'root ::= "a'),
        (OutputKind.STRUCTURAL_TAG, "{}"),
    ],
)
def test_what_cannot_be_enforced_is_refused_in_the_clients_words(
    backend: GrammarBackend, kind: OutputKind, text: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        backend.compile(form(kind, text, field="structured_outputs.x"))
    assert str(refused.value).startswith("structured_outputs.x")
    assert refused.value.param is not None and refused.value.param.startswith("structured_outputs.x")


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'xgrammar'"):
        make_backend("xgramar", VOCABULARY)


def test_an_extra_that_is_not_installed_is_told_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"install headrace\[xgrammar\], or choose llguidance"):
        check_installed("xgrammar")
    check_installed("llguidance")


# What llguidance alone reads


@pytest.mark.parametrize(("answer", "is_valid"), [("<abc>", True), ("<a>", False), ("abc", False)])
def test_a_lark_grammar_is_read(llguidance: GrammarBackend, answer: str, is_valid: bool) -> None:
    assert accepts(llguidance, form(OutputKind.GRAMMAR, 'start: "<" WORD ">"\nWORD: /[a-d]{2,4}/'), answer) is is_valid


def test_a_grammar_names_control_tokens_in_angle_brackets(llguidance: GrammarBackend) -> None:
    matcher = advance(llguidance, form(OutputKind.GRAMMAR, 'root ::= "a" <|im_start|> "b"'), "a")
    assert allowed(matcher) == [IM_START]
    assert matcher.accept(IM_START)
    assert allowed(matcher) == [ord("b")]


def test_a_vocabulary_smaller_than_the_logits_allows_none_of_the_rest() -> None:
    wider = vocabulary(num_logits=320)
    matcher = make_backend("llguidance", wider).compile(form(OutputKind.REGEX, r"(.|\n)*")).matcher()
    mask = np.zeros(wider.num_mask_words, dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[LongTokenizer().vocab_size :].any()


def test_white_space_can_be_given_as_a_pattern(llguidance: GrammarBackend) -> None:
    wanted = form(OutputKind.JSON_SCHEMA, PERSON, whitespace_pattern=" ")
    assert accepts(llguidance, wanted, '{"name": "x"}')
    assert not accepts(llguidance, wanted, '{"name":  "x"}')


# Structural tags


TAGS = {
    "structures": [
        {"begin": "<function=f>", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                                              "additionalProperties": False}, "end": "</function>"},
        {"begin": "<function=g>", "schema": {"type": "object"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "is_valid"),
    [
        ("no call", True),
        ('before <function=f>{"a": 1}</function>', True),
        ('<function=f>{"a": 1}</function> and <function=g>{}</function> after', True),
        ('<function=f>{"a": "1"}</function>', False),
        ('<function=f>{"a": 1}', False),
        ("<function=h>{}</function>", False),
    ],
)
def test_after_a_trigger_a_tag_must_have_its_form(llguidance: GrammarBackend, answer: str, is_valid: bool) -> None:
    assert accepts(llguidance, form(OutputKind.STRUCTURAL_TAG, TAGS), answer) is is_valid


@pytest.mark.parametrize(
    ("described", "valid", "invalid"),
    [
        ({"type": "const_string", "value": "a/b"}, ["a/b"], ["a", "a/bc"]),
        ({"type": "regex", "pattern": r"a/b\/c+"}, ["a/b/cc"], ["a/b/"]),
        ({"type": "grammar", "grammar": 'root ::= "ab" | [a-z] "c"'}, ["ab", "ac", "xc"], ["ax", "a"]),
        ({"type": "any_text"}, ["", "anything\nat all"], []),
        (
            {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
            ["<think></think>", "<think>a < b\n</think>"],
            ["<think>", "<think></think>more"],
        ),
        (
            {"type": "sequence", "elements": [
                {"type": "optional", "content": {"type": "const_string", "value": "x"}},
                {"type": "plus", "content": {"type": "or", "elements": [
                    {"type": "const_string", "value": "1"}, {"type": "const_string", "value": "2"}]}},
                {"type": "star", "content": {"type": "const_string", "value": "!"}},
            ]},
            ["x1", "12", "x221!!"],
            ["x", "xx1", "!1"],
        ),
        (
            {"type": "tags_with_separator", "separator": ",", "at_least_one": True, "tags": [
                {"begin": "[", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "]"}]},
            ["[1]", "[1],[2]"],
            ["", "[1][2]", "[1],"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<t"], "at_least_one": True, "stop_after_first": True, "tags": [
                {"begin": "<t>", "content": {"type": "const_string", "value": "x"}, "end": ["</t>", "</T>"]}]},
            ["<t>x</t>", "first <t>x</T>"],
            ["", "no tag", "<t>x</t> more"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["<t>"], "excludes": ["no"], "tags": [
                {"begin": "<t>", "content": {"type": "const_string", "value": "x"}, "end": "."}]},
            ["", "words <t", "a<t>x.b<t>x.c"],
            ["<t>y.", "a <t> b", "no", "<t>x.no", "a no <t>x."],
        ),
        (
            {"type": "tag", "begin": ".", "content": {"type": "any_text", "excludes": ["/x", "("]}, "end": "/x"},
            ["./x", ".a/b/x", ".\n./x"],
            [".a/x/x", ".(/x", ".a"],
        ),
        (
            {"type": "regex", "pattern": "[a-c]{2,4}", "excludes": ["bb"]},
            ["ab", "abab"],
            ["bb", "abba", "a", "ababa"],
        ),
    ],
)  # fmt: skip
def test_each_format_means_what_it_says(
    llguidance: GrammarBackend, described: Any, valid: list[str], invalid: list[str]
) -> None:
    wanted = form(OutputKind.STRUCTURAL_TAG, {"type": "structural_tag", "format": described})
    assert [answer for answer in valid if not accepts(llguidance, wanted, answer)] == []
    assert [answer for answer in invalid if accepts(llguidance, wanted, answer)] == []


@pytest.mark.parametrize("excluded", ["a b", "\n", "\r\n\t", "#-&~", "\\n", "/", "é水", "\x00", "\u2028", "[^a](b)*{2}|"])
def test_whatever_is_excluded_is_excluded_as_it_is_written(llguidance: GrammarBackend, excluded: str) -> None:
    wanted = form(OutputKind.STRUCTURAL_TAG, {"format": {"type": "any_text", "excludes": [excluded]}})
    assert accepts(llguidance, wanted, f"x{excluded[:-1]} y n")
    assert not accepts(llguidance, wanted, f"x{excluded}y")
    trigger = {"type": "triggered_tags", "triggers": [excluded], "tags": [
        {"begin": f"{excluded}!", "content": {"type": "const_string", "value": "x"}, "end": "."}]}  # fmt: skip
    wanted = form(OutputKind.STRUCTURAL_TAG, {"format": trigger})
    assert accepts(llguidance, wanted, f"x{excluded}!x.y")
    assert not accepts(llguidance, wanted, f"x{excluded}y")


def test_a_tag_that_is_a_control_token_is_that_token(llguidance: GrammarBackend) -> None:
    described = {"type": "tag", "begin": "<|im_start|>x", "content": {"type": "const_string", "value": "1"}, "end": "."}
    matcher = llguidance.compile(form(OutputKind.STRUCTURAL_TAG, {"format": described})).matcher()
    assert allowed(matcher) == [IM_START]


def test_tags_keep_to_the_whitespace_that_was_asked_for(llguidance: GrammarBackend) -> None:
    described = {"format": {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "null"}}}}
    assert accepts(llguidance, form(OutputKind.STRUCTURAL_TAG, described), "[null, null]")
    tight = form(OutputKind.STRUCTURAL_TAG, described, disable_any_whitespace=True)
    assert accepts(llguidance, tight, "[null,null]")
    assert not accepts(llguidance, tight, "[null, null]")


@pytest.mark.parametrize(
    ("described", "param"),
    [
        ({"format": {"type": "token", "token": 5}}, "format"),
        ({"format": {"type": "sequence", "elements": [{"type": "regex"}]}}, "format.elements[0].pattern"),
        ({"format": {"type": "any_text", "excludes": [""]}}, "format.excludes"),
        ({"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<b"]}, "structures.tags[0]"),
        (
            {"structures": [{"begin": "<a>", "schema": {"uniqueItems": True}, "end": "."}], "triggers": ["<a"]},
            "structures[0].schema",
        ),
    ],
)
def test_a_structural_tag_that_is_not_supported_is_refused_where_it_stands(
    llguidance: GrammarBackend, described: Any, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        llguidance.compile(form(OutputKind.STRUCTURAL_TAG, described, field="f"))
    assert refused.value.param == f"f.{param}"
