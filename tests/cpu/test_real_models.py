"""The real models that the longer tests run: read as the gguf package and as transformers read them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from headrace.engine.models.fields import Fields
from headrace.engine.models.gguf import GgufFile
from headrace.engine.models.registry import spec_from_config
from headrace.engine.models.weights import open_checkpoint
from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.torch.weights import load_rows
from headrace.specs.model import Activation, LayerSpec, RopeScaling


def _agrees_with_the_gguf_package(path: Path) -> None:
    reader = gguf.GGUFReader(path)
    with GgufFile(path) as file:
        assert list(file.tensors) == [tensor.name for tensor in reader.tensors]
        for theirs in reader.tensors:
            ours = file.tensors[theirs.name]
            numbers = dequantize(ours.storage, file.data(theirs.name), ours.shape)
            assert np.array_equal(numbers, gguf.quants.dequantize(theirs.data, theirs.tensor_type)), theirs.name
        for key, field in reader.fields.items():
            if not key.startswith("GGUF."):
                assert file.metadata[key] == field.contents(), key


def _agrees_with_transformers(path: Path) -> None:
    """Every tensor, reordered and in float32, equals the one that the library makes of the same file; so does the spec."""
    checkpoint = open_checkpoint(path)
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    with torch.device("meta"):  # the library asks a model for its names only
        model: Any = transformers.AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert set(tensors) == set(checkpoint.names())
    is_gemma = config.model_type.startswith("gemma")
    for name, theirs in tensors.items():
        ours = load_rows(checkpoint.tensor(name), torch.float32)
        if is_gemma and name.endswith("norm.weight"):
            ours = ours - 1  # the file has 1 + w, the library w
        assert torch.equal(ours, theirs.float()), name
    described = {**config.to_dict(), "architectures": [type(model).__name__]}
    theirs_as_spec = spec_from_config(Fields("config", described), Fields("generation", {}))
    ours_as_spec = replace(
        checkpoint.spec,
        architecture=theirs_as_spec.architecture,
        norm_plus_one=is_gemma,
        norm_eps=theirs_as_spec.norm_eps,
        eos_token_ids=theirs_as_spec.eos_token_ids,
    )
    assert ours_as_spec == theirs_as_spec
    assert checkpoint.spec.norm_eps == pytest.approx(theirs_as_spec.norm_eps, rel=1e-7), "one of them a float32"


def test_the_default_model_is_what_it_is(smollm2_path: Path) -> None:
    checkpoint = open_checkpoint(smollm2_path)
    spec = checkpoint.spec
    assert spec.architecture == "llama"
    assert (spec.num_layers, spec.hidden_size, spec.intermediate_size) == (30, 576, 1536)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size) == (9, 3, 64, 49152)
    assert spec.layers == (LayerSpec(),) * 30
    (rope,) = spec.ropes
    assert (rope.theta, rope.rotary_dim, rope.scaling) == (100_000.0, 64, RopeScaling.NONE)
    assert (spec.norm_eps, spec.max_position_embeddings) == (1e-5, 8192)
    assert (spec.bos_token_id, spec.eos_token_ids) == (1, (2,))
    assert spec.tie_word_embeddings
    assert checkpoint.weight_format == "Q4_1"
    assert len(checkpoint.names()) == 30 * 9 + 2
    card = {"temperature": 0.2, "top_p": 0.9}  # kept beside the file by `headrace pull`; the file itself advises nothing
    assert checkpoint.generation_defaults in ({}, card)


def test_the_default_model_reads_as_the_gguf_package_reads_it(smollm2_path: Path) -> None:
    _agrees_with_the_gguf_package(smollm2_path)


@pytest.mark.slow
def test_the_default_model_reads_as_transformers_reads_it(smollm2_path: Path) -> None:
    _agrees_with_transformers(smollm2_path)


def test_the_default_models_folder_is_the_model(smollm2_path: Path) -> None:
    assert open_checkpoint(smollm2_path.parent).digest == open_checkpoint(smollm2_path).digest


@pytest.mark.slow
def test_gemma_3_is_what_it_is(gemma3_path: Path) -> None:
    checkpoint = open_checkpoint(gemma3_path)
    spec = checkpoint.spec
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size) == (18, 640, 262144)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 1, 256)
    assert [i for i, layer in enumerate(spec.layers) if layer == LayerSpec(rope=0)] == [5, 11, 17]
    assert {layer for layer in spec.layers if layer.window} == {LayerSpec(rope=1, window=512)}
    assert [rope.theta for rope in spec.ropes] == [1e6, 1e4]
    assert (spec.activation, spec.norm_plus_one, spec.post_norms) == (Activation.GELU_TANH, False, True)
    assert (spec.bos_token_id, spec.eos_token_ids) == (2, (1, 106))
    assert checkpoint.weight_format == "Q5_0"


@pytest.mark.slow
def test_gemma_3_reads_as_the_gguf_package_reads_it(gemma3_path: Path) -> None:
    _agrees_with_the_gguf_package(gemma3_path)


@pytest.mark.slow
def test_gemma_3_reads_as_transformers_reads_it(gemma3_path: Path) -> None:
    _agrees_with_transformers(gemma3_path)
