"""FormCache: compiled forms by content. Knows how many to keep; does not know what is in them, nor threads' business."""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from weakref import WeakValueDictionary

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.protocol import CompiledForm, GrammarBackend
from headrace.engine.mind.structured_output import ContentKey, StructuredOutput

DEFAULT_CAPACITY = 256
MAX_CHARACTERS = 4_000_000
"""Of all forms kept together: a JSON Schema takes some fifty bytes for each of its characters once it is compiled."""


class FormCache:
    """Safe to use from several threads. A form that is being compiled is compiled once, whoever asks meanwhile; one that
    could not be compiled is not kept. A form that made room for others is still found here as long as somebody holds it."""

    def __init__(
        self, backend: GrammarBackend, capacity: int = DEFAULT_CAPACITY, max_characters: int = MAX_CHARACTERS
    ) -> None:
        """`max_characters`: of all forms together, but for the last that was asked for, which is kept however long it is."""
        assert capacity > 0
        self._backend = backend
        self._capacity = capacity
        self._max_characters = max_characters
        self._forms: OrderedDict[ContentKey, Future[CompiledForm]] = OrderedDict()  # least recently asked for first
        self._held: WeakValueDictionary[ContentKey, CompiledForm] = WeakValueDictionary()
        """All that are compiled: those that are kept here, and those that only others hold."""
        self._lengths: dict[ContentKey, int] = {}
        self._num_characters = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._forms)

    def find(self, wanted: StructuredOutput) -> CompiledForm | None:
        """What `get` would return at once; None where it would have to compile, or to wait for somebody who does."""
        with self._lock:
            form = self._known(wanted)
            if form is None or not form.done():
                return None
            self._keep(wanted, form)
        return form.result()

    def get(self, wanted: StructuredOutput) -> CompiledForm:
        """Compiled now or before. Raises InvalidRequestError where the form cannot be enforced."""
        with self._lock:
            known = self._known(wanted)
            form = Future() if known is None else known
            self._keep(wanted, form)
        if known is None:
            self._compile(wanted, form)
            return form.result()
        try:
            return form.result()
        except InvalidRequestError:
            return self.get(wanted)  # it will be refused again, with the field of who asks now named

    def _compile(self, wanted: StructuredOutput, form: Future[CompiledForm]) -> None:
        key = wanted.content_key
        try:
            compiled = self._backend.compile(wanted)
        except BaseException as error:
            with self._lock:
                if self._forms.get(key) is form:
                    self._drop(key)
            form.set_exception(error)
        else:
            with self._lock:
                self._held[key] = compiled
            form.set_result(compiled)

    def _known(self, wanted: StructuredOutput) -> Future[CompiledForm] | None:
        """Compiled, or being compiled."""
        key = wanted.content_key
        if (form := self._forms.get(key)) is None and (held := self._held.get(key)) is not None:
            form = Future()
            form.set_result(held)
        return form

    def _keep(self, wanted: StructuredOutput, form: Future[CompiledForm]) -> None:
        """As the last that was asked for; those asked for longest ago make room."""
        key = wanted.content_key
        if key not in self._forms:
            self._forms[key] = form
            self._lengths[key] = len(wanted.text)
            self._num_characters += len(wanted.text)
        self._forms.move_to_end(key)
        while len(self._forms) > self._capacity or (len(self._forms) > 1 and self._num_characters > self._max_characters):
            self._drop(next(iter(self._forms)))

    def _drop(self, key: ContentKey) -> None:
        del self._forms[key]
        self._num_characters -= self._lengths.pop(key)
