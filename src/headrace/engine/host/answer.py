"""One continuation of one request as its reader sees it: the engine's updates turned into chunks of text.

Knows tokens, text, stop strings and how an answer ends. Does not know processes or who waits for it.
"""

from headrace.engine.host.detokenizer import IncrementalDetokenizer, token_logprob
from headrace.engine.host.generation import GenerationRequest, OutputChunk, Tokenizer, TokenLogprob
from headrace.engine.mind.step import TokenLogprobs
from headrace.engine.mind.update import FinishReason, RequestUpdate


class Answer:
    """Raises InvalidRequestError where the request's stop strings cannot be watched for."""

    def __init__(self, request: GenerationRequest, index: int, tokenizer: Tokenizer) -> None:
        self.index = index
        self.is_over = False
        """Its last chunk has been made."""
        self._is_given_up = False
        self._request = request
        self._prompt_logprobs: list[TokenLogprobs] = []
        """Known, and not told yet: they go out with the first tokens."""
        self._tokenizer = tokenizer
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            stop=request.stop,
            include_stop_str_in_output=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            shown_special_token_ids=request.shown_special_token_ids,
            min_tokens=request.sampling.min_tokens,
        )

    @property
    def wants_no_more(self) -> bool:
        """Whatever the engine still computes for it is not wanted: a stop string ended it, its reader has enough, or it is
        over."""
        return self.is_over or self._is_given_up or self._detokenizer.stopped_by is not None

    def give_up(self) -> None:
        """Its reader has enough: what has been told is the whole answer."""
        self._is_given_up = True

    def take(self, updates: list[RequestUpdate]) -> OutputChunk | None:
        """One chunk of what these say, in order; None where they say nothing that the reader wants."""
        texts: list[str] = []
        token_ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        for update in updates:
            self._prompt_logprobs += update.prompt_logprobs
            if not self.wants_no_more:
                self._take_tokens(update, texts, token_ids, logprobs)
        last = updates[-1]
        if last.finish_reason is None and not token_ids:
            return None
        stopped_by = self._detokenizer.stopped_by
        reason = last.finish_reason
        stop_reason: int | str | None = None
        if reason is not None and self._is_given_up:
            self.is_over = True
            reason = FinishReason.STOP
        elif reason is not None:
            self.is_over = True
            texts.append(self._detokenizer.finish())
            stopped_by = self._detokenizer.stopped_by
            if stopped_by is not None:
                reason, stop_reason = FinishReason.STOP, stopped_by
            else:
                stop_reason = self._stop_reason(last.stop_token_id)
        prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, []
        return OutputChunk(
            index=self.index,
            text="".join(texts),
            token_ids=tuple(token_ids),
            logprobs=self._told(logprobs),
            prompt_logprobs=self._told(prompt_logprobs),
            finish_reason=reason,
            stop_reason=stop_reason,
            num_cached_tokens=last.num_cached_tokens,
            times=last.times,
            error=last.error,
        )

    def _take_tokens(
        self, update: RequestUpdate, texts: list[str], token_ids: list[int], logprobs: list[TokenLogprobs]
    ) -> None:
        new = update.new_token_ids
        is_shown = update.stop_token_id is None or self._request.include_stop_str_in_output
        delta = self._detokenizer.push(new if is_shown else new[:-1])
        texts.append(delta.text)
        # Tokens after the one that completed a stop string were computed, but are no part of the answer.
        num_taken = delta.num_token_ids if delta.stopped_by is not None else len(new)
        token_ids += new[:num_taken]
        logprobs += update.logprobs[:num_taken]

    def _told(self, entries: list[TokenLogprobs]) -> tuple[TokenLogprob, ...]:
        return tuple([token_logprob(self._tokenizer, entry) for entry in entries]) if entries else ()

    def _stop_reason(self, stop_token_id: int | None) -> int | None:
        """The token's id, unless it is the model's own end of text."""
        is_end_of_text = stop_token_id in self._tokenizer.eos_token_ids and not self._request.sampling.ignore_eos
        return None if is_end_of_text else stop_token_id
