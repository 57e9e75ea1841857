"""Which marks a model puts around its reasoning: by name, or by what its chat template shows.

Knows the marks. Does not know how they are looked for.
"""

from dataclasses import dataclass

from headrace.base.errors import ConfigurationError
from headrace.server.echo import suggestion
from headrace.server.reasoning.parser import ReasoningParser


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """Marks around reasoning."""

    opening: tuple[str, ...]
    closing: tuple[str, ...]
    reason: str
    """Why it is a format of its own."""
    signs: tuple[tuple[str, ...], ...] = ()
    """A template that holds all strings of any of these speaks it."""
    is_always_open: bool = False
    """Every answer begins within the reasoning, though the prompt does not show it."""
    ended_by: tuple[str, ...] = ()
    wrapper: tuple[str, str] | None = None

    def parser(self, prompt: str) -> ReasoningParser | None:
        """For an answer to this prompt; None where the prompt has ended the reasoning already."""
        if prompt.rstrip().endswith(self.closing):
            return None
        return ReasoningParser(
            self.opening,
            self.closing,
            is_open=self.is_begun_by(prompt),
            ended_by=self.ended_by,
            wrapper=self.wrapper,
        )

    def is_begun_by(self, prompt: str) -> bool:
        """Whether the answer begins within the reasoning."""
        begun = prompt.rstrip()
        return begun.endswith(self.opening) or (self.is_always_open and not begun.endswith(self.closing))

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.opening, *self.closing, *self.ended_by, *(self.wrapper or ()))


_GRANITE_OPENING = ("<think>", "Here is my thought process:", "Here's my thought process:")
_GRANITE_CLOSING = ("</think>", "Here is my response:", "Here's my response:")

FORMATS: dict[str, ReasoningFormat] = {
    # In the order in which templates are looked at: what is peculiar comes before what is common.
    "mistral": ReasoningFormat(
        opening=("[THINK]",), closing=("[/THINK]",), reason="special tokens in brackets", signs=(("[THINK]", "[/THINK]"),)
    ),
    "seed_oss": ReasoningFormat(
        opening=("<seed:think>",),
        closing=("</seed:think>",),
        reason="the tag has a prefix",
        signs=(("seed:think",),),
    ),
    "granite": ReasoningFormat(
        opening=_GRANITE_OPENING,
        closing=_GRANITE_CLOSING,
        reason="3.2 announces its thoughts in words, 3.3 in tags, and puts the answer into tags too",
        signs=(("<think></think>", "<response></response>"), ("Here is my thought process:",)),
        wrapper=("<response>", "</response>"),
    ),
    "kimi_k2": ReasoningFormat(
        opening=("<think>",),
        closing=("</think>",),
        reason="it may go from thinking to calling without a closing tag",
        signs=(("<think>", "<|tool_calls_section_begin|>"),),
        ended_by=("<|tool_calls_section_begin|>",),
    ),
    "kimi_vl": ReasoningFormat(
        opening=("◁think▷",), closing=("◁/think▷",), reason="the tags are triangles", signs=(("◁think▷",),)
    ),
    "think": ReasoningFormat(
        opening=("<think>",),
        closing=("</think>",),
        reason="the most common: Qwen, DeepSeek, GLM and others, whether the prompt opens the tag or the model",
        signs=(("<think>",), ("</think>",)),
    ),
    "deepseek_r1": ReasoningFormat(
        opening=("<think>",),
        closing=("</think>",),
        reason="begins within the reasoning without any sign of it; to be named, since no template shows it",
        is_always_open=True,
    ),
}

OTHER_NAMES = {
    "qwen3": "think",
    "glm45": "think",
    "deepseek_v3": "think",
    "olmo3": "think",
    "nemotron_v2": "think",
    "kimi_k2_thinking": "kimi_k2",
    "magistral": "mistral",
}
"""What other servers call them."""

OFF = "none"
"""The name that turns it off."""

HARMONY = ("harmony", "openai_gptoss", "gpt_oss", "openai")
"""Named for completeness: the tool format of gpt-oss separates reasoning too."""


def format_named(name: str) -> ReasoningFormat | None:
    """None for the names that leave it to others. Raises ConfigurationError where there is none of this name."""
    if name == OFF or name in HARMONY:
        return None
    found = FORMATS.get(OTHER_NAMES.get(name, name))
    if found is None:
        near = suggestion(name, (*FORMATS, *OTHER_NAMES, *HARMONY, OFF))
        known = ", ".join((*FORMATS, HARMONY[0], OFF))
        raise ConfigurationError(f"reasoning_parser {name!r} is not known{near} (known: {known})")
    return found


def format_of_template(source: str) -> ReasoningFormat | None:
    """The marks that the template shows; None where it shows none."""
    for one in FORMATS.values():
        if any(all(sign in source for sign in signs) for signs in one.signs):
            return one
    return None
