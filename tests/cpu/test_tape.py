"""The tape: a forward pass recorded once and replayed gives the bits of its operations called one by one, family by family.

Steps of every kind are taken twice, by a decoder that replays and by one that does not.
"""

import random
from typing import Any

import numpy as np
import pytest
from tests.cpu.paged_decoder import PagedDecoder
from tests.cpu.test_checkpoints_of_transformers import CONFIGS
from tests.cpu.test_decoder_families import LENGTH, LONGROPE_LENGTH, random_model, tokens

from headrace.engine.models.weights import Checkpoint, open_checkpoint

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.native.ops import NativeOps
from headrace.engine.ops.protocol import SequenceSpan, Tensor
from headrace.engine.ops.storage import storage_bytes


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("tape")
    random_model(request.param).save_pretrained(folder)
    return open_checkpoint(folder)


def both(checkpoint: Checkpoint, dtype: str) -> tuple[PagedDecoder, PagedDecoder]:
    settings: dict[str, Any] = {"max_model_len": LONGROPE_LENGTH, "dtype": dtype, "ops": "native", "num_threads": 2}
    replaying, calling = (
        PagedDecoder(checkpoint.spec, checkpoint, **settings, enforce_eager=enforce_eager) for enforce_eager in (False, True)
    )
    return replaying, calling


def assert_same_step(
    decoders: tuple[PagedDecoder, PagedDecoder], step: dict[str, int], *, num_wanted: int | None = None
) -> None:
    replayed, called = (decoder.step(step, num_wanted=num_wanted) for decoder in decoders)
    for name, logits in called.items():
        assert np.array_equal(replayed[name].numpy(), logits.numpy()), f"another result for {name} of {step}"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_tape_serves_prompts_chunks_decode_steps_and_ragged_batches(checkpoint: Checkpoint, dtype: str) -> None:
    decoders = both(checkpoint, dtype)
    draw = random.Random(5)
    for seed in range(6):
        for decoder in decoders:
            decoder.start(f"s{seed}", tokens(LENGTH, seed))
    assert_same_step(decoders, {"s0": LENGTH - 2})
    assert_same_step(decoders, {"s0": 1, "s1": 1}, num_wanted=1)
    assert_same_step(decoders, {"s0": 1, "s1": 40, "s2": 33}, num_wanted=1)
    while open_ones := [f"s{seed}" for seed in range(6) if decoders[0].num_remaining(f"s{seed}")]:
        step = {name: draw.randint(1, decoders[0].num_remaining(name)) for name in open_ones if draw.random() < 0.7}
        assert_same_step(decoders, step or {open_ones[0]: 1}, num_wanted=draw.choice([None, 1]))


def chain(ops: NativeOps, *, size: int = 32, storage: str = "F32") -> Any:
    """x -> logits(norm(select(x + down(norm(x))))), for what a tape makes of it."""

    def weight(num_out: int, num_in: int, seed: int, storage: str = "F32") -> HostTensor:
        rng = np.random.default_rng(seed)
        numbers = rng.standard_normal((num_out, num_in)).astype(np.float32).tobytes()
        data = numbers if storage == "F32" else rng.bytes(storage_bytes(storage, (num_out, num_in)))
        return HostTensor("w", storage, (num_out, num_in), memoryview(data))

    table = ops.load_embedding(weight(10, size, 0, storage))
    down, head = ops.load_linear([weight(size, size, 1)]), ops.load_linear([weight(10, size, 2)])
    norm = np.linspace(0.5, 1.5, size, dtype=np.float32)

    def forward(ids: Tensor, where: Tensor, rows: Tensor) -> Tensor:
        x = ops.embed(ids, table, multiplier=2.0)
        x = ops.linear(ops.rms_norm(x, norm, eps=1e-5), down, add_to=x)
        return ops.logits(ops.rms_norm(ops.select_rows(x, rows), norm, eps=1e-5), head)

    return forward


def test_rows_are_selected_before_what_only_single_rows_need_and_norms_happen_on_the_way() -> None:
    ops = NativeOps(dtype="float32", num_threads=1)
    engine = ops._engine
    forward = chain(ops)
    engine.record()
    tape = engine.finish(forward(None, None, None))
    # embed, select, down with its norm, head with its norm; the embedded rows alone exist for every token.
    assert tape.num_operations == 4
    assert tape.floats_per_token == 32


def test_nothing_is_computed_and_nothing_kept_of_a_recording_that_fails() -> None:
    ops = NativeOps(dtype="float32", num_threads=1)

    def broken(ids: Tensor, where: Tensor, rows: Tensor) -> Tensor:
        ops.embed(ids, ops.load_embedding(HostTensor("w", "F32", (1, 2), memoryview(bytes(8)))))
        raise KeyError("no such layer")

    with pytest.raises(KeyError):
        ops.record(broken)
    ops.record(chain(ops))  # as if nothing had been


def test_a_value_of_another_recording_is_refused() -> None:
    ops = NativeOps(dtype="float32", num_threads=1)
    numbers = ops._engine.from_array(np.zeros((1, 32), np.float32))
    weight = np.ones(32, np.float32)
    ops._engine.record()
    with pytest.raises(ValueError, match="recorded"):
        ops._engine.rms_norm(numbers, weight, 1e-5)
    ops._engine.give_up()
    with pytest.raises(ValueError, match="recorded"):
        ops._engine.embed(None, None, 32, 1.0)


def test_what_a_step_brings_is_checked_against_the_tape() -> None:
    ops = NativeOps(dtype="float32", num_threads=1)
    replay = ops.record(chain(ops))
    nowhere = ops.place([], block_size=16, windows=())
    with pytest.raises(ValueError, match="a place for every token"):
        replay(ops.token_ids([1, 2]), nowhere, [0])


@pytest.mark.parametrize("storage", ["Q2_K", "Q8_0", "F32"])
def test_embedded_rows_are_the_same_whether_a_kernel_reads_the_table_or_numpy_does(storage: str) -> None:
    ops = NativeOps(dtype="float32", num_threads=1)
    forward = chain(ops, size=256, storage=storage)
    ids, where = ops.token_ids([9, 0, 9]), ops.place([SequenceSpan(0, 3, [0])], block_size=16, windows=())
    assert np.array_equal(ops.record(forward)(ids, where, [1, 2]), forward(ids, where, [1, 2]), equal_nan=True)


def test_a_token_id_beyond_the_table_is_an_error_not_a_read() -> None:
    ops = NativeOps(dtype="float32", num_threads=1)
    where = ops.place([SequenceSpan(0, 1, [0])], block_size=16, windows=())
    with pytest.raises(ValueError, match="token id"):
        ops.record(chain(ops))(ops.token_ids([10]), where, [0])
