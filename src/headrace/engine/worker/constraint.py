"""Constraints: what forms allow the next tokens to be, found out while the model computes.

Knows matchers, masks and one thread. Does not know how forms are compiled, logits, or steps' plans.

After a step has sampled, the tokens go to the thread, which advances each form and writes its next mask while the next
step's forward pass runs; the sampler then finds the masks ready. All that touches a matcher happens on that thread,
in order. What the thread does takes time from a forward pass that uses every core, so it does no more than it must: a mask
stays a bit for each token until somebody needs numbers.
"""

import queue
import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.base.errors import HeadraceError
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import BITS_PER_WORD, CompiledForm, Matcher, TokenMask, Vocabulary
from headrace.engine.mind.step import FORM_ENDED, NOTHING_ALLOWED
from headrace.engine.mind.structured_output import StructuredOutput

Bias = npt.NDArray[np.float32]
"""[vocab_size]: 0 where a token may come next, else -inf. To be added to logits, which is many times faster than filling
under a mask."""

_OF_BYTE = np.where((np.arange(256)[:, None] >> np.arange(8)) & 1, np.float32(0), np.float32(-np.inf))
"""[256, 8]: eight tokens' bias by their eight bits."""


class AllowedTokens:
    """What may come next: `token_id in allowed`, as a mask, or as a bias."""

    __slots__ = ("_vocab_size", "mask")

    def __init__(self, mask: TokenMask, vocab_size: int) -> None:
        self.mask = mask
        self._vocab_size = vocab_size

    def __contains__(self, token_id: int) -> bool:
        return bool(int(self.mask[token_id // BITS_PER_WORD]) >> (token_id % BITS_PER_WORD) & 1)

    @property
    def bias(self) -> Bias:
        """Made anew each time."""
        bias: Bias = np.take(_OF_BYTE, self.mask.view(np.uint8), axis=0).reshape(-1)[: self._vocab_size]
        return bias


Verdict = AllowedTokens | str | None
"""What may come next; a text says why the form cannot be followed; None: no matter, the answer has ended."""


class Constraint:
    """One sequence's place in its form."""

    def __init__(self, wanted: StructuredOutput, answer: Sequence[int]) -> None:
        """`answer`: tokens generated before a preemption."""
        self._wanted = wanted
        self._pending: list[int] = list(answer)
        """Tokens that the form has not been advanced by yet."""
        self._matcher: Matcher | None = None
        self._allowed: AllowedTokens | None = None
        """Of the last mask: what was written there before is of no use once the next is asked for."""
        self._recent: list[int] = []
        """The last tokens before the form begins."""
        self._has_ended = False
        self._answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        self._num_asked = 0

    def take(self, token_id: int) -> None:
        """The sequence goes on by one token."""
        self._pending.append(token_id)

    def verdict(self) -> Verdict:
        """As soon as it is known. To be called once after each `Masks.prepare`."""
        assert self._num_asked == 1, "a mask is prepared once for each token"
        self._num_asked = 0
        return self._answers.get()

    def ask(self, forms: FormCache, vocabulary: Vocabulary) -> bool:
        """Whether the answer has to be found; where the form begins with the answer, what may begin it is known."""
        self._num_asked += 1
        if self._matcher is not None or self._pending or self._recent or self._wanted.begins_after:
            return True
        self._answers.put(_verdict(_allowed(_compiled(forms, self._wanted).first_mask, vocabulary)))
        return False

    def work(self, forms: FormCache, vocabulary: Vocabulary) -> None:
        """On the thread."""
        try:
            self._answers.put(self._find(forms, vocabulary))
        except HeadraceError as error:
            self._answers.put(str(error))
        except BaseException as error:  # the one who waits must not wait for ever
            self._answers.put(f"the form of the answer could not be followed: {type(error).__name__}: {error}")

    def _find(self, forms: FormCache, vocabulary: Vocabulary) -> Verdict:
        pending, self._pending = self._pending, []
        for token_id in pending:
            if problem := self._advance(token_id, forms, vocabulary):
                return problem
        if self._has_ended:
            return None
        if self._matcher is None and not self._begins_here():
            return _allowed(_all_but(vocabulary.eos_token_ids, vocabulary.num_mask_words), vocabulary)
        matcher = self._begun(forms)
        if self._allowed is None:
            self._allowed = _allowed(np.empty(vocabulary.num_mask_words, dtype=np.int32), vocabulary)
        mask = self._allowed.mask
        matcher.fill(mask)
        if problem := matcher.failure():
            return FORM_ENDED + problem
        return _verdict(self._allowed)

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
        problem = matcher.failure()
        return FORM_ENDED + problem if problem else f"token {token_id} does not fit the form of the answer"

    def _begins_here(self) -> bool:
        return tuple(self._recent) == self._wanted.begins_after

    def _begun(self, forms: FormCache) -> Matcher:
        if self._matcher is None:
            self._matcher = _compiled(forms, self._wanted).matcher()
        return self._matcher


class Masks:
    """The thread, with the forms of one vocabulary."""

    def __init__(self, forms: FormCache, vocabulary: Vocabulary) -> None:
        self._forms = forms
        self._vocabulary = vocabulary
        self._asked: queue.SimpleQueue[Sequence[Constraint] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="headrace-masks", daemon=True)
        self._thread.start()

    def prepare(self, constraints: Sequence[Constraint]) -> None:
        """Finds out, from now on, what may come next in each."""
        asked = [one for one in constraints if one.ask(self._forms, self._vocabulary)]
        if asked:
            self._asked.put(asked)

    def close(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while (constraints := self._asked.get()) is not None:
            for constraint in constraints:
                constraint.work(self._forms, self._vocabulary)


def _compiled(forms: FormCache, wanted: StructuredOutput) -> CompiledForm:
    form = forms.find(wanted)
    assert form is not None, "who asks for an answer of a form has it compiled before, and keeps it"
    return form


def _verdict(allowed: AllowedTokens) -> Verdict:
    return allowed if allowed.mask.any() else NOTHING_ALLOWED


def _allowed(mask: TokenMask, vocabulary: Vocabulary) -> AllowedTokens:
    return AllowedTokens(mask, len(vocabulary.token_bytes))


def _all_but(token_ids: Sequence[int], num_words: int) -> TokenMask:
    mask: TokenMask = np.full(num_words, -1, dtype=np.int32)
    for token_id in token_ids:
        mask.view(np.uint32)[token_id // BITS_PER_WORD] &= ~np.uint32(1 << token_id % BITS_PER_WORD)
    return mask
