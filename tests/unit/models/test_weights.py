"""Opening checkpoints: canonical names whatever the files' own, every wrong tensor named, identities that mean content."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint_files import (
    LLAMA_CONFIG,
    LLAMA_METADATA,
    Array,
    RawTensor,
    Typed,
    f32,
    gguf_bytes,
    safetensors_bytes,
    tiny_llama,
    tiny_llama_gguf,
    write_folder,
)

from headrace.base.errors import CheckpointError
from headrace.engine.models.weights import Checkpoint, expected_shapes, open_checkpoint


def _gguf(
    tmp_path: Path, metadata: Mapping[str, object] | None = None, tensors: Mapping[str, RawTensor] | None = None
) -> Checkpoint:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(metadata or LLAMA_METADATA, tensors or tiny_llama_gguf()))
    return open_checkpoint(path)


def _array(checkpoint: Checkpoint, name: str) -> Array:
    tensor = checkpoint.tensor(name)
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


def test_both_containers_show_the_same_names_and_numbers(tmp_path: Path) -> None:
    folder = open_checkpoint(write_folder(tmp_path / "hf", LLAMA_CONFIG, tiny_llama()))
    file = _gguf(tmp_path)
    assert folder.names() == file.names() == list(expected_shapes(folder.spec))
    for name, array in tiny_llama().items():
        assert np.array_equal(_array(folder, name), array), name
        assert np.array_equal(_array(file, name), array), name
        assert folder.tensor(name).name == name
    assert folder.weight_format == file.weight_format == "float32"


def test_the_two_descriptions_mean_the_same_model(tmp_path: Path) -> None:
    folder = open_checkpoint(write_folder(tmp_path / "hf", LLAMA_CONFIG, tiny_llama())).spec
    file = _gguf(tmp_path).spec
    assert folder.architecture == "LlamaForCausalLM"
    assert file.architecture == "llama"
    for field in type(file).__dataclass_fields__:
        if field != "architecture":
            assert getattr(folder, field) == getattr(file, field), field


def test_llama_cpp_interleaves_the_heads_of_q_and_k_and_of_nothing_else(tmp_path: Path) -> None:
    file = _gguf(tmp_path)
    heads = {name: file.tensor(name).interleaved_heads for name in file.names()}
    assert {name for name, count in heads.items() if count} == {
        f"model.layers.{layer}.self_attn.{part}_proj.weight" for layer in range(2) for part in "qk"
    }
    assert heads["model.layers.1.self_attn.q_proj.weight"] == 4
    assert heads["model.layers.1.self_attn.k_proj.weight"] == 2


def _as_architecture(name: str) -> dict[str, object]:
    return {key.replace("llama.", f"{name}."): value for key, value in LLAMA_METADATA.items()} | {
        "general.architecture": name
    }


def test_qwen_is_not_interleaved_and_has_biases(tmp_path: Path) -> None:
    biases: dict[str, RawTensor] = {}
    for layer in range(2):
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            biases[f"blk.{layer}.attn_{part}.bias"] = f32(np.full(rows, rows + layer, np.float32))
    file = _gguf(tmp_path, _as_architecture("qwen2"), tiny_llama_gguf() | biases)
    assert file.spec.qkv_bias
    assert not file.spec.output_bias
    assert file.tensor("model.layers.0.self_attn.q_proj.weight").interleaved_heads == 0
    assert np.array_equal(_array(file, "model.layers.1.self_attn.k_proj.bias"), np.full(16, 17, np.float32))


def test_biases_of_a_llama_are_interleaved_with_their_rows(tmp_path: Path) -> None:
    biases: dict[str, RawTensor] = {}
    for layer in range(2):
        for part, rows in (("q", 32), ("k", 16), ("v", 16)):
            biases[f"blk.{layer}.attn_{part}.bias"] = f32(np.zeros(rows, np.float32))
    file = _gguf(tmp_path, tensors=tiny_llama_gguf() | biases)
    heads = [file.tensor(f"model.layers.0.self_attn.{part}_proj.bias").interleaved_heads for part in "qkv"]
    assert heads == [4, 2, 0]


# Fused projections


def _fuse_folder(tensors: dict[str, Array]) -> dict[str, Array]:
    for layer in range(2):
        prefix = f"model.layers.{layer}."
        qkv = [tensors.pop(f"{prefix}self_attn.{part}_proj.weight") for part in "qkv"]
        tensors[f"{prefix}self_attn.qkv_proj.weight"] = np.concatenate(qkv)
        gate_up = [tensors.pop(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")]
        tensors[f"{prefix}mlp.gate_up_proj.weight"] = np.concatenate(gate_up)
    return tensors


def test_fused_projections_are_shown_apart(tmp_path: Path) -> None:
    config = LLAMA_CONFIG | {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3"}
    checkpoint = open_checkpoint(write_folder(tmp_path, config, _fuse_folder(tiny_llama())))
    for name, array in tiny_llama().items():
        assert np.array_equal(_array(checkpoint, name), array), name


def test_fused_projections_of_a_gguf_file_are_shown_apart(tmp_path: Path) -> None:
    tensors = tiny_llama_gguf()
    for layer in range(2):
        for fused, parts in (("attn_qkv", ("attn_q", "attn_k", "attn_v")), ("ffn_up", ("ffn_gate", "ffn_up"))):
            pieces = [tensors.pop(f"blk.{layer}.{part}.weight") for part in parts]
            rows = sum(piece.shape[0] for piece in pieces)
            tensors[f"blk.{layer}.{fused}.weight"] = RawTensor((rows, 32), 0, b"".join(piece.data for piece in pieces))
    file = _gguf(tmp_path, _as_architecture("phi3"), tensors)
    for name, array in tiny_llama().items():
        assert np.array_equal(_array(file, name), array), name


def test_rows_of_a_quantised_fused_tensor_are_cut_between_blocks(tmp_path: Path) -> None:
    tensors = tiny_llama_gguf()
    rows_of = {"attn_q": 32, "attn_k": 16, "attn_v": 16}
    rng = np.random.default_rng(0)
    fused = {layer: rng.integers(0, 256, (64, 34), dtype=np.uint8) for layer in range(2)}  # Q8_0: 34 bytes a row of 32
    for layer in range(2):
        for part in rows_of:
            tensors.pop(f"blk.{layer}.{part}.weight")
        tensors[f"blk.{layer}.attn_qkv.weight"] = RawTensor((64, 32), 8, fused[layer].tobytes())
    file = _gguf(tmp_path, _as_architecture("phi3"), tensors)
    k = file.tensor("model.layers.1.self_attn.k_proj.weight")
    assert (k.storage, k.shape) == ("Q8_0", (16, 32))
    assert bytes(k.data) == fused[1][32:48].tobytes()


# Tied embeddings


def test_tied_embeddings_leave_no_head_to_ask_for(tmp_path: Path) -> None:
    tensors = tiny_llama()
    del tensors["lm_head.weight"]
    checkpoint = open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": True}, tensors))
    assert checkpoint.spec.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.names()


def test_a_head_that_copies_tied_embeddings_is_left_out(tmp_path: Path) -> None:
    tensors = tiny_llama()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    checkpoint = open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": True}, tensors))
    assert checkpoint.spec.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.names()


def test_a_head_that_differs_from_tied_embeddings_is_used(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": True}, tiny_llama()))
    assert not checkpoint.spec.tie_word_embeddings
    assert np.array_equal(_array(checkpoint, "lm_head.weight"), tiny_llama()["lm_head.weight"])


def test_a_head_stands_in_for_tied_embeddings_that_are_missing(tmp_path: Path) -> None:
    tensors = tiny_llama()
    head = tensors.pop("lm_head.weight")
    tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
    checkpoint = open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG | {"tie_word_embeddings": True}, tensors))
    assert head.shape == (40, 32)
    assert np.array_equal(_array(checkpoint, "model.embed_tokens.weight"), tensors["lm_head.weight"])


def test_a_gguf_file_without_an_output_is_tied(tmp_path: Path) -> None:
    tensors = tiny_llama_gguf()
    del tensors["output.weight"]
    assert _gguf(tmp_path, tensors=tensors).spec.tie_word_embeddings


# What does not fit


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    tensors = tiny_llama()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"tensor 'model\.layers\.1\.mlp\.up_proj\.weight' is missing, for a Llama"):
        open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, tensors))


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"20 tensors \('model\.embed_tokens\.weight', .*, \.\.\.\) are missing"):
        open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, {"model.norm.weight": tiny_llama()["model.norm.weight"]}))


def test_unexpected_tensors_are_named(tmp_path: Path) -> None:
    tensors = tiny_llama() | {"model.layers.0.self_attn.q_proj.bias": np.zeros(32, np.float32)}
    with pytest.raises(CheckpointError, match=r"'model\.layers\.0\.self_attn\.q_proj\.bias' is not known in a Llama"):
        open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, tensors))


def test_unexpected_tensors_of_a_gguf_file_are_named(tmp_path: Path) -> None:
    extra = {"blk.0.ffn_gate_inp.weight": f32(np.zeros(4, np.float32)), "blk.0.attn_q.scale": f32(np.ones(1, np.float32))}
    with pytest.raises(
        CheckpointError, match=r"tensors 'blk\.0\.attn_q\.scale', 'blk\.0\.ffn_gate_inp\.weight' are not known"
    ):
        _gguf(tmp_path, tensors=tiny_llama_gguf() | extra)


def test_buffers_that_old_checkpoints_carry_are_tolerated(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    assert open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, tiny_llama() | extra)).spec.num_layers == 2


def test_two_tensors_of_one_meaning_are_refused(tmp_path: Path) -> None:
    tensors = tiny_llama()
    twice = {f"language_model.{name}": array for name, array in tensors.items()}
    text = {key: value for key, value in LLAMA_CONFIG.items() if key != "architectures"}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    message = r"tensors '(language_model\.)?model\..*' and '(language_model\.)?model\..*' are both 'model\."
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write_folder(tmp_path, config, tensors | twice))


def test_a_wrong_shape_is_named_with_both(tmp_path: Path) -> None:
    tensors = tiny_llama() | {"model.norm.weight": np.ones(31, np.float32)}
    message = (
        r"model\.safetensors: tensor 'model\.norm\.weight' has the shape \(31,\); the model's description asks for \(32,\)"
    )
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, tensors))


def test_a_format_that_cannot_be_computed_with_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA_CONFIG, tiny_llama())
    content = (folder / "model.safetensors").read_bytes()
    assert b'"model.norm.weight": {"dtype": "F32"' in content
    changed = content.replace(b'"model.norm.weight": {"dtype": "F32"', b'"model.norm.weight": {"dtype": "U32"')
    (folder / "model.safetensors").write_bytes(changed)
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' is stored as U32, which cannot be read"):
        open_checkpoint(folder)


def test_a_name_that_is_not_there_is_refused(tmp_path: Path) -> None:
    checkpoint = _gguf(tmp_path)
    with pytest.raises(CheckpointError, match=r"it has no tensor 'model\.layers\.2\.input_layernorm\.weight'"):
        checkpoint.tensor("model.layers.2.input_layernorm.weight")


# What can be opened


def test_a_folder_with_one_gguf_file_is_that_model(tmp_path: Path) -> None:
    opened = _gguf(tmp_path)
    (tmp_path / "mmproj-model.gguf").write_bytes(b"not looked at")
    assert open_checkpoint(tmp_path).digest == opened.digest


def test_a_folder_with_several_gguf_models_asks_which(tmp_path: Path) -> None:
    _gguf(tmp_path)
    (tmp_path / "another.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"2 GGUF models \(another\.gguf, model\.gguf\); give the path of one"):
        open_checkpoint(tmp_path)


def test_a_folder_with_one_split_model_is_that_model(tmp_path: Path) -> None:
    tensors = tiny_llama_gguf()
    names = sorted(tensors)
    for number, part in enumerate((names[:9], names[9:]), 1):
        metadata = (LLAMA_METADATA if number == 1 else {}) | {"split.count": Typed("u16", 2)}
        content = gguf_bytes(metadata, {name: tensors[name] for name in part})
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    for name, array in tiny_llama().items():
        assert np.array_equal(_array(checkpoint, name), array), name


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"neither model\.safetensors, model\.safetensors\.index\.json nor a \.gguf file$"),
        ({"pytorch_model.bin": b""}, r"pytorch_model\.bin is PyTorch's own format: convert it"),
        ({"model.safetensors": b""}, r"config\.json: cannot be read: No such file"),
        ({"model.safetensors": b"", "config.json": b"{"}, r"config\.json is not valid JSON"),
        ({"model.safetensors": b"", "config.json": b"[]"}, r"config\.json must be a JSON object, not a list"),
    ],
)
def test_a_folder_that_holds_no_model_says_what_it_lacks(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_a_path_that_is_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no such file or folder"):
        open_checkpoint(tmp_path / "nothing")


def test_a_safetensors_file_asks_for_its_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA_CONFIG, tiny_llama())
    with pytest.raises(CheckpointError, match=r"give the folder with its config\.json"):
        open_checkpoint(folder / "model.safetensors")


def test_tensors_outlive_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = _gguf(tmp_path)
    tensor = checkpoint.tensor("model.norm.weight")
    checkpoint.close()
    assert np.array_equal(np.frombuffer(tensor.data, np.float32), tiny_llama()["model.norm.weight"])


# Identity


def test_the_digest_is_of_the_content_not_of_the_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = _gguf(tmp_path / "a"), _gguf(tmp_path / "b")
    assert first.digest == second.digest
    assert len(first.digest) == 32
    assert int(first.digest, 16) >= 0


def test_the_digest_knows_every_small_tensor_whole(tmp_path: Path) -> None:
    digests = {_gguf(tmp_path).digest}
    for name in ("model.norm.weight", "model.layers.1.self_attn.q_proj.weight"):
        tensors = tiny_llama()
        tensors[name] = tensors[name].copy()
        tensors[name].reshape(-1)[-7] += 1
        digests.add(open_checkpoint(write_folder(tmp_path / name, LLAMA_CONFIG, tensors)).digest)
    digests.add(open_checkpoint(write_folder(tmp_path / "plain", LLAMA_CONFIG, tiny_llama())).digest)
    assert len(digests) == 4


def test_the_digest_knows_the_description(tmp_path: Path) -> None:
    one = open_checkpoint(write_folder(tmp_path / "a", LLAMA_CONFIG, tiny_llama()))
    other = open_checkpoint(write_folder(tmp_path / "b", LLAMA_CONFIG | {"rope_theta": 20000.0}, tiny_llama()))
    renamed = open_checkpoint(write_folder(tmp_path / "c", LLAMA_CONFIG | {"torch_dtype": "float32"}, tiny_llama()))
    assert one.digest != other.digest
    assert one.digest == renamed.digest, "a key that changes nothing"


# Advice on sampling


def test_generation_defaults_are_those_given_and_no_others(tmp_path: Path) -> None:
    generation = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "do_sample": True, "max_length": 4096}
    checkpoint = open_checkpoint(write_folder(tmp_path, LLAMA_CONFIG, tiny_llama(), generation))
    assert checkpoint.generation_defaults == {"temperature": 0.6, "top_p": 0.9, "top_k": 20}
    assert type(checkpoint.generation_defaults["top_k"]) is int


def test_generation_defaults_of_a_gguf_file_have_the_same_names(tmp_path: Path) -> None:
    advice = {"general.sampling.temp": 0.7, "general.sampling.top_k": 40, "general.sampling.penalty_repeat": 1.1}
    checkpoint = _gguf(tmp_path, LLAMA_METADATA | advice)
    assert checkpoint.generation_defaults == {"temperature": 0.7, "top_k": 40, "repetition_penalty": 1.1}
    assert _gguf(tmp_path).generation_defaults == {}


def test_advice_that_lies_beside_a_gguf_file_counts_before_that_in_it(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "top_p": 0.9}')
    checkpoint = _gguf(tmp_path, LLAMA_METADATA | {"general.sampling.temp": 0.7, "general.sampling.top_k": 40})
    assert checkpoint.generation_defaults == {"temperature": 0.2, "top_p": 0.9, "top_k": 40}


def test_advice_that_is_no_number_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, LLAMA_CONFIG, tiny_llama(), {"temperature": "hot"})
    with pytest.raises(CheckpointError, match=r"generation_config\.json: temperature is 'hot'; a finite number is needed"):
        open_checkpoint(folder)


# Damage of any kind


@settings(max_examples=150)
@given(data=st.data())
def test_any_change_to_metadata_ends_in_a_checkpoint_or_a_checkpoint_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    metadata: dict[str, Any] = dict(LLAMA_METADATA)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*LLAMA_METADATA, "llama.rope.scaling.factor", "llama.attention.key_length"]))
        metadata[key] = data.draw(
            st.one_of(
                st.integers(0, 2**32 - 1),
                st.floats(width=32),
                st.booleans(),
                st.sampled_from(["", "llama", "gemma3", "phi3", "yarn"]),
                st.lists(st.integers(0, 9), max_size=3).map(lambda items: Typed("[i32]", items)),
            )
        )
    path = tmp_path_factory.getbasetemp() / "changed.gguf"
    path.unlink(missing_ok=True)
    path.write_bytes(gguf_bytes(metadata, tiny_llama_gguf()))
    try:
        checkpoint = open_checkpoint(path)
    except CheckpointError:
        return
    assert all(checkpoint.tensor(name).data.nbytes for name in checkpoint.names())
    checkpoint.close()


@settings(max_examples=150)
@given(data=st.data())
def test_any_change_to_a_config_ends_in_a_checkpoint_or_a_checkpoint_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(-3, 10**12), st.floats(), st.sampled_from(["", "silu", "yarn", "x"])
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)),
        max_leaves=6,
    )
    config = dict(LLAMA_CONFIG) | data.draw(st.dictionaries(st.sampled_from(_KEYS), values, min_size=1, max_size=3))
    folder = tmp_path_factory.getbasetemp() / "changed"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(tiny_llama()))
    (folder / "config.json").write_text(json.dumps(config))
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError:
        return
    assert all(checkpoint.tensor(name).data.nbytes for name in checkpoint.names())
    checkpoint.close()


_KEYS = [
    *LLAMA_CONFIG,
    *("rope_scaling", "rope_parameters", "type", "rope_type", "factor", "partial_rotary_factor", "low_freq_factor"),
    *("short_factor", "head_dim", "sliding_window", "layer_types", "mlp_bias", "attention_bias", "quantization_config"),
    "text_config",
]
