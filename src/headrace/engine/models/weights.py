"""A checkpoint, whatever its files: a ModelSpec and its tensors under canonical names.

Knows how Hugging Face and llama.cpp name and fuse the tensors of a decoder, which tensors a ModelSpec asks for, and in what
shapes. Does not know the containers (`gguf.py`, `safetensors.py`), the descriptions (`registry.py`) or arrays.

Canonical names are Hugging Face's for Llama: `model.embed_tokens.weight`; for every layer, after `model.layers.N.`,

    self_attn.{q,k,v,o}_proj.{weight,bias}    mlp.{gate,up,down}_proj.{weight,bias}    (biases only where the spec has them)
    input_layernorm.weight    post_attention_layernorm.weight
    self_attn.{q,k}_norm.weight                             (norms on heads)
    {pre,post}_feedforward_layernorm.weight                 (post norms)

then `model.norm.weight` and, unless tied to the embeddings, `lm_head.weight`. Fused projections are shown as what they
were fused from.
"""

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Protocol

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import Fields
from headrace.engine.models.gguf import GgufFile
from headrace.engine.models.gguf_config import GgufModel, gguf_fields
from headrace.engine.models.hf_quantization import QuantizedFiles, read_quantization
from headrace.engine.models.registry import (
    HuggingFaceArchitecture,
    find_gguf,
    find_hugging_face,
    spec_from_config,
    spec_from_gguf,
)
from headrace.engine.models.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsFiles, read_json_object
from headrace.engine.models.tensor_files import StoredTensor, TensorFiles
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.storage import STORAGE_BLOCKS, row_bytes
from headrace.specs.model import ModelSpec

_NUM_NAMED = 3
"""How many tensors an error message names before it only counts."""

_FOR_TOKENIZERS = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})
"""The metadata of a GGUF file that says nothing of a model, and is long."""

_NUM_SAMPLES = 4
_SAMPLE_BYTES = 1024


class Checkpoint(Protocol):
    """An open model on disk."""

    @property
    def spec(self) -> ModelSpec: ...
    @property
    def path(self) -> Path:
        """As it was asked for."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the content, wherever it lies: 32 hexadecimal digits of BLAKE2b.

        Covers the spec; every file's header (names, types, shapes, offsets, and for GGUF all metadata); and of every
        tensor its length and four samples of a kilobyte, evenly spread from its first byte to its last. Tensors up to four
        kilobytes are covered whole. Two files that differ only between samples share a digest: that takes an editor of
        single weights, while any training or quantising changes all.
        """
        ...

    @property
    def weight_format(self) -> str:
        """How most weights of the layers are stored: `Q4_1`, `bfloat16`, ..."""
        ...

    @property
    def generation_defaults(self) -> dict[str, float | int]:
        """What the model's makers advise, where they do: temperature, top_p, top_k, min_p, repetition_penalty."""
        ...

    def names(self) -> list[str]:
        """The canonical name of every tensor that the spec asks for."""
        ...

    def matrix_storages(self) -> frozenset[str]:
        """How projections and tables are stored: keys of `STORAGE_BLOCKS`."""
        ...

    def tensor(self, name: str) -> HostTensor:
        """By canonical name; raises CheckpointError where there is none of that name."""
        ...

    def release_pages(self) -> None:
        """Once the weights are loaded: lets go of the memory that the files' pages take. Tensors remain readable."""
        ...

    def close(self) -> None:
        """Gives the files back; tensors taken before remain readable."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Opens a Hugging Face folder, a GGUF file (any shard of a split one), or a folder that holds one GGUF model.

    All that the spec asks for is there, in the right shapes and in formats that can be read; otherwise CheckpointError says
    what is wrong, by file and tensor.
    """
    if path.is_dir():
        if (path / INDEX_NAME).is_file() or (path / SINGLE_NAME).is_file():
            return _open_hugging_face(path)
        return _open_gguf(path, _only_gguf(path))
    if not path.exists():
        raise CheckpointError(f"{path}: there is no such file or folder")
    if path.suffix == ".safetensors":
        raise CheckpointError(f"{path}: a safetensors file alone is no model; give the folder with its config.json")
    return _open_gguf(path, path)


# The two kinds


def _open_hugging_face(folder: Path) -> "MappedCheckpoint":
    config = Fields(str(folder / "config.json"), read_json_object(folder / "config.json"))
    generation = _generation_config(folder)
    spec = spec_from_config(config, generation)
    _, architecture = find_hugging_face(config)
    quantization = read_quantization(config)
    files: TensorFiles = SafetensorsFiles(folder)
    try:
        if quantization is not None:
            files = QuantizedFiles(files, quantization)
        stored = _hugging_face_names(folder, architecture, files.tensors)
        return _assemble(folder, spec, files, stored, defaults=_defaults(generation, _CONFIG_DEFAULTS))
    except BaseException:
        files.close()
        raise


