"""The worker's side of a step's contract, over a small random model: plans carry differences, and every token is its own."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cpu.engine_driver import EngineDriver, answers_of, make_worker, random_llama
from transformers import LlamaConfig, LlamaForCausalLM

from headrace.base.errors import ConfigurationError
from headrace.base.ids import BlockId, SequenceId, StepId
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan, StepResult
from headrace.engine.mind.update import FinishReason
from headrace.engine.worker.worker import Worker, WorkerConfig

POISON = 63
"""A token whose embedding is not finite."""

NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def model() -> Any:
    return random_llama(1, num_layers=3)


@pytest.fixture(scope="module")
def model_path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("healthy")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def poisoned_path(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("poisoned")
    table = model.model.embed_tokens.weight
    healthy = table.detach().clone()
    with torch.no_grad():
        table[POISON, 5] = torch.nan
    model.save_pretrained(folder)
    with torch.no_grad():
        table.copy_(healthy)
    return folder


@pytest.fixture
def worker(model_path: Path) -> Worker:
    return make_worker(model_path, dtype="float32", num_blocks=NUM_BLOCKS, num_threads=1)


def greedy(max_tokens: int = 8) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0)


def new(sequence_id: int, token_ids: Sequence[int], sampling: SamplingParams | None = None) -> NewSequence:
    return NewSequence(SequenceId(sequence_id), 0, len(token_ids), tuple(token_ids), sampling or greedy(), ())


def entry(
    sequence_id: int, start: int, count: int, *, samples: bool = True, offset: int = 0, blocks: Sequence[int] = ()
) -> ScheduledSequence:
    ids = tuple(BlockId(block) for block in blocks)
    return ScheduledSequence(SequenceId(sequence_id), start, count, samples, offset, ids)


def execute(worker: Worker, step: int, *entries: ScheduledSequence, **rest: Any) -> StepResult:
    return worker.execute(StepPlan(StepId(step), entries, **rest))


def tokens(result: StepResult) -> list[int | None]:
    return [None if sampled is None else sampled.token_id for sampled in result.sampled]


def greedy_by_transformers(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


# Plans


def test_a_prompt_and_decode_steps_give_the_tokens_of_transformers(worker: Worker, model: Any) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    expected = greedy_by_transformers(model, prompt, 12)
    first = execute(worker, 0, entry(0, 0, 8, blocks=[7]), new_sequences=(new(0, prompt),))
    assert tokens(first) == expected[:1]
    for step in range(1, 12):
        blocks = [20] if step == 9 else []  # the 17th token: a block of its own
        result = execute(worker, step, entry(0, 7 + step, 1, offset=1 if blocks else 0, blocks=blocks))
        assert tokens(result) == [expected[step]]


def test_a_chunk_that_ends_before_the_last_token_samples_nothing(worker: Worker, model: Any) -> None:
    prompt = list(range(30))
    first = execute(worker, 0, entry(0, 0, 13, samples=False, blocks=[0]), new_sequences=(new(0, prompt),))
    second = execute(worker, 1, entry(0, 13, 17, offset=1, blocks=[5]))
    assert tokens(first) == [None]
    assert tokens(second) == greedy_by_transformers(model, prompt, 1)


def test_results_stand_in_the_order_of_the_plan_whatever_order_computes_best(worker: Worker, model: Any) -> None:
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10]]
    result = execute(
        worker,
        0,
        *(entry(i, 0, len(prompt), samples=i != 2, blocks=[i]) for i, prompt in enumerate(prompts)),
        new_sequences=tuple(new(i, prompt) for i, prompt in enumerate(prompts)),
    )
    expected = [greedy_by_transformers(model, prompt, 1)[0] for prompt in prompts]
    assert tokens(result) == [expected[0], expected[1], None, expected[3]]


def test_block_copies_come_first_and_give_a_fork_its_own_block(worker: Worker, model: Any) -> None:
    prompt, fork = [1, 2, 3, 4, 5], [1, 2, 3, 60, 61]
    execute(worker, 0, entry(0, 0, 5, blocks=[0]), new_sequences=(new(0, prompt),))
    result = execute(
        worker,
        1,
        entry(1, 3, 2, blocks=[9]),
        entry(0, 5, 1),
        new_sequences=(new(1, fork),),
        block_copies=((BlockId(0), BlockId(9)),),
    )
    assert tokens(result) == [
        greedy_by_transformers(model, fork, 1)[0],
        greedy_by_transformers(model, prompt, 2)[1],
    ]


def test_new_block_ids_replace_what_was_there_from_their_offset(worker: Worker, model: Any) -> None:
    prompt = list(range(40))
    execute(worker, 0, entry(0, 0, 35, samples=False, blocks=[0, 1, 2]), new_sequences=(new(0, prompt),))
    moved = ((BlockId(2), BlockId(30)),)
    result = execute(worker, 1, entry(0, 35, 5, offset=2, blocks=[30]), block_copies=moved)
    assert tokens(result) == greedy_by_transformers(model, prompt, 1)


def test_a_preempted_sequence_comes_back_with_its_answer_so_far(worker: Worker, model: Any) -> None:
    prompt = [9, 8, 7]
    expected = greedy_by_transformers(model, prompt, 3)
    execute(worker, 0, entry(0, 0, 3, blocks=[0]), new_sequences=(new(0, prompt),))
    execute(worker, 1, entry(0, 3, 1))
    known = (*prompt, *expected[:2])
    back = NewSequence(SequenceId(0), 0, 3, known, greedy(), ())
    result = execute(worker, 2, entry(0, 0, 5, blocks=[44]), new_sequences=(back,), released_sequence_ids=(SequenceId(0),))
    assert tokens(result) == expected[2:]


def test_a_sequence_that_sampled_more_than_was_needed_is_simply_released(worker: Worker, model: Any) -> None:
    execute(worker, 0, entry(0, 0, 2, blocks=[0]), new_sequences=(new(0, [1, 2]),))
    execute(worker, 1, entry(0, 2, 1))
    result = execute(
        worker,
        2,
        entry(1, 0, 3, blocks=[0]),
        new_sequences=(new(1, [5, 6, 7]),),
        released_sequence_ids=(SequenceId(0),),
    )
    assert tokens(result) == greedy_by_transformers(model, [5, 6, 7], 1)


def test_plans_that_contradict_themselves_are_bugs(worker: Worker) -> None:
    execute(worker, 0, entry(0, 0, 2, blocks=[0]), new_sequences=(new(0, [1, 2]),))
    with pytest.raises(AssertionError, match="is here already"):
        execute(worker, 1, new_sequences=(new(0, [1]),))
    with pytest.raises(AssertionError, match="no token 3"):
        execute(worker, 1, entry(0, 3, 1))
    with pytest.raises(AssertionError, match="after its last token"):
        execute(worker, 1, entry(0, 1, 1))
    with pytest.raises(AssertionError, match="leave a gap"):
        execute(worker, 1, entry(0, 2, 1, offset=3, blocks=[4]))


# With the mind


REQUESTS: dict[str, tuple[list[int], SamplingParams]] = {
    f"r{i}": (
        [(i * 17 + j * j) % 63 for j in range(length)],
        SamplingParams(
            max_tokens=10 + i,
            temperature=[0.0, 1.0, 0.7][i % 3],
            seed=i,
            top_p=[1.0, 0.9][i % 2],
            frequency_penalty=[0.0, 0.4][i // 3 % 2],
        ),
    )
    for i, length in enumerate([1, 2, 15, 16, 17, 33, 50, 64, 80, 100, 7, 3])
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_has_the_same_tokens_whatever_runs_beside_it(model_path: Path, dtype: str) -> None:
    worker = make_worker(model_path, dtype=dtype, num_blocks=NUM_BLOCKS, num_threads=1)
    alone = {name: answers_of(worker, {name: request}, num_blocks=NUM_BLOCKS)[name] for name, request in REQUESTS.items()}
    assert len({tuple(answer) for answer in alone.values()}) == len(REQUESTS)
    together = answers_of(worker, REQUESTS, num_blocks=NUM_BLOCKS)
    assert together == alone
    chunked = answers_of(
        worker, REQUESTS, num_blocks=NUM_BLOCKS, max_num_batched_tokens=13, max_num_seqs=7,
        max_tokens_per_prompt_chunk=5, enable_prefix_caching=False,
    )  # fmt: skip
    assert chunked == alone


def test_preemption_changes_no_token(model_path: Path) -> None:
    worker = make_worker(model_path, dtype="float32", num_blocks=NUM_BLOCKS, num_threads=1)
    growing = {
        f"g{i}": ([(i * 7 + j) % 63 for j in range(10)], SamplingParams(max_tokens=60, seed=i, temperature=i % 2 * 1.0))
        for i in range(8)
    }
    plenty = answers_of(worker, growing, num_blocks=NUM_BLOCKS)
    driver = EngineDriver(worker, num_blocks=12, max_model_len=140)
    for name, (prompt, sampling) in growing.items():
        driver.add(name, prompt, sampling)
    scarce = {name: answer for (name, _), answer in driver.run().items()}
    assert driver.core.stats().num_preemptions > 0
    assert scarce == plenty


def test_continuations_of_one_prompt_differ_by_their_index_and_share_its_blocks(worker: Worker) -> None:
    prompt = list(range(20))
    driver = EngineDriver(worker, num_blocks=NUM_BLOCKS)
    driver.add("n", prompt, SamplingParams(max_tokens=12, seed=4), num_sequences=4)
    forked = driver.run()
    driver.close()
    assert len({tuple(answer) for answer in forked.values()}) == 4
    assert any(plan.block_copies for plan in driver.plans), "the half-filled block is copied on write"
    alone = answers_of(worker, {"n": (prompt, SamplingParams(max_tokens=12, seed=4))}, num_blocks=NUM_BLOCKS)
    assert forked["n", 0] == alone["n"]


def test_planning_ahead_changes_no_token(worker: Worker) -> None:
    one = answers_of(worker, REQUESTS, num_blocks=NUM_BLOCKS, max_steps_in_flight=1)
    three = answers_of(worker, REQUESTS, num_blocks=NUM_BLOCKS, max_steps_in_flight=3)
    assert one == three


# Numbers that are none


def test_a_sequence_whose_numbers_are_not_finite_ends_and_the_others_go_on(poisoned_path: Path) -> None:
    worker = make_worker(poisoned_path, dtype="float32", num_blocks=16, num_threads=1)
    healthy: dict[str, tuple[list[int], SamplingParams]] = {"a": ([1, 2, 3], greedy()), "b": ([4] * 20, greedy())}
    expected = answers_of(worker, healthy, num_blocks=16)
    driver = EngineDriver(worker, num_blocks=16)
    driver.add("sick", [5, POISON, 6], greedy())
    for name, (prompt, sampling) in healthy.items():
        driver.add(name, prompt, sampling)
    answers = driver.run()
    (end,) = [update for update in driver.updates if update.request_id == "sick"]
    assert end.finish_reason is FinishReason.ERROR
    assert "not finite" in end.error
    assert {name: answers[name, 0] for name in healthy} == expected


def test_blocks_of_a_failed_sequence_do_not_poison_their_next_owner(poisoned_path: Path) -> None:
    worker = make_worker(poisoned_path, dtype="float32", num_blocks=4, num_threads=1)
    prompt = [1, 2, 3]
    (expected,) = answers_of(worker, {"a": (prompt, greedy())}, num_blocks=4, max_model_len=64).values()
    sick = new(0, [POISON] * 60)
    failed = execute(worker, 0, entry(0, 0, 60, blocks=[0, 1, 2, 3]), new_sequences=(sick,))
    assert [sequence_id for sequence_id, _ in failed.failures] == [0]
    again = execute(worker, 1, entry(0, 60, 1))
    assert [sequence_id for sequence_id, _ in again.failures] == [0], "planned before the failure was known"
    assert tokens(again) == [None]
    execute(worker, 2, released_sequence_ids=(SequenceId(0),))
    (reused,) = answers_of(worker, {"a": (prompt, greedy())}, num_blocks=4, max_model_len=64).values()
    assert reused == expected


def test_blocks_of_a_prompt_given_up_unseen_do_not_poison_their_next_owner(poisoned_path: Path) -> None:
    """It ended after a chunk that sampled nothing: nobody has learnt that its numbers are not finite."""
    worker = make_worker(poisoned_path, dtype="float32", num_blocks=4, num_threads=1)
    prompt = [1, 2, 3]
    (expected,) = answers_of(worker, {"a": (prompt, greedy())}, num_blocks=4, max_model_len=64).values()
    sick = new(0, [POISON] * 60)
    result = execute(worker, 0, entry(0, 0, 50, samples=False, blocks=[0, 1, 2, 3]), new_sequences=(sick,))
    assert result.failures == ()
    execute(worker, 1, released_sequence_ids=(SequenceId(0),))
    (reused,) = answers_of(worker, {"a": (prompt, greedy())}, num_blocks=4, max_model_len=64).values()
    assert reused == expected


def test_a_cached_beginning_that_is_not_finite_fails_again(poisoned_path: Path) -> None:
    worker = make_worker(poisoned_path, dtype="float32", num_blocks=32, num_threads=1)
    driver = EngineDriver(worker, num_blocks=32)
    prompt = [1] * 5 + [POISON] + [2] * 40
    for name in ("first", "second"):
        driver.add(name, prompt, greedy())
        driver.run()
    assert [(update.request_id, update.finish_reason) for update in driver.updates] == [
        ("first", FinishReason.ERROR),
        ("second", FinishReason.ERROR),
    ]


# Start-up


def test_start_up_is_reported_in_phases(model_path: Path) -> None:
    phases: list[tuple[str, float, str]] = []
    config = WorkerConfig(model_path=str(model_path), dtype="float32", device="cpu", num_threads=1)
    worker = Worker(config, lambda *phase: phases.append(phase))
    worker.allocate_kv_cache(10)
    worker.warm_up()
    assert [name for name, _, _ in phases] == ["open_checkpoint", "load_weights", "allocate_kv_cache", "warm_up"]
    assert all(duration_s >= 0 for _, duration_s, _ in phases)
    assert "LlamaForCausalLM" in phases[0][2]
    assert "10 blocks of 16 tokens, 120.0 KiB" in phases[2][2]


def test_kv_bytes_are_a_key_and_a_value_for_every_layer_head_and_token(worker: Worker) -> None:
    assert worker.kv_bytes_per_block == 2 * 3 * 2 * 16 * 16 * 4


def test_warming_up_leaves_nothing_behind(worker: Worker, model: Any) -> None:
    worker.warm_up()
    result = execute(worker, 0, entry(0, 0, 3, blocks=[0]), new_sequences=(new(0, [1, 2, 3]),))
    assert tokens(result) == greedy_by_transformers(model, [1, 2, 3], 1)


def test_the_execution_identity_tells_dtypes_apart(model_path: Path) -> None:
    single = make_worker(model_path, dtype="float32", num_blocks=1, num_threads=1, ops="torch").identity
    half = make_worker(model_path, dtype="bfloat16", num_blocks=1, num_threads=1, ops="torch").identity
    assert single.model_digest == half.model_digest
    assert single.digest() != half.digest()
    assert dataclasses.replace(half, weight_dtype="float32", kv_dtype="float32") == single


def test_the_length_is_part_of_the_identity_only_where_it_decides_rotations(tmp_path: Path, model_path: Path) -> None:
    plain = [make_worker(model_path, dtype="float32", num_blocks=1, max_model_len=n).identity for n in (64, 128)]
    assert plain[0] == plain[1]
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=64, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    dynamic = [make_worker(tmp_path, dtype="float32", num_blocks=1, max_model_len=n).identity for n in (64, 128)]
    assert dynamic[0] != dynamic[1]


def test_the_dtype_is_chosen_by_what_the_processor_multiplies_natively(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = WorkerConfig(model_path=str(model_path), device="cpu", num_threads=1, ops="torch")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    for is_native, expected in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda answer=is_native: answer)
        assert Worker(config, lambda *phase: None).dtype == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "bfloat"}, "dtype 'bfloat' is not one of auto, float32, bfloat16; did you mean 'bfloat16'?"),
        ({"device": "cudaa"}, "device 'cudaa' is not one of auto, cpu, cuda; did you mean 'cuda'?"),
        ({"num_threads": -1}, "must not be negative"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        WorkerConfig(model_path="x", **settings)
    assert message in str(refusal.value)


def test_the_threads_of_a_worker_sleep_while_they_wait() -> None:
    """In a process of its own, for it is decided when torch is loaded."""
    program = "import headrace.engine.worker.worker, torch"
    environment = {"OMP_DISPLAY_ENV": "TRUE", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    if "OMP_WAIT_POLICY" not in done.stderr:
        pytest.skip("this build of torch uses an OpenMP library that does not tell")
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr
