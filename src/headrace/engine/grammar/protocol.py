"""What a grammar library must do for us: compile a form, follow an answer through it, say which tokens may come next.

Knows token ids and bits. Does not know any library, nor who samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headrace.engine.mind.structured_output import StructuredOutput

if TYPE_CHECKING:  # the names of backends are wanted in processes that never see a mask
    import numpy as np
    import numpy.typing as npt

TokenMask: TypeAlias = "npt.NDArray[np.int32]"
"""One bit per token id, lowest bit first: [ceil(vocab_size / 32)]."""

BITS_PER_WORD = 32
TOO_LARGE = "it is too large"
"""So begins a refusal for a form's size, which no part of it need have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens of a model, as far as forms are concerned."""

    token_bytes: tuple[bytes, ...]
    """What each id stands for; empty where it stands for nothing. As many as the model has logits."""
    special_token_ids: tuple[int, ...]
    """Control tokens: no part of any text, allowed only where a grammar names them."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer, at least one. Allowed exactly where the form may end."""
    encode: Callable[[str], list[int]]
    """Text to token ids, control tokens read as plain text."""

    @property
    def num_mask_words(self) -> int:
        return -(-len(self.token_bytes) // BITS_PER_WORD)


class Matcher(Protocol):
    """One answer's place in its form. Not safe to use from two threads at once."""

    def accept(self, token_id: int) -> bool:
        """Goes on by one token, which is no end-of-text token; False where the form does not allow it."""
        ...

    def fill(self, mask: TokenMask) -> None:
        """Writes which tokens may come next, over whatever stood there; end-of-text tokens where the form may end here."""
        ...

    def may_end(self) -> bool:
        """Whether what was accepted so far is a whole answer."""
        ...

    def failure(self) -> str:
        """Why the form cannot be followed any further, for example because it is too complex; empty while it can."""
        ...


class CompiledForm(Protocol):
    """A form ready for use, shared by all who ask for it."""

    @property
    def first_mask(self) -> TokenMask:
        """What an answer may begin with. Shared, and not to be written to."""
        ...

    def matcher(self) -> Matcher:
        """At the beginning of the form. Cheap."""
        ...


class GrammarBackend(Protocol):
    """A grammar library over one vocabulary."""

    def compile(self, wanted: StructuredOutput) -> CompiledForm:
        """Raises InvalidRequestError, naming `wanted.field` and what is wrong, where it cannot enforce the form exactly."""
        ...
