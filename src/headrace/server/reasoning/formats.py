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
    may_begin_closed: bool = False
    """An answer may begin with the mark that ends the reasoning: there is none."""
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
            may_begin_closed=self.may_begin_closed,
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
    "minimax_m3": ReasoningFormat(
        opening=("<mm:think>",),
        closing=("</mm:think>",),
        reason="the tag has a prefix, and where it does not think the model may begin with the closing one",
        signs=(("<mm:think>",),),
        may_begin_closed=True,
    ),
    "hunyuan": ReasoningFormat(
        opening=("<think:opensource>",),
        closing=("</think:opensource>",),
        reason="the tag says where the weights are from",
        signs=(("<think{}>", ":opensource"), ("<think:opensource>",)),
    ),
    "cohere": ReasoningFormat(
        opening=("<|START_THINKING|>",),
        closing=("<|END_THINKING|>",),
        reason="special tokens of its own; its plans before calls are marked so too",
        signs=(("<|START_THINKING|>",),),
    ),
    "gemma4": ReasoningFormat(
        opening=("<|channel>thought",),
        closing=("<channel|>",),
        reason="a channel with a name",
        signs=(("<|channel>thought",),),
    ),
    "apertus": ReasoningFormat(
        opening=("<|inner_prefix|>",),
        closing=("<|inner_suffix|>",),
        reason="it calls in the midst of its thoughts",
        signs=(("<|inner_prefix|>",),),
        ended_by=("<|tools_prefix|>",),
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
    "cohere_command3": "cohere",
    "hy3": "hunyuan",
}
"""What other servers call them."""

OFF = "none"
"""The name that turns it off."""

BY_TOOL_FORMAT = ("harmony", "openai_gptoss", "gpt_oss", "openai", "solar", "solar_open")
"""Named for completeness: the tool formats of gpt-oss and Solar separate reasoning too."""


def format_named(name: str) -> ReasoningFormat | None:
    """None for the names that leave it to others. Raises ConfigurationError where there is none of this name."""
    if name == OFF or name in BY_TOOL_FORMAT:
        return None
    found = FORMATS.get(OTHER_NAMES.get(name, name))
    if found is None:
        near = suggestion(name, (*FORMATS, *OTHER_NAMES, *BY_TOOL_FORMAT, OFF))
        known = ", ".join((*FORMATS, BY_TOOL_FORMAT[0], OFF))
        raise ConfigurationError(f"reasoning_parser {name!r} is not known{near} (known: {known})")
    return found


def format_of_template(source: str) -> ReasoningFormat | None:
    """The marks that the template shows; None where it shows none."""
    for one in FORMATS.values():
        if any(all(sign in source for sign in signs) for signs in one.signs):
            return one
    return None
