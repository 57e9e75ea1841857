"""Quantised Hugging Face folders: their integers arrive unchanged, and what is not served is refused by name."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.quantized_files import (
    PROJECTIONS,
    Folder,
    Module,
    awq,
    compressed_int4,
    compressed_int8,
    gptq,
    int4_group,
    int8_channel,
    write_quantized_llama,
)

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import Fields
from headrace.engine.models.hf_quantization import read_quantization
from headrace.engine.models.weights import open_checkpoint
from headrace.engine.ops.dequantize import dequantize

Make = Callable[[np.random.Generator, int, int], Module]

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}

FOLDERS: dict[str, tuple[dict[str, object], Make, str]] = {
    # The section, how projections are made, the storage they must arrive in
    "awq": (AWQ, partial(awq, group_size=64), "INT4_G64"),
    "gptq": (GPTQ, partial(gptq, group_size=32), "INT4_G32"),
    "gptq without an index": (GPTQ, partial(gptq, group_size=32, has_index=False), "INT4_G32"),
    "gptq by whole rows": ({**GPTQ, "group_size": -1}, partial(gptq, group_size=-1), "INT4_G128"),
    "gptq_v2": (
        {**GPTQ, "checkpoint_format": "gptq_v2"},
        partial(gptq, group_size=32, first_format=False),
        "INT4_G32",
    ),
    "gptq in the order of activations": ({**GPTQ, "desc_act": True}, partial(gptq, group_size=32, act_order=True), "F32"),
    "packed": (int4_group(), partial(compressed_int4, group_size=128), "INT4_G128"),
    "packed with zero points": (
        int4_group(32, symmetric=False),
        partial(compressed_int4, group_size=32, symmetric=False),
        "INT4_G32",
    ),
    "packed by channels": (int4_group(strategy="channel"), partial(compressed_int4, group_size=-1), "INT4_G128"),
    "packed in the order of activations": (
        int4_group(64, actorder="group"),
        partial(compressed_int4, group_size=64, act_order=True),
        "F32",
    ),
    "eight bits": (int8_channel(), compressed_int8, "INT8_CHANNEL"),
}


def write(path: Path, kind: str) -> Folder:
    section, make, _ = FOLDERS[kind]
    return write_quantized_llama(path, section, make)


@pytest.mark.parametrize("kind", FOLDERS)
def test_every_integer_arrives_with_its_own_scale_and_zero_point(tmp_path: Path, kind: str) -> None:
    folder = write(tmp_path, kind)
    checkpoint = open_checkpoint(tmp_path)
    assert sorted(checkpoint.names()) == sorted(folder.expected)
    for name, expected in folder.expected.items():
        tensor = checkpoint.tensor(name)
        if ".self_attn." in name or ".mlp." in name:
            assert tensor.storage == FOLDERS[kind][2]
        got = dequantize(tensor.storage, tensor.data, tensor.shape)
        np.testing.assert_array_equal(got, expected.astype(np.float32), err_msg=name)
    assert checkpoint.weight_format == FOLDERS[kind][2].replace("F32", "float32")


def test_biases_of_nothing_but_zeros_are_left_out(tmp_path: Path) -> None:
    def with_bias(rng: np.random.Generator, num_out: int, num_in: int) -> Module:
        module = gptq(rng, num_out, num_in, 32)
        module.tensors["bias"] = np.zeros(num_out, np.float16)
        return module

    folder = write_quantized_llama(tmp_path, GPTQ, with_bias)
    assert sorted(open_checkpoint(tmp_path).names()) == sorted(folder.expected)


def test_the_same_words_under_another_reading_are_another_model(tmp_path: Path) -> None:
    write(tmp_path, "gptq")
    first = open_checkpoint(tmp_path).digest
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).digest != first


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"quant_method": "fp8"}, "quant_method is 'fp8'; supported are awq, gptq, compressed-tensors"),
    ({"bits": 4}, "quant_method is missing"),
    ({**AWQ, "version": "gemv"}, "version is 'gemv'; the supported layout of AWQ is gemm"),
    ({**AWQ, "bits": 8}, "bits is 8; packed integers of 4 bits"),
    ({**AWQ, "zero_point": False}, "AWQ without zero points"),
    ({**AWQ, "group_size": 48}, "group_size is 48; supported are 32, 64, 128 and -1"),
    ({**GPTQ, "bits": 3}, "bits is 3; packed integers of 4 bits"),
    ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'; supported are gptq and gptq_v2"),
    ({**GPTQ, "is_marlin_format": True}, "repacked for one GPU kernel"),
    (int4_group(num_bits=8), "num_bits is 8; packed integers of 4 bits"),
    (int4_group(strategy="tensor"), "strategy is 'tensor'; supported are group and channel"),
    (int4_group(type="float"), "type is 'float'; integers are supported"),
    (int8_channel(dynamic=False), "dynamic is False; inputs whose scales were fixed beforehand"),
    (int8_channel(symmetric=False), "symmetric is False; inputs with zero points"),
    (int8_channel(strategy="tensor"), "strategy is 'tensor'; inputs with one scale for each token"),
    ({**int4_group(), "format": "float-quantized"}, "format is 'float-quantized'; supported are pack-quantized"),
    ({**int4_group(), "config_groups": {}}, "config_groups must hold one group"),
    ({**int4_group(), "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse weights are not supported"),
]


@pytest.mark.parametrize(("section", "message"), REFUSED)
def test_variants_that_are_not_served_are_refused_by_name(section: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_quantization(Fields("config.json", {"quantization_config": section}))


def test_weights_of_eight_bits_under_plain_inputs_are_refused() -> None:
    section = int8_channel()
    section["config_groups"]["group_0"]["input_activations"] = None  # type: ignore[index]
    with pytest.raises(CheckpointError, match="input_activations is None; 8-bit weights are supported where inputs"):
        read_quantization(Fields("config.json", {"quantization_config": section}))


def test_a_config_without_quantisation_says_nothing_of_it() -> None:
    assert read_quantization(Fields("config.json", {})) is None


def without_scales(module: Module) -> None:
    del module.tensors["scales"]


def index_out_of_range(module: Module) -> None:
    module.tensors["g_idx"][0] = 999


def fewer_scales(module: Module) -> None:
    module.tensors["scales"] = module.tensors["scales"][:, :-1]


def another_width(module: Module) -> None:
    module.tensors["weight_shape"][1] = 9


DAMAGES = [
    ("gptq", without_scales, "scales of the same module is missing"),
    ("gptq", index_out_of_range, "names groups that are not among the"),
    ("awq", fewer_scales, "scales': it is F16 of shape"),
    ("packed", another_width, "weight_shape': it says"),
]


@pytest.mark.parametrize(("kind", "damage", "message"), DAMAGES)
def test_modules_whose_tensors_do_not_fit_are_refused(
    tmp_path: Path, kind: str, damage: Callable[[Module], None], message: str
) -> None:
    section, make, _ = FOLDERS[kind]

    def damaged(rng: np.random.Generator, num_out: int, num_in: int) -> Module:
        module = make(rng, num_out, num_in)
        damage(module)
        return module

    write_quantized_llama(tmp_path, section, damaged)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_the_sizes_above_are_those_of_the_folder() -> None:
    assert {num_in for _, num_in in PROJECTIONS.values()} == {128, 256}, "whole groups of every size"