def _open_gguf(path: Path, file_path: Path) -> "MappedCheckpoint":
    file = GgufFile(file_path, without=_FOR_TOKENIZERS)
    try:
        metadata = gguf_fields(str(file_path), file.metadata)
        prefix, architecture = find_gguf(metadata)
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        spec = spec_from_gguf(GgufModel(metadata, prefix, shapes, dict(_rope_factors(file))))
        stored = _gguf_names(file_path, spec, file.tensors)
        file.forget_metadata()
        return _assemble(
            path,
            spec,
            file,
            stored,
            defaults={
                **_defaults(metadata, _GGUF_DEFAULTS),
                **_defaults(_generation_config(file_path.parent), _CONFIG_DEFAULTS),
            },
            interleaved=architecture.interleaved,
        )
    except BaseException:
        file.close()
        raise


def _generation_config(folder: Path) -> Fields:
    """What lies beside the weights; empty where nothing does."""
    path = folder / "generation_config.json"
    return Fields(str(path), read_json_object(path) if path.is_file() else {})


def _only_gguf(folder: Path) -> Path:
    """The one model among a folder's GGUF files; shards count once, projectors for other senses not at all."""
    found = sorted(path for path in folder.glob("*.gguf") if not path.name.startswith("mmproj"))
    models = [path for path in found if not re.search(r"-(?!00001)\d{5}-of-\d{5}\.gguf$", path.name)]
    if len(models) == 1:
        return models[0]
    if models:
        raise CheckpointError(
            f"{folder}: it holds {len(models)} GGUF models ({', '.join(path.name for path in models)}); give the path of one"
        )
    others = sorted(path.name for pattern in ("*.bin", "*.pth", "*.pt") for path in folder.glob(pattern))
    hint = f" ({others[0]} is PyTorch's own format: convert it to safetensors)" if others else ""
    raise CheckpointError(f"{folder}: it holds neither {SINGLE_NAME}, {INDEX_NAME} nor a .gguf file{hint}")


# Names


_RECOMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
"""Ends of tensor names that old checkpoints carry and that are computed anew here."""

_GGUF_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_ROPE_FACTORS = ("rope_freqs", "rope_factors_short", "rope_factors_long")


def _hugging_face_names(path: Path, architecture: HuggingFaceArchitecture, tensors: Iterable[str]) -> dict[str, str]:
    """Canonical or fused name -> name in the file. Parts that are not served, and buffers, are left out."""
    served = [name for name in tensors if not name.startswith(architecture.other_parts) and not name.endswith(_RECOMPUTED)]
    return _unique(path, ((_without_prefix(architecture, name), name) for name in served))


def _without_prefix(architecture: HuggingFaceArchitecture, name: str) -> str:
    for beginning, read_as in architecture.tensor_prefixes:
        if name.startswith(beginning):
            return read_as + name.removeprefix(beginning)
    return name


