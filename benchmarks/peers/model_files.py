"""The models in the forms that the peers want, made once from the one that everybody can fetch.

Knows file formats. Does not know engines.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.models import smollm2_path
from benchmarks.peers.installation import FOLDER

MODELS = FOLDER / "models"


def shipped() -> Path:
    """SmolLM2-135M-Instruct, Q4_1 with a Q8_0 head."""
    return smollm2_path()


def q4_0() -> Path:
    """The same model in the 4-bit form that peers multiply fastest with: its Q4_1 matrices rounded once more."""
    path = MODELS / "SmolLM2-135M-Instruct.Q4_0.gguf"
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        _requantize(shipped(), unfinished, "Q4_1", "Q4_0")
        unfinished.rename(path)
    return path


def _requantize(source: Path, target: Path, old: str, new: str) -> None:
    """Every tensor of one format in another; all else stays."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    writer.add_file_type(int(gguf.LlamaFileType[f"MOSTLY_{new}"]))
    old_type, new_type = gguf.GGMLQuantizationType[old], gguf.GGMLQuantizationType[new]
    for tensor in reader.tensors:
        if tensor.tensor_type == old_type:
            numbers = gguf.quants.dequantize(tensor.data, old_type)
            writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, new_type), raw_dtype=new_type)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def bfloat16_folder() -> Path:
    """The same model as a Hugging Face checkpoint in BF16."""
    folder = MODELS / "SmolLM2-135M-Instruct-bf16"
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    import transformers
    from safetensors.torch import save_file
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    source = shipped()
    config: Any = transformers.AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    model: Any = transformers.AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=model)["tensors"]
    config.torch_dtype = "bfloat16"
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    tokenizer.save_pretrained(folder)
    save_file({name: tensor.to(torch.bfloat16).contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors", {"format": "pt"})  # fmt: skip
    return folder


QWEN3 = {
    "hidden": 1024, "layers": 28, "heads": 16, "kv_heads": 8, "head_dim": 128, "inner": 3072, "vocabulary": 151_936,
    "context": 4096,
}  # fmt: skip
"""Qwen3-0.6B's shape."""


def random_qwen3() -> Path:
    """Random numbers in Qwen3-0.6B's shape: Q4_0, head and embedding in Q8_0. Speed only: what it says is noise."""
    path = MODELS / "random-qwen3-0.6b.Q4_0.gguf"
    if path.exists():
        return path
    import gguf

    MODELS.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    writer = gguf.GGUFWriter(str(unfinished), "qwen3")
    shape = QWEN3
    writer.add_block_count(shape["layers"])
    writer.add_context_length(shape["context"])
    writer.add_embedding_length(shape["hidden"])
    writer.add_feed_forward_length(shape["inner"])
    writer.add_head_count(shape["heads"])
    writer.add_head_count_kv(shape["kv_heads"])
    writer.add_key_length(shape["head_dim"])
    writer.add_value_length(shape["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1_000_000.0)
    _add_tokenizer(writer, shape["vocabulary"])
    rng = np.random.default_rng(0)
    for name, size, kind in _qwen3_tensors():
        if kind is None:
            writer.add_tensor(name, np.ones(size, np.float32))
            continue
        numbers = rng.standard_normal(size, np.float32) * np.float32(0.5 / np.sqrt(size[-1]))
        quantized = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(name, quantized, raw_dtype=gguf.GGMLQuantizationType[kind])
    _finish(writer)
    unfinished.rename(path)
    return path


def _add_tokenizer(writer: Any, size: int) -> None:
    """Single bytes, one merge, and names for the rest: enough for engines that will not start without one."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*letters, "ab", *(f"<unused{i}>" for i in range(size - len(letters) - 2)), "<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (size - 1) + [3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(size - 1)
    writer.add_pad_token_id(size - 1)


def _qwen3_tensors() -> Iterator[tuple[str, tuple[int, ...], str | None]]:
    hidden, inner = QWEN3["hidden"], QWEN3["inner"]
    q, kv = QWEN3["heads"] * QWEN3["head_dim"], QWEN3["kv_heads"] * QWEN3["head_dim"]
    yield "token_embd.weight", (QWEN3["vocabulary"], hidden), "Q8_0"
    yield "output_norm.weight", (hidden,), None
    for layer in range(QWEN3["layers"]):
        for name, size in (
            ("attn_q", (q, hidden)), ("attn_k", (kv, hidden)), ("attn_v", (kv, hidden)), ("attn_output", (hidden, q)),
            ("ffn_gate", (inner, hidden)), ("ffn_up", (inner, hidden)), ("ffn_down", (hidden, inner)),
        ):  # fmt: skip
            yield f"blk.{layer}.{name}.weight", size, "Q4_0"
        for name, width in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", QWEN3["head_dim"]),
                            ("attn_k_norm", QWEN3["head_dim"])):  # fmt: skip
            yield f"blk.{layer}.{name}.weight", (width,), None


def vocabulary(path: Path) -> int:
    """Token ids below this are in every model's vocabulary, and none of them is special."""
    if path == MODELS / "random-qwen3-0.6b.Q4_0.gguf":
        return QWEN3["vocabulary"] - 1
    if path.is_dir():
        return int(json.loads((path / "config.json").read_text())["vocab_size"])
    return 49_000
