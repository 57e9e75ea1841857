"""Which grammar library enforces forms: a name and the reason to choose it. Imports a library only when it is chosen."""

from collections.abc import Callable

from headrace.base.errors import ConfigurationError, nearest
from headrace.engine.grammar.protocol import GrammarBackend, Vocabulary

DEFAULT_BACKEND = "llguidance"


def _llguidance(vocabulary: Vocabulary) -> GrammarBackend:
    from headrace.engine.grammar.llguidance_backend import LlguidanceBackend

    return LlguidanceBackend(vocabulary)


def _xgrammar(vocabulary: Vocabulary) -> GrammarBackend:
    try:
        from headrace.engine.grammar.xgrammar_backend import XgrammarBackend
    except ImportError as error:
        raise ConfigurationError(
            f"the structured output backend 'xgrammar' is not installed ({error}): "
            "install headrace[xgrammar], or choose llguidance"
        ) from None
    return XgrammarBackend(vocabulary)


BACKENDS: dict[str, Callable[[Vocabulary], GrammarBackend]] = {
    # Lexes and parses on the fly: nothing is precomputed per vocabulary, so a new form is ready in milliseconds; refuses
    # what it cannot enforce.
    "llguidance": _llguidance,
    # Compiles a form against the vocabulary ahead of time: slower to begin, and what it cannot enforce is refused by us.
    "xgrammar": _xgrammar,
}


def check_backend(name: str) -> None:
    if name not in BACKENDS:
        raise ConfigurationError(
            f"structured_output_backend {name!r} is not one of {', '.join(BACKENDS)}{nearest(name, BACKENDS)}"
        )


def make_backend(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    check_backend(name)
    return BACKENDS[name](vocabulary)
