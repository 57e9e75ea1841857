"""FormCache: compiled forms by content. Knows how many to keep; does not know what is in them, nor threads' business."""

import threading
from collections import OrderedDict
from concurrent.futures import Future

from headrace.engine.grammar.protocol import CompiledForm, GrammarBackend
from headrace.engine.mind.structured_output import StructuredOutput

DEFAULT_CAPACITY = 256
MAX_CHARACTERS = 4_000_000
"""Of all forms kept together: a JSON Schema takes some fifty bytes for each of its characters once it is compiled."""


class FormCache:
    """Safe to use from several threads. A form that is being compiled is compiled once, whoever asks meanwhile; one that
    could not be compiled is not kept."""

    def __init__(
        self, backend: GrammarBackend, capacity: int = DEFAULT_CAPACITY, max_characters: int = MAX_CHARACTERS
    ) -> None:
        """`max_characters`: of all forms together, but for the last that was asked for, which is kept however long it is."""
        assert capacity > 0
        self._backend = backend
        self._capacity = capacity
        self._max_characters = max_characters
        self._forms: OrderedDict[bytes, Future[CompiledForm]] = OrderedDict()  # least recently asked for first
        self._lengths: dict[bytes, int] = {}
        self._num_characters = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._forms)

    def is_ready(self, wanted: StructuredOutput) -> bool:
        """Whether `get` would return at once."""
        form = self._forms.get(wanted.content_key)
        return form is not None and form.done()

    def get(self, wanted: StructuredOutput) -> CompiledForm:
        """Compiled now or before. Raises InvalidRequestError where the form cannot be enforced."""
        key = wanted.content_key
        with self._lock:
            form = self._forms.get(key)
            is_mine = form is None
            if form is None:
                form = self._forms[key] = Future()
                self._lengths[key] = len(wanted.text)
                self._num_characters += len(wanted.text)
            self._forms.move_to_end(key)
            while len(self._forms) > self._capacity or (
                len(self._forms) > 1 and self._num_characters > self._max_characters
            ):
                self._drop(next(iter(self._forms)))
        if is_mine:
            try:
                form.set_result(self._backend.compile(wanted))
            except BaseException as error:
                with self._lock:
                    if self._forms.get(key) is form:
                        self._drop(key)
                form.set_exception(error)
        return form.result()

    def _drop(self, key: bytes) -> None:
        del self._forms[key]
        self._num_characters -= self._lengths.pop(key)
