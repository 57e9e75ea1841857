"""Quantised Hugging Face folders computed with: the reference on exact numbers, the native kernels on the integers."""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.checkpoint_files import write_folder
from tests.cpu.paged_decoder import PagedDecoder
from tests.quantized_files import CONFIG
from tests.unit.models.test_hf_quantization import FOLDERS, write

from headrace.engine.models.weights import Checkpoint, open_checkpoint
from headrace.engine.ops.registry import choose_ops

Floats = npt.NDArray[np.float32]

TOKENS = [(7 * i * i + 3) % 96 for i in range(60)]


def logits(checkpoint: Checkpoint, ops: str, *chunks: int) -> Floats:
    decoder = PagedDecoder(checkpoint.spec, checkpoint, max_model_len=256, dtype="float32", ops=ops)
    decoder.start("a", TOKENS)
    return decoder.finish("a", *chunks).numpy().copy()


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_reference_computes_with_the_numbers_that_the_integers_stand_for(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path / "quantised", kind)
    plain = {name: array.astype(np.float32) for name, array in folder.expected.items()}
    write_folder(tmp_path / "plain", CONFIG, plain)
    ours = logits(open_checkpoint(tmp_path / "quantised"), "torch")
    assert np.array_equal(ours, logits(open_checkpoint(tmp_path / "plain"), "torch"))


@pytest.mark.parametrize("kind", FOLDERS)
def test_native_products_with_the_integers_are_close_to_the_reference(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")
    write(tmp_path, kind)
    checkpoint = open_checkpoint(tmp_path)
    reference, ours = logits(checkpoint, "torch"), logits(checkpoint, "native")
    assert np.sqrt(np.mean((ours - reference) ** 2) / np.mean(reference**2)) < 0.06  # a misplaced integer gives 1
    assert np.array_equal(ours, logits(checkpoint, "native", 1, 17, 1))


@pytest.mark.parametrize("kind", ["awq", "gptq", "packed", "eight bits"])
def test_a_quantised_folder_is_served_natively_by_itself(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")
    write(tmp_path, kind)
    checkpoint = open_checkpoint(tmp_path)
    choice = choose_ops("auto", device="cpu", dtype="auto", storages=checkpoint.matrix_storages(), block_size=16)
    assert (choice.name, choice.remark) == ("native", "")


def test_a_folder_quantised_otherwise_says_so_before_anything_is_read(tmp_path: Path) -> None:
    write(tmp_path, "awq")
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "bitsandbytes"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(Exception, match="quant_method is 'bitsandbytes'; supported are awq, gptq, compressed-tensors"):
        open_checkpoint(tmp_path)