def _unique(path: Path, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    stored: dict[str, str] = {}
    for canonical, name in pairs:
        if canonical in stored:
            raise CheckpointError(f"{path}: tensors {stored[canonical]!r} and {name!r} are both {canonical!r}")
        stored[canonical] = name
    return stored


def _gguf_names(path: Path, spec: ModelSpec, tensors: Iterable[str]) -> dict[str, str]:
    """Canonical or fused name -> name in the file. Names that mean nothing here stay as they are."""
    names = list(tensors)
    known = frozenset(names)
    return _unique(path, ((_gguf_name(spec, name, known), name) for name in names if not _is_rope_factor(name)))


def _gguf_name(spec: ModelSpec, name: str, names: frozenset[str]) -> str:
    match = re.fullmatch(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)", name)
    if match is None:
        return _GGUF_TOP.get(name, name)
    layer, part, kind = match.groups()
    if part == "ffn_norm":
        canonical = "pre_feedforward_layernorm" if spec.post_norms else "post_attention_layernorm"
    elif part == "ffn_up" and f"blk.{layer}.ffn_gate.{kind}" not in names:
        canonical = "mlp.gate_up_proj"
    elif part in _GGUF_LAYER:
        canonical = _GGUF_LAYER[part]
    else:
        return name
    return f"model.layers.{layer}.{canonical}.{kind}"


def _is_rope_factor(name: str) -> bool:
    return name.removesuffix(".weight") in _GGUF_ROPE_FACTORS


def _rope_factors(file: GgufFile) -> Iterator[tuple[str, tuple[float, ...]]]:
    for kind in _GGUF_ROPE_FACTORS:
        tensor = file.tensors.get(f"{kind}.weight")
        if tensor is not None:
            if tensor.storage != "F32" or len(tensor.shape) != 1:
                raise CheckpointError(
                    f"{file.file_of(tensor.name)}: tensor {tensor.name!r} must be a list of F32 numbers, not "
                    f"{tensor.storage} of shape {tensor.shape}"
                )
            yield kind, struct.unpack(f"<{tensor.shape[0]}f", file.data(tensor.name))


# What a spec asks for


def expected_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder asks for, in the order it does."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size)}
    layer_shapes = _layer_shapes(spec)
    for layer in range(spec.num_layers):
        shapes.update({f"model.layers.{layer}.{name}": shape for name, shape in layer_shapes.items()})
    shapes["model.norm.weight"] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    q_rows, kv_rows = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    projections = {
        # Rows, columns, and whether there is a bias
        "self_attn.q_proj": (q_rows, hidden, spec.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, spec.qkv_bias),
        "self_attn.o_proj": (hidden, q_rows, spec.output_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    for name, (rows, columns, has_bias) in projections.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if has_bias:
            shapes[f"{name}.bias"] = (rows,)
    if spec.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (spec.head_dim,)
    shapes["post_attention_layernorm.weight"] = (hidden,)
    if spec.post_norms:
        shapes["pre_feedforward_layernorm.weight"] = shapes["post_feedforward_layernorm.weight"] = (hidden,)
    return shapes


_FUSED = {
    # A fused projection: what its rows hold, in order
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}


@dataclass(frozen=True, slots=True)
class _Part:
    """Where a canonical tensor's bytes are: rows of a tensor in the file."""

    stored: StoredTensor
    first_row: int
    shape: tuple[int, ...]
    interleaved_heads: int

    def bytes_of(self, whole: memoryview) -> memoryview:
        if self.shape == self.stored.shape:
            return whole
        bytes_per_row = row_bytes(self.stored.storage, prod(self.shape[1:]))
        start = self.first_row * bytes_per_row
        return whole[start : start + self.shape[0] * bytes_per_row]


class MappedCheckpoint:
    """A Checkpoint over memory-mapped files."""

    def __init__(
        self,
        path: Path,
        spec: ModelSpec,
        files: TensorFiles,
        parts: dict[str, _Part],
        generation_defaults: dict[str, float | int],
    ) -> None:
        self.path = path
        self.spec = spec
        self.generation_defaults = generation_defaults
        self.weight_format = _weight_format(parts)
        self.digest = _digest(spec, files)
        self._files = files
        self._parts = parts

    def names(self) -> list[str]:
        return list(self._parts)

    def matrix_storages(self) -> frozenset[str]:
        return frozenset(part.stored.storage for part in self._parts.values() if len(part.shape) > 1)

    def tensor(self, name: str) -> HostTensor:
        part = self._parts.get(name)
        if part is None:
            raise CheckpointError(f"{self.path}: it has no tensor {name!r}")
        data = part.bytes_of(self._files.data(part.stored.name))
        return HostTensor(name, part.stored.storage, part.shape, data, part.interleaved_heads)

    def release_pages(self) -> None:
        self._files.release_pages()

    def close(self) -> None:
        self._files.close()


def _assemble(
    path: Path,
    spec: ModelSpec,
    files: TensorFiles,
    stored: dict[str, str],
    *,
    defaults: dict[str, float | int],
    interleaved: bool = False,
) -> MappedCheckpoint:
    """Matches what the spec asks for with what the files hold; nothing may be missing, misshapen or left over."""
    spec, stored = _settle_tied_head(spec, files, stored)
    parts: dict[str, _Part] = {}
    used: set[str] = set()
    missing: list[str] = []
    for name, shape in expected_shapes(spec).items():
        found, first_row, stored_shape = stored.get(name), 0, shape
        if found is None:
            fused, first_row, num_fused_rows = _fused(spec, name)
            found, stored_shape = stored.get(fused), (num_fused_rows, *shape[1:])
        if found is None:
            missing.append(name)
            continue
        _check_tensor(files, found, stored_shape)
        used.add(found)
        heads = _interleaved_heads(spec, name) if interleaved else 0
        parts[name] = _Part(files.tensors[found], first_row, shape, heads)
    if missing:
        raise CheckpointError(f"{path}: {_counted(missing, 'tensor')} missing, for a {spec.architecture}")
    unexpected = [name for name in stored.values() if name not in used]
    if unexpected:
        raise CheckpointError(
            f"{path}: {_counted(sorted(unexpected), 'tensor')} not known in a {spec.architecture}; "
            "to leave them out would change the model"
        )
    _check_interleaving(path, spec, interleaved=interleaved)
    return MappedCheckpoint(path, spec, files, parts, defaults)


def _settle_tied_head(spec: ModelSpec, files: TensorFiles, stored: dict[str, str]) -> tuple[ModelSpec, dict[str, str]]:
    """A spec with tied embeddings needs no head. One that lies there all the same is a copy, or the truth."""
    embedding, head = stored.get("model.embed_tokens.weight"), stored.get("lm_head.weight")
    if not spec.tie_word_embeddings or head is None:
        return spec, stored
    without_head = {name: found for name, found in stored.items() if name != "lm_head.weight"}
    if embedding is None:
        return spec, {**without_head, "model.embed_tokens.weight": head}
    if files.tensors[head].storage == files.tensors[embedding].storage and files.data(head) == files.data(embedding):
        return spec, without_head
    return replace(spec, tie_word_embeddings=False), stored


def _fused(spec: ModelSpec, name: str) -> tuple[str, int, int]:
    """The fused tensor that may hold `name` instead: its name, where in it `name` begins, its number of rows."""
    match = re.fullmatch(r"(model\.layers\.\d+\.)(.*)(\.weight|\.bias)", name)
    if match is not None:
        layer, projection, kind = match.groups()
        shapes = _layer_shapes(spec)
        for fused, members in _FUSED.items():
            if projection in members:
                rows = [shapes[f"{member}.weight"][0] for member in members]
                return f"{layer}{fused}{kind}", sum(rows[: members.index(projection)]), sum(rows)
    return "", 0, 0


def _check_tensor(files: TensorFiles, name: str, shape: tuple[int, ...]) -> None:
    tensor = files.tensors[name]
    if tensor.shape != shape:
        raise CheckpointError(
            f"{files.file_of(name)}: tensor {name!r} has the shape {tensor.shape}; the model's description asks for {shape}"
        )
    if tensor.storage not in STORAGE_BLOCKS:
        raise CheckpointError(
            f"{files.file_of(name)}: tensor {name!r} is stored as {tensor.storage}, which cannot be read; "
            f"what can is {', '.join(sorted(STORAGE_BLOCKS))}"
        )


def _interleaved_heads(spec: ModelSpec, name: str) -> int:
    if ".q_proj." in name:
        return spec.num_heads
    return spec.num_kv_heads if ".k_proj." in name else 0


def _check_interleaving(path: Path, spec: ModelSpec, *, interleaved: bool) -> None:
    if interleaved and any(rope.rotary_dim != spec.head_dim for rope in spec.ropes):
        raise CheckpointError(f"{path}: heads with interleaved pairs that rotate only in part are not supported")


def _counted(names: list[str], what: str) -> str:
    """`tensor 'a' is`, `tensors 'a', 'b' are`, `5 tensors ('a', 'b', 'c', ...) are`."""
    quoted = [repr(name) for name in names[:_NUM_NAMED]]
    if len(names) == 1:
        return f"{what} {quoted[0]} is"
    if len(names) <= _NUM_NAMED:
        return f"{what}s {', '.join(quoted)} are"
    return f"{len(names)} {what}s ({', '.join(quoted)}, ...) are"


_FLOAT_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def _weight_format(parts: dict[str, _Part]) -> str:
    num_elements: Counter[str] = Counter()
    for name, part in parts.items():
        if name.startswith("model.layers."):
            num_elements[part.stored.storage] += prod(part.shape)
    storage = num_elements.most_common(1)[0][0]
    return _FLOAT_NAMES.get(storage, storage)


def _digest(spec: ModelSpec, files: TensorFiles) -> str:
    hasher = hashlib.blake2b(digest_size=16, person=b"headrace-model")
    hasher.update(repr(spec).encode())
    for header in files.header():
        hasher.update(len(header).to_bytes(8, "little"))
        hasher.update(header)
    for data in files.stored_bytes():
        hasher.update(len(data).to_bytes(8, "little"))
        for sample in _samples(data):
            hasher.update(sample)
    return hasher.hexdigest()


def _samples(data: memoryview) -> Iterator[memoryview]:
    if len(data) <= _NUM_SAMPLES * _SAMPLE_BYTES:
        yield data
        return
    last = len(data) - _SAMPLE_BYTES
    for i in range(_NUM_SAMPLES):
        start = last * i // (_NUM_SAMPLES - 1)
        yield data[start : start + _SAMPLE_BYTES]


# Advice on sampling

_CONFIG_DEFAULTS = {name: name for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
_GGUF_DEFAULTS = {
    "temperature": "general.sampling.temp",
    "top_p": "general.sampling.top_p",
    "top_k": "general.sampling.top_k",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


def _defaults(fields: Fields, keys: Mapping[str, str]) -> dict[str, float | int]:
    """The advice that is given, under the names that requests use."""
    defaults: dict[str, float | int] = {}
    for name, key in keys.items():
        value = fields.integer_or(key, None) if name == "top_k" else fields.number_or(key, None)
        if value is not None:
            defaults[name] = value
    return defaults
