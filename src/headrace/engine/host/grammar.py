"""FormCompiler: makes forms ready, off the engine's loop, before a request that asks for one is admitted.

Knows threads, the tokenizer and when the vocabulary is loaded. Does not know requests, nor how libraries compile.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import HeadraceError, InvalidRequestError
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import CompiledForm, Vocabulary
from headrace.engine.grammar.registry import make_backend
from headrace.engine.host.generation import Tokenizer
from headrace.engine.mind.structured_output import ContentKey, StructuredOutput

_NUM_THREADS = 4
"""So many forms may be compiled at once: one that takes long does not hold up the others."""

Compiled = Callable[[CompiledForm | InvalidRequestError], None]
"""Hears that a form is ready, or why it cannot be enforced. As long as somebody holds what is given here, an answer that
begins to take the form finds it, however many others were compiled since."""

Wanted = Callable[[], bool]
"""Whether somebody still waits for a form. Called from any thread."""


@dataclass(frozen=True, slots=True)
class _Asked:
    wanted: StructuredOutput
    done: Compiled
    is_wanted: Wanted


class FormCompiler:
    """Its methods belong to one thread. However many ask for one form while it is compiled, it takes one thread; a form that
    nobody waits for any more when its turn comes takes none."""

    def __init__(self, load: Callable[[], tuple[Vocabulary, FormCache]]) -> None:
        """`load` is called once, on a thread, when a form is first asked for: a vocabulary takes a good part of a second
        to read and more memory than all else here but the weights, and most engines never need it."""
        self._load = load
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="headrace-forms")
        self._loaded: Future[tuple[Vocabulary, FormCache]] | None = None
        self._asked: dict[ContentKey, list[_Asked]] = {}
        """Of each form whose turn has not come, or that is being compiled."""
        self._lock = threading.Lock()

    def find(self, wanted: StructuredOutput) -> CompiledForm | None:
        """The form, if it can be used at once."""
        loaded = self._loaded
        if loaded is None or not loaded.done() or loaded.exception() is not None:
            return None
        return loaded.result()[1].find(wanted)

    def compile(self, wanted: StructuredOutput, done: Compiled, is_wanted: Wanted = lambda: True) -> None:
        """Calls `done` from a thread, once; never, if it is not wanted any more before it is begun with."""
        if self._loaded is None:
            self._loaded = self._threads.submit(self._load)
        key = wanted.content_key
        with self._lock:
            is_first = key not in self._asked
            self._asked.setdefault(key, []).append(_Asked(wanted, done, is_wanted))
        if is_first:
            self._threads.submit(self._serve, self._loaded, key)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _serve(self, loaded: Future[tuple[Vocabulary, FormCache]], key: ContentKey) -> None:
        """All who ask for a form until it is compiled. Each hears of the own field, which a refusal names."""
        while True:
            with self._lock:
                asked = self._asked[key]
                if not asked:
                    del self._asked[key]
                    return
                first = asked.pop(0)
            if first.is_wanted():
                first.done(_compiled(loaded, first.wanted))


def load_vocabulary(model_path: Path, *, num_logits: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """`eos_token_ids`: those that end a generation, as the model's configuration says; where it says nothing, the
    tokenizer's own."""
    from headrace.engine.host.tokenizer import load_tokenizer  # here, since most engines never need it

    return vocabulary_of(load_tokenizer(model_path), num_logits=num_logits, eos_token_ids=eos_token_ids)


def vocabulary_of(tokenizer: Tokenizer, *, num_logits: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    num_tokens = min(num_logits, tokenizer.vocab_size)
    padding = (b"",) * (num_logits - num_tokens)
    return Vocabulary(
        token_bytes=(*(tokenizer.token_bytes(token_id) for token_id in range(num_tokens)), *padding),
        special_token_ids=tuple(token_id for token_id in range(num_tokens) if tokenizer.is_special(token_id)),
        eos_token_ids=eos_token_ids or tokenizer.eos_token_ids,
        encode=lambda text: tokenizer.encode(text, add_special_tokens=False, parse_special=False),
    )


def load_forms(backend: str, vocabulary: Vocabulary) -> FormCache:
    return FormCache(make_backend(backend, vocabulary))


def _compiled(loaded: Future[tuple[Vocabulary, FormCache]], wanted: StructuredOutput) -> CompiledForm | InvalidRequestError:
    try:
        _, forms = loaded.result()
        return forms.get(wanted)
    except InvalidRequestError as error:
        return error
    except Exception as error:
        # Whatever a library makes of a stranger's grammar, it concerns that stranger's request alone.
        return InvalidRequestError(f"{wanted.field} cannot be enforced: {_described(error)}", param=wanted.field)


def _described(error: Exception) -> str:
    return str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
