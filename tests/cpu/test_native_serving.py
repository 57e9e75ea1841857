"""The default model on the native kernels: close to float32, the same bits in any company, and no torch in the process."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from tests.cpu.paged_decoder import PagedDecoder
from tests.patience import PATIENCE_S

from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.models.weights import Checkpoint, open_checkpoint
from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.host_tensor import HostTensor

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

TEXT = (
    "A headrace is the channel that brings water to a mill. Where the land is flat it runs for miles along the side of a "
    "valley, losing as little height as it can, so that at the wheel all of the fall is left to be used. Millers quarrelled "
    "over such channels for centuries: whoever drew water upstream decided who could grind below, and on what days. The law "
    "books of several countries still hold rules that were made for them."
)

SERVING_WITHOUT_TORCH = """
import sys
import headrace.engine.host.process
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import NewSequence, ScheduledSequence, StepPlan
from headrace.engine.worker.worker import Worker, WorkerConfig
worker = Worker(WorkerConfig(model_path=sys.argv[1], device="cpu", max_model_len=256), lambda *_: None)
worker.allocate_kv_cache(64)
worker.warm_up()
every_filter = SamplingParams(
    max_tokens=4, temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, logprobs=3, repetition_penalty=1.1, min_tokens=2
)
new = NewSequence(0, 0, 5, (504, 3575, 282, 4649, 314), every_filter, (2,))
plan = StepPlan(0, (ScheduledSequence(0, 0, 5, True, 0, (3,)),), new_sequences=(new,))
result = worker.execute(plan)
assert result.sampled[0] is not None and not result.failures, result
assert worker.device.startswith("native kernels on CPU"), worker.device
assert worker.identity.processor.startswith("native-"), worker.identity
assert worker.free_device_bytes() is None
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "transformers")))
"""


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def token_ids(smollm2_path: Path) -> list[int]:
    return load_tokenizer(smollm2_path).encode(TEXT)


def decoder(checkpoint: Checkpoint, ops: str, dtype: str) -> PagedDecoder:
    return PagedDecoder(checkpoint.spec, checkpoint, max_model_len=1024, dtype=dtype, ops=ops, num_threads=2, num_blocks=300)


def logits_of(decoder: PagedDecoder, name: str, ids: list[int], *chunks: int) -> npt.NDArray[np.float32]:
    decoder.start(name, ids)
    return decoder.finish(name, *chunks).numpy().copy()


def test_a_process_that_serves_natively_has_not_imported_torch(smollm2_path: Path) -> None:
    command = [sys.executable, "-c", SERVING_WITHOUT_TORCH, str(smollm2_path)]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.strip() == "[]"
    assert "leaked" not in outcome.stderr


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_close_to_those_of_float32_arithmetic(checkpoint: Checkpoint, token_ids: list[int], dtype: str) -> None:
    reference = torch.from_numpy(logits_of(decoder(checkpoint, "torch", "float32"), "a", token_ids)).double()
    ours = torch.from_numpy(logits_of(decoder(checkpoint, "native", dtype), "a", token_ids)).double()
    theirs, mine = torch.log_softmax(reference, -1), torch.log_softmax(ours, -1)
    divergence = (theirs.exp() * (theirs - mine)).sum(-1)
    agreement = (reference.argmax(-1) == ours.argmax(-1)).double().mean()
    assert float(divergence.mean()) < 0.005, "int8 rows cost a few thousandths of a nat on this model"
    assert float(agreement) > 0.9


class InFloat32:
    """The same checkpoint, its tensors as numbers: no row that meets them is rounded."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def tensor(self, name: str) -> HostTensor:
        tensor = self._checkpoint.tensor(name)
        floats = dequantize(tensor.storage, tensor.data, tensor.shape)
        return replace(tensor, storage="F32", data=floats.reshape(-1).view(np.uint8).data)


def test_attention_in_bfloat16_costs_far_less_than_rows_in_int8(checkpoint: Checkpoint, token_ids: list[int]) -> None:
    """They, and what else is rounded with them, once were suspected of moving near ties."""

    def log_probabilities(dtype: str) -> torch.Tensor:
        ours = PagedDecoder(
            checkpoint.spec, InFloat32(checkpoint), max_model_len=1024, dtype=dtype, ops="native", num_threads=2
        )
        return torch.log_softmax(torch.from_numpy(logits_of(ours, "a", token_ids[:40])).double(), -1)

    exact, rounded = log_probabilities("float32"), log_probabilities("bfloat16")
    assert 0 < float((exact.exp() * (exact - rounded)).sum(-1).mean()) < 2e-4


def test_logits_have_the_same_bits_alone_in_chunks_and_beside_others(checkpoint: Checkpoint, token_ids: list[int]) -> None:
    native = decoder(checkpoint, "native", "bfloat16")
    alone = logits_of(native, "alone", token_ids)
    cut = logits_of(native, "cut", token_ids, 1, 17, 1, 30, 2)
    assert np.array_equal(cut, alone)
    native.start("beside", token_ids)
    for i in range(20):
        native.start(f"other {i}", token_ids[i : i + 40])
        native.step({f"other {i}": 5 + i})
    parts = []
    while remaining := native.num_remaining("beside"):
        step = {f"other {i}": 1 for i in range(20) if native.num_remaining(f"other {i}")}
        parts.append(native.step({"beside": min(9, remaining)} | step)["beside"].numpy().copy())
    assert np.array_equal(np.concatenate(parts), alone)
