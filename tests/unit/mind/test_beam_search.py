"""Beam search in the mind, one sentence at a time: forks, endings, what is refused, and who holds what."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headrace.base.clock import Nanos
from headrace.base.errors import InvalidRequestError
from headrace.base.ids import RequestId
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import BeamSearch, EarlyStopping, SamplingParams
from headrace.engine.mind.sequence import Status
from headrace.engine.mind.step import BeamCandidates, SampledToken, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason, RequestUpdate

NOW = Nanos(0)
EOS = 0

Model = Callable[[Sequence[int]], dict[int, float]]
"""Tokens so far -> scores of the next."""


class Engine:
    """A core over a model that is a function; its steps are carried out at once."""

    def __init__(self, model: Model, **limits: Any) -> None:
        settings = {"max_model_len": 64, "num_blocks": 40, "block_size": 4, "max_num_seqs": 8, **limits}
        self.core = EngineCore(SchedulerConfig(**settings), eos_token_ids=(EOS,))
        self._model = model
        self.plans: list[StepPlan] = []

    def add(self, *, width: int = 2, n: int | None = None, num_prompt_tokens: int = 6, **search: Any) -> None:
        max_tokens = search.pop("max_tokens", 4)
        request = Request(
            request_id=RequestId("r"),
            prompt_token_ids=tuple(range(100, 100 + num_prompt_tokens)),
            sampling=SamplingParams(max_tokens=max_tokens, beam_search=BeamSearch(width=width, **search)),
            num_sequences=width if n is None else n,
        )
        self.core.add_request(request, NOW)

    def step(self) -> list[RequestUpdate]:
        plan = self.core.begin_step(NOW)
        assert plan is not None
        self.plans.append(plan)
        candidates = []
        sampled: list[SampledToken | None] = []
        for entry in plan.scheduled:
            sequence = self.core._sequences[entry.sequence_id]
            sampled.append(SampledToken(9) if entry.samples and not sequence.is_beam else None)
            if entry.samples and sequence.is_beam:
                scores = self._model(sequence.token_ids[sequence.num_prompt_tokens :])
                ranked = sorted(scores, key=lambda token: -scores[token])
                told = BeamCandidates(tuple(ranked), tuple(scores[token] for token in ranked))
                candidates.append((entry.sequence_id, told))
        result = StepResult(plan.step_id, tuple(sampled), candidates=tuple(candidates))
        updates = self.core.finish_step(plan, result, NOW)
        self.core.check_integrity()
        return updates

    def run(self) -> list[RequestUpdate]:
        updates: list[RequestUpdate] = []
        while self.core.has_unfinished_requests:
            updates += self.step()
        assert self.core.stats().num_blocks_in_use == 0
        return updates


def one_good_beginning(answer: Sequence[int]) -> dict[int, float]:
    """Whatever begins with 1 is better than whatever does not."""
    if not answer:
        return {1: -0.5, 2: -3.0, 3: -4.0}
    return {4: -1.0, 5: -1.1, 6: -9.0}


def test_a_beam_that_falls_behind_gives_its_sequence_to_a_better_ones_child() -> None:
    engine = Engine(one_good_beginning)
    engine.add(max_tokens=3)
    updates = engine.run()
    assert [update.new_token_ids for update in updates] == [(1, 4, 4), (1, 4, 5)]
    first, second, third = engine.plans
    assert [entry.num_tokens for entry in first.scheduled] == [6], "the prompt is computed once"
    assert [new.token_ids[6:] for new in second.new_sequences] == [(2,)]
    assert second.chosen_tokens == ((0, 1),)
    assert third.released_sequence_ids == (1,)
    assert [new.token_ids[6:] for new in third.new_sequences] == [(1, 5)], "2 was dropped, and 1 has two children"
    assert third.chosen_tokens == ((0, 4),)


def test_each_fork_within_a_block_copies_it_once() -> None:
    engine = Engine(one_good_beginning)
    engine.add(max_tokens=3)
    engine.run()
    assert [len(plan.block_copies) for plan in engine.plans] == [0, 1, 1]


def ending_early(answer: Sequence[int]) -> dict[int, float]:
    """At first ends are more probable; who goes on all the same is rewarded."""
    if not answer:
        return {1: -1.0, 2: -1.5, EOS: -3.0}
    return {EOS: -1.0, 3: -2.0, 4: -5.0} if len(answer) == 1 else {3: -0.01, EOS: -5.0, 4: -6.0}


@pytest.mark.parametrize(
    ("early_stopping", "num_steps"),
    [(EarlyStopping.WHEN_FULL, 2), (EarlyStopping.WHEN_BEHIND, 2), (EarlyStopping.WHEN_HOPELESS, 6)],
)
def test_early_stopping_says_how_soon_a_search_is_content(early_stopping: EarlyStopping, num_steps: int) -> None:
    engine = Engine(ending_early)
    engine.add(max_tokens=6, length_penalty=1.0, early_stopping=early_stopping)
    updates = engine.run()
    assert len(engine.plans) == num_steps
    reason = FinishReason.STOP if num_steps == 2 else FinishReason.LENGTH
    assert updates[0].finish_reason is reason
    assert updates[0].stop_token_id == (EOS if reason is FinishReason.STOP else None)


def test_a_search_waits_for_running_beams_that_are_still_ahead_unless_told_to_stop_when_full() -> None:
    """The first answers end soon and are poor; a beam that runs is better than the worst of them."""

    def model(answer: Sequence[int]) -> dict[int, float]:
        if not answer:
            return {EOS: -2.0, 1: -0.5, 2: -3.0}
        return {EOS: -4.0, 3: -0.5, 4: -4.5} if len(answer) == 1 else {3: -0.5, EOS: -0.6, 4: -6.0}

    num_steps = {}
    for early_stopping in EarlyStopping:
        engine = Engine(model)
        engine.add(max_tokens=8, early_stopping=early_stopping)
        engine.run()
        num_steps[early_stopping] = len(engine.plans)
    assert num_steps[EarlyStopping.WHEN_FULL] < num_steps[EarlyStopping.WHEN_BEHIND]


def test_the_best_of_a_wider_search_are_told() -> None:
    engine = Engine(one_good_beginning)
    engine.add(width=4, n=1, max_tokens=2)
    (update,) = engine.run()
    assert (update.sample_index, update.new_token_ids) == (0, (1, 4))


def test_one_of_the_answers_can_be_given_up_and_the_search_goes_on_for_the_others() -> None:
    engine = Engine(one_good_beginning)
    engine.add(max_tokens=3)
    engine.step()
    (gone,) = engine.core.abort(RequestId("r"), NOW, sample_index=0)
    assert (gone.sample_index, gone.finish_reason) == (0, FinishReason.ABORT)
    assert engine.core.abort(RequestId("r"), NOW, sample_index=0) == [], "a second abort changes nothing"
    (left,) = engine.run()
    assert (left.sample_index, left.new_token_ids) == (1, (1, 4, 5))


def test_a_search_that_nobody_wants_any_more_ends() -> None:
    engine = Engine(one_good_beginning)
    engine.add(max_tokens=3)
    engine.step()
    engine.core.abort(RequestId("r"), NOW, sample_index=1)
    engine.core.abort(RequestId("r"), NOW, sample_index=0)
    assert not engine.core.has_unfinished_requests
    assert engine.core.stats().num_blocks_in_use == 0


def test_a_beam_that_waits_for_one_that_cannot_run_holds_nothing() -> None:
    engine = Engine(one_good_beginning, max_num_seqs=2)
    engine.add(max_tokens=5)
    engine.step()
    other = Request(
        request_id=RequestId("other"), prompt_token_ids=(7,) * 5, sampling=SamplingParams(max_tokens=3, ignore_eos=True)
    )
    engine.core.add_request(other, NOW)
    engine.step()
    leader, second = engine.core._searches[RequestId("r")].sequences
    # Takes the second beam's place, as preemption would.
    engine.core._scheduler.running.remove(second)
    engine.core._scheduler._release(second)
    second.status = Status.PARKED
    engine.core._scheduler._return(second)
    engine.step()
    assert leader.status in (Status.RUNNING, Status.PARKED)
    assert (leader.status is Status.RUNNING) == (second.status is Status.RUNNING), "both hold blocks, or neither"
    updates = [update for update in engine.run() if update.request_id == "r"]
    assert [update.new_token_ids for update in updates] == [(1, 4, 4, 4, 4), (1, 4, 4, 4, 5)]


@pytest.mark.parametrize(
    ("asked", "message", "param"),
    [
        ({"width": 2, "n": 3}, "n must be between 1 and the width", "n"),
        ({"width": 9}, r"n must be between 1 and max_num_seqs \(8\)", "n"),
        ({"width": 8, "max_tokens": 30}, "may need 72 KV blocks, and there are 40", "max_tokens"),
    ],
)
def test_a_search_that_cannot_be_is_refused(asked: dict[str, Any], message: str, param: str) -> None:
    engine = Engine(one_good_beginning)
    with pytest.raises(InvalidRequestError, match=message) as caught:
        engine.add(**asked)
    assert caught.value.param == param
    assert not engine.core.has_unfinished_requests
