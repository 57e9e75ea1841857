"""FormsInUse: compiled forms that requests which have not ended hold on to.

Knows who holds what, and how much that may be. Does not know how forms are compiled, nor what a request does.
"""

from headrace.base.ids import RequestId
from headrace.engine.grammar.cache import MAX_CHARACTERS
from headrace.engine.grammar.protocol import CompiledForm
from headrace.engine.mind.structured_output import ContentKey, StructuredOutput


class FormsInUse:
    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        """`max_characters`: of all forms together, each counted once; the first is held however long it is. What is kept
        beside these, in case somebody asks again, is the cache's own business."""
        self._max_characters = max_characters
        self._held: dict[RequestId, tuple[ContentKey, CompiledForm | None]] = {}
        """By the form's content, and without the form itself while it is being compiled."""
        self._num_holders: dict[ContentKey, int] = {}
        self._lengths: dict[ContentKey, int] = {}

    def __len__(self) -> int:
        """Forms that are held."""
        return len(self._num_holders)

    def has_room(self, wanted: StructuredOutput) -> bool:
        key = wanted.content_key
        num_characters = sum(self._lengths.values())
        return key in self._lengths or not self._lengths or num_characters + len(wanted.text) <= self._max_characters

    def reserve(self, request_id: RequestId, wanted: StructuredOutput) -> None:
        """Counts the form from now on."""
        assert request_id not in self._held, f"{request_id} has a form already"
        key = wanted.content_key
        self._held[request_id] = key, None
        self._num_holders[key] = self._num_holders.get(key, 0) + 1
        self._lengths[key] = len(wanted.text)

    def hold(self, request_id: RequestId, form: CompiledForm) -> None:
        """What was reserved is compiled: as long as it is held, whoever looks for it finds it."""
        self._held[request_id] = self._held[request_id][0], form

    def release(self, request_id: RequestId) -> None:
        """The request has ended; one that holds nothing may end as well."""
        key, _ = self._held.pop(request_id, (None, None))
        if key is not None:
            self._num_holders[key] -= 1
            if not self._num_holders[key]:
                del self._num_holders[key], self._lengths[key]
