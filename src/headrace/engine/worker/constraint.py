"""Constraints: what forms allow the next tokens to be, found out while the model computes.

Knows matchers, masks and one thread. Does not know how forms are compiled, logits, or steps' plans.

After a step has sampled, the tokens go to the thread, which advances each form and writes its next mask while the next
step's forward pass runs; the sampler then finds the masks ready. All that touches a matcher happens on that thread,
in order.
"""

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from headrace.base.errors import HeadraceError
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import Matcher, TokenMask, Vocabulary
from headrace.engine.mind.structured_output import StructuredOutput

Bias = npt.NDArray[np.float32]
"""[vocab_size]: 0 where a token may come next, else -inf. To be added to logits, which is many times faster than filling
under a mask."""

_OF_BYTE = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, np.float32(0), np.float32(-np.inf))
"""[256, 8]: eight tokens' bias by their eight bits."""

NOTHING_ALLOWED = "the form of the answer (structured output) allows no token of the model here"


class Constraint:
    """One sequence's place in its form."""

    def __init__(self, wanted: StructuredOutput, answer: Sequence[int]) -> None:
        """`answer`: tokens generated before a preemption."""
        self._wanted = wanted
        self._pending: list[int] = list(answer)
        """Tokens that the form has not been advanced by yet."""
        self._matcher: Matcher | None = None
        self._recent: list[int] = []
        """The last tokens before the form begins."""
        self._has_ended = False
        self._answers: queue.SimpleQueue[Bias | str | None] = queue.SimpleQueue()
        self._num_asked = 0

    def take(self, token_id: int) -> None:
        """The sequence goes on by one token."""
        self._pending.append(token_id)

    def verdict(self) -> Bias | str | None:
        """What may not come next, as soon as it is known; a text says why the form cannot be followed; None: no matter,
        the answer has ended. To be called once after each `Masks.prepare`."""
        assert self._num_asked == 1, "a mask is prepared once for each token"
        self._num_asked = 0
        return self._answers.get()

    def ask(self) -> None:
        self._num_asked += 1

    def work(self, forms: FormCache, vocabulary: Vocabulary) -> None:
        """On the thread."""
        try:
            self._answers.put(self._find(forms, vocabulary))
        except HeadraceError as error:
            self._answers.put(str(error))
        except BaseException as error:  # the one who waits must not wait for ever
            self._answers.put(f"the form of the answer could not be followed: {type(error).__name__}: {error}")

    def _find(self, forms: FormCache, vocabulary: Vocabulary) -> Bias | str | None:
        pending, self._pending = self._pending, []
        for token_id in pending:
            if problem := self._advance(token_id, forms, vocabulary):
                return problem
        if self._has_ended:
            return None
        if self._matcher is None and not self._begins_here():
            return _all_but(vocabulary.eos_token_ids, len(vocabulary.token_bytes))
        matcher = self._begun(forms)
        mask: TokenMask = np.zeros(vocabulary.num_mask_words, dtype=np.int32)
        matcher.fill(mask)
        if problem := matcher.failure():
            return f"the form of the answer cannot be followed any further: {problem}"
        if not mask.any():
            return NOTHING_ALLOWED
        return np.take(_OF_BYTE, mask.view(np.uint8), axis=0).reshape(-1)[: len(vocabulary.token_bytes)]

    def _advance(self, token_id: int, forms: FormCache, vocabulary: Vocabulary) -> str:
        """Returns what is wrong, or nothing."""
        if self._has_ended:
            return ""
        if self._matcher is None and not self._begins_here():
            self._recent = [*self._recent, token_id][-len(self._wanted.begins_after) :]
            return ""
        matcher = self._begun(forms)
        if token_id in vocabulary.eos_token_ids:
            self._has_ended = True
            return "" if matcher.may_end() else "the answer ended where its form may not end"
        if matcher.accept(token_id):
            return ""
        return matcher.failure() or f"token {token_id} does not fit the form of the answer"

    def _begins_here(self) -> bool:
        return tuple(self._recent) == self._wanted.begins_after

    def _begun(self, forms: FormCache) -> Matcher:
        if self._matcher is None:
            self._matcher = forms.get(self._wanted).matcher()
        return self._matcher


class Masks:
    """The thread, with the forms of one vocabulary."""

    def __init__(self, forms: FormCache, vocabulary: Vocabulary) -> None:
        self._forms = forms
        self._vocabulary = vocabulary
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-masks")

    def prepare(self, constraints: Sequence[Constraint]) -> None:
        """Finds out, from now on, what may come next in each."""
        for constraint in constraints:
            constraint.ask()
        self._thread.submit(self._work, tuple(constraints))

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _work(self, constraints: Sequence[Constraint]) -> None:
        for constraint in constraints:
            constraint.work(self._forms, self._vocabulary)


def _all_but(token_ids: Sequence[int], vocab_size: int) -> Bias:
    bias = np.zeros(vocab_size, dtype=np.float32)
    bias[list(token_ids)] = -np.inf
    return bias
