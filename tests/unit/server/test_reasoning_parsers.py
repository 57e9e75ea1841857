"""Reasoning is told from the answer by marks where the answer begins, and by nothing else."""

import pytest

from headrace.server.parsing.events import Parsed, Reasoning
from headrace.server.reading import AnswerParser
from headrace.server.reasoning.formats import FORMATS

CASES = [
    # format, prompt, text, reasoning, content
    ("think", "", "<think>\na\n</think>\n\nb", "a", "b"),
    ("think", "", "\n<think>a</think>b </think> <think>c</think>", "a", "b </think> <think>c</think>"),
    ("think", "", "b <think>a</think>", "", "b <think>a</think>"),
    ("think", "", "<thin air", "", "<thin air"),
    ("think", "", "<think>never ends </thin", "never ends </thin", ""),
    ("think", "<think>\n", "a</think>b", "a", "b"),
    ("think", "<think>\n", "<think>a</think>b", "a", "b"),
    ("think", "<think>\n", "a", "a", ""),
    ("think", "<think>\n\n</think>\n\n", "a</think>b", "", "a</think>b"),
    ("think", "", "<think>\n\n</think>\n\nb\n", "", "b\n"),
    ("think", "", "  b", "", "  b"),
    ("deepseek_r1", "", "a</think>b", "a", "b"),
    ("deepseek_r1", "<think></think>", "b", "", "b"),
    ("mistral", "", "[THINK]a[/THINK]b", "a", "b"),
    ("seed_oss", "", "<seed:think>a</seed:think>b", "a", "b"),
    ("kimi_vl", "", "◁think▷a◁/think▷b", "a", "b"),
    ("kimi_k2", "<think>", "a<|tool_calls_section_begin|>b", "a", "<|tool_calls_section_begin|>b"),
    ("minimax_m3", "", "<mm:think>a</mm:think>b", "a", "b"),
    ("minimax_m3", "", "</mm:think>b", "", "b"),
    ("minimax_m3", "", "</mm:thing>b", "", "</mm:thing>b"),
    ("minimax_m3", "<mm:think>", "a</mm:think>b", "a", "b"),
    ("hunyuan", "<think:opensource>", "a</think>c</think:opensource>b", "a</think>c", "b"),
    ("cohere", "<|START_THINKING|>", "a<|END_THINKING|>b", "a", "b"),
    ("cohere", "<|START_THINKING|><|END_THINKING|>", "b", "", "b"),
    ("gemma4", "", "<|channel>thought\na<channel|>b", "a", "b"),
    ("gemma4", "<|channel>thought\n<channel|>", "b", "", "b"),
    ("gemma4", "", "<|channel>other", "", "<|channel>other"),
    ("apertus", "", "<|inner_prefix|>a<|inner_suffix|>b", "a", "b"),
    ("apertus", "", "<|inner_prefix|>a<|tools_prefix|>[b", "a", "<|tools_prefix|>[b"),
    ("granite", "", "Here is my thought process: a\nHere is my response: b", "a", "b"),
    ("granite", "", "<think>a</think>\n<response>b </response> c</response>\n", "a", "b </response> c"),
    ("granite", "", "<think>a</think>b</response>", "a", "b</response>"),
    ("granite", "", "Here is my thesis.", "", "Here is my thesis."),
]


@pytest.mark.parametrize(("name", "prompt", "text", "reasoning", "content"), CASES)
def test_an_answer_is_read_as_it_was_meant_wherever_it_is_cut(
    name: str, prompt: str, text: str, reasoning: str, content: str
) -> None:
    cuts = [[text], list(text), *([text[:place], text[place:]] for place in range(1, len(text)))]
    for pieces in cuts:
        parser, answer = AnswerParser(FORMATS[name].parser(prompt), None), Parsed()
        for piece in pieces:
            answer.add(parser.push(piece))
        answer.add(parser.finish())
        assert (answer.reasoning, answer.content) == (reasoning, content)


def test_every_format_has_a_case() -> None:
    assert {name for name, *_ in CASES} == set(FORMATS)


def test_reasoning_is_shown_as_it_comes() -> None:
    parser = AnswerParser(FORMATS["think"].parser("<think>\n"), None)
    shown = [parser.push(piece) for piece in ("Well", ", it", " </", "thin", "ks")]
    assert shown == [[Reasoning("Well")], [Reasoning(", it")], [], [], [Reasoning(" </thinks")]]
