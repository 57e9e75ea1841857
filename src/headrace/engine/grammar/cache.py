"""FormCache: compiled forms by content. Knows how many to keep; does not know what is in them, nor threads' business."""

import threading
from concurrent.futures import Future
from weakref import WeakValueDictionary

from headrace.base.errors import InvalidRequestError
from headrace.base.recent import Recent
from headrace.engine.grammar.protocol import CompiledForm, GrammarBackend
from headrace.engine.mind.structured_output import ContentKey, StructuredOutput

DEFAULT_CAPACITY = 256
MAX_CHARACTERS = 4_000_000
"""Of all forms kept together: a JSON Schema takes some fifty bytes for each of its characters once it is compiled."""


class FormCache:
    """Safe to use from several threads. A form that is being compiled is compiled once, whoever asks meanwhile; of one that
    could not be compiled the reason is kept, since to find it out can take seconds. A form that made room for others is
    still found here as long as somebody holds it."""

    def __init__(
        self, backend: GrammarBackend, capacity: int = DEFAULT_CAPACITY, max_characters: int = MAX_CHARACTERS
    ) -> None:
        """`max_characters`: of all forms together, but for the last that was asked for, which is kept however long it is."""
        self._backend = backend
        self._forms: Recent[ContentKey, Future[CompiledForm]] = Recent(max_count=capacity, max_size=max_characters)
        self._refused: Recent[StructuredOutput, InvalidRequestError] = Recent(max_count=capacity, max_size=max_characters)
        """By all that a refusal may name, the client's field included."""
        self._held: WeakValueDictionary[ContentKey, CompiledForm] = WeakValueDictionary()
        """All that are compiled: those that are kept here, and those that only others hold."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._forms)

    def find(self, wanted: StructuredOutput) -> CompiledForm | None:
        """What `get` would return at once; None where it would have to compile, or to wait for somebody who does."""
        with self._lock:
            form = self._known(wanted)
        return form.result() if form is not None and form.done() else None

    def get(self, wanted: StructuredOutput) -> CompiledForm:
        """Compiled now or before. Raises InvalidRequestError where the form cannot be enforced."""
        with self._lock:
            if (refusal := self._refused.get(wanted)) is not None:
                raise _once_more(refusal)
            if (known := self._known(wanted)) is None:
                form: Future[CompiledForm] = Future()
                self._forms.put(wanted.content_key, form, len(wanted.text))
        if known is None:
            self._compile(wanted, form)
            return form.result()
        try:
            return known.result()
        except InvalidRequestError:
            return self.get(wanted)  # it will be refused again, with the field of who asks now named

    def _compile(self, wanted: StructuredOutput, form: Future[CompiledForm]) -> None:
        key = wanted.content_key
        try:
            compiled = self._backend.compile(wanted)
        except BaseException as error:
            with self._lock:
                if self._forms.look(key) is form:
                    self._forms.drop(key)
                if isinstance(error, InvalidRequestError):
                    self._refused.put(wanted, _once_more(error), wanted.num_characters)
            form.set_exception(error)
        else:
            with self._lock:
                self._held[key] = compiled
            form.set_result(compiled)

    def _known(self, wanted: StructuredOutput) -> Future[CompiledForm] | None:
        """Compiled, or being compiled; kept as the last that was asked for."""
        key = wanted.content_key
        if (form := self._forms.get(key)) is None and (held := self._held.get(key)) is not None:
            form = Future()
            form.set_result(held)
            self._forms.put(key, form, len(wanted.text))
        return form


def _once_more(refusal: InvalidRequestError) -> InvalidRequestError:
    """One that has not been raised: what has been carries the frames that it came through."""
    return InvalidRequestError(str(refusal), param=refusal.param, code=refusal.code)
