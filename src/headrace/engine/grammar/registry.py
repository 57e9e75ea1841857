"""Which grammar library enforces forms: a name and the reason to choose it. Imports a library only when it is chosen."""

import importlib.util
from collections.abc import Callable

from headrace.base.errors import ConfigurationError, nearest
from headrace.engine.grammar.located import LocatingBackend
from headrace.engine.grammar.protocol import GrammarBackend, Vocabulary

DEFAULT_BACKEND = "llguidance"


def _llguidance(vocabulary: Vocabulary) -> GrammarBackend:
    from headrace.engine.grammar.llguidance_backend import LlguidanceBackend

    return LlguidanceBackend(vocabulary)


def _xgrammar(vocabulary: Vocabulary) -> GrammarBackend:
    from headrace.engine.grammar.xgrammar_backend import XgrammarBackend

    return XgrammarBackend(vocabulary)


BACKENDS: dict[str, Callable[[Vocabulary], GrammarBackend]] = {
    # Lexes and parses on the fly: nothing is precomputed per vocabulary, so a new form is ready in milliseconds; refuses
    # what it cannot enforce.
    "llguidance": _llguidance,
    # Compiles a form against the vocabulary ahead of time: slower to begin, and what it cannot enforce is refused by us.
    "xgrammar": _xgrammar,
}

ENFORCES_TAGS = frozenset({"llguidance"})
"""Those that enforce structural tags."""

_NEEDS = {"xgrammar": ("xgrammar", "tvm_ffi")}
"""Modules of the libraries that are extras."""


def check_backend(name: str) -> None:
    if name not in BACKENDS:
        raise ConfigurationError(
            f"structured_output_backend {name!r} is not one of {', '.join(BACKENDS)}{nearest(name, BACKENDS)}"
        )


def check_installed(name: str) -> None:
    """Raises ConfigurationError where the library is an extra that is not there."""
    missing = [module for module in _NEEDS.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(
            f"structured_output_backend {name!r} is not installed here ({', '.join(missing)} missing): "
            f"install headrace[{name}], or choose {DEFAULT_BACKEND}"
        )


def make_backend(name: str, vocabulary: Vocabulary) -> GrammarBackend:
    check_backend(name)
    return LocatingBackend(BACKENDS[name](vocabulary))
