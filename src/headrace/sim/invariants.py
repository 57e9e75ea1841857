"""What must hold of every plan, checked in rehearsal after each. What must hold of the mind's own books, the mind checks
itself (`EngineCore.check_integrity`)."""

from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.step import StepPlan


def check_step(plan: StepPlan, config: SchedulerConfig) -> None:
    """Asserts that a step advances somebody, stays within its budget and names each sequence once."""
    assert plan.scheduled, "a step that computes nothing"
    assert plan.num_tokens <= config.max_num_batched_tokens, "the token budget is exceeded"
    assert len(plan.scheduled) <= config.max_num_seqs, "too many sequences at once"
    ids = [entry.sequence_id for entry in plan.scheduled]
    assert len(ids) == len(set(ids)), "a sequence is scheduled twice in one step"
    assert all(entry.num_tokens >= 1 for entry in plan.scheduled), "an entry that computes nothing"
    assert {new.sequence_id for new in plan.new_sequences} <= set(ids), "a new sequence that is not scheduled"
