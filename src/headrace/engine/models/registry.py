"""Which architectures are served, by the names that checkpoints give them, and why each entry is as it is.

Knows names, and refuses what it does not know by name. Does not know how a description is read (`hf_config.py`,
`gguf_config.py`) nor where tensors lie (`weights.py`). To add a model that differs in data only, add an entry here and a
function there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.base.errors import CheckpointError
from headrace.engine.models import gguf_config, hf_config
from headrace.engine.models.fields import Fields
from headrace.engine.models.gguf_config import GgufModel
from headrace.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class HuggingFaceArchitecture:
    build: Callable[[Fields], ModelSpec]
    model_type: str
    """What a config that names no architecture calls it."""
    why: str
    tensor_prefixes: tuple[tuple[str, str], ...] = ()
    """Beginnings of tensor names and what they are read as, for files that hold more than the decoder."""
    other_parts: tuple[str, ...] = ()
    """Beginnings of tensors that belong to parts not served here."""


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    build: Callable[[GgufModel], ModelSpec]
    why: str
    interleaved: bool = False
    """The rows of its q and k projections are stored with rotary pairs side by side (llama.cpp's "norm" rotation)."""


HUGGING_FACE: dict[str, HuggingFaceArchitecture] = {
    "LlamaForCausalLM": HuggingFaceArchitecture(
        hf_config.llama, "llama", "the plain decoder: Llama 2 and 3, SmolLM 1 and 2, Yi, and many more"
    ),
    "MistralForCausalLM": HuggingFaceArchitecture(hf_config.mistral, "mistral", "a window over every layer"),
    "Qwen2ForCausalLM": HuggingFaceArchitecture(hf_config.qwen2, "qwen2", "biases on q, k and v: Qwen 1.5, 2 and 2.5"),
    "Qwen3ForCausalLM": HuggingFaceArchitecture(hf_config.qwen3, "qwen3", "norms on heads"),
    "GemmaForCausalLM": HuggingFaceArchitecture(hf_config.gemma, "gemma", "norms of 1 + w, scaled embeddings, GELU"),
    "Gemma2ForCausalLM": HuggingFaceArchitecture(hf_config.gemma2, "gemma2", "four norms a layer, soft caps, windows"),
    "Gemma3ForCausalLM": HuggingFaceArchitecture(hf_config.gemma3, "gemma3_text", "two rotary bases, norms on heads"),
    "Gemma3ForConditionalGeneration": HuggingFaceArchitecture(
        hf_config.gemma3_with_vision,
        "gemma3",
        "the 4B to 27B releases carry eyes; their text half is Gemma 3",
        tensor_prefixes=(
            ("language_model.model.", "model."),
            ("model.language_model.", "model."),
            ("language_model.lm_head.", "lm_head."),
        ),
        other_parts=(
            "vision_tower.",
            "multi_modal_projector.",
            "model.vision_tower.",
            "model.multi_modal_projector.",
        ),
    ),
    "Phi3ForCausalLM": HuggingFaceArchitecture(hf_config.phi3, "phi3", "fused projections, longrope: Phi-3, Phi-3.5, Phi-4"),
    "GraniteForCausalLM": HuggingFaceArchitecture(hf_config.granite, "granite", "four multipliers"),
    "SmolLM3ForCausalLM": HuggingFaceArchitecture(hf_config.smollm3, "smollm3", "layers without positions"),
}

GGUF: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture(gguf_config.llama, "Llama, Mistral, SmolLM 1 and 2: one name for all", interleaved=True),
    "qwen2": GgufArchitecture(gguf_config.qwen2, "Qwen 1.5, 2 and 2.5"),
    "qwen3": GgufArchitecture(gguf_config.qwen3, "Qwen 3"),
    "gemma": GgufArchitecture(gguf_config.gemma, "Gemma 1"),
    "gemma2": GgufArchitecture(gguf_config.gemma2, "Gemma 2"),
    "gemma3": GgufArchitecture(gguf_config.gemma3, "Gemma 3, its eyes being another file"),
    "phi3": GgufArchitecture(gguf_config.phi3, "Phi-3, Phi-3.5, Phi-4"),
    "granite": GgufArchitecture(gguf_config.granite, "Granite 3, and the dense Granite 4", interleaved=True),
    "smollm3": GgufArchitecture(gguf_config.smollm3, "SmolLM 3", interleaved=True),
}

_UNSUPPORTED_PARTS = {
    # A key of config.json that, when it says anything, asks for what the decoder does not do
    "num_local_experts": "mixtures of experts are",
    "num_experts": "mixtures of experts are",
    "n_routed_experts": "mixtures of experts are",
}

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
"""Control tokens that end an answer in the chat formats of the supported families, whether a GGUF file says so or not."""

_GGUF_CONTROL_TOKENS = frozenset({3, 4})
"""Token types: control, and user-defined (as some converters mark control tokens)."""


def find_hugging_face(config: Fields) -> tuple[str, HuggingFaceArchitecture]:
    """The name and entry for a config.json; raises CheckpointError that names what is supported."""
    names = config.items_or("architectures", ())
    name = str(names[0]) if names else ""
    if not name:
        model_type = config.text_or("model_type", "")
        by_type = {entry.model_type: known for known, entry in HUGGING_FACE.items()}
        name = by_type.get(model_type, model_type)
    if name not in HUGGING_FACE:
        raise CheckpointError(
            f"{config.source}: architecture {name!r} is not supported; supported are {', '.join(sorted(HUGGING_FACE))}"
        )
    return name, HUGGING_FACE[name]


def spec_from_config(config: Fields, generation: Fields) -> ModelSpec:
    """The ModelSpec of a Hugging Face checkpoint, from its config.json and generation_config.json (which may be empty)."""
    for key, what in _UNSUPPORTED_PARTS.items():
        if config.values.get(key):
            detail = config.values[key]
            method = detail.get("quant_method", "") if isinstance(detail, dict) else detail
            raise CheckpointError(f"{config.source}: {what} not supported ({key}: {method}); use its plain or GGUF form")
    name, architecture = find_hugging_face(config)
    spec = replace(architecture.build(config), architecture=name)
    text = config.section_or_none("text_config") or config
    bos = generation.integer_or("bos_token_id", config.integer_or("bos_token_id", text.integer_or("bos_token_id", None)))
    eos = [token for fields in (generation, config, text) for token in _token_ids(fields, "eos_token_id")]
    return _with_special_tokens(spec, bos, eos)


def find_gguf(metadata: Fields) -> tuple[str, GgufArchitecture]:
    """The name and entry for a GGUF file; raises CheckpointError that names what is supported."""
    name = metadata.text("general.architecture")
    if name not in GGUF:
        raise CheckpointError(
            f"{metadata.source}: architecture {name!r} is not supported; supported are {', '.join(sorted(GGUF))}"
        )
    return name, GGUF[name]


def spec_from_gguf(model: GgufModel) -> ModelSpec:
    """The ModelSpec of a GGUF file."""
    spec = GGUF[model.prefix].build(model)
    fields = model.metadata
    named = [fields.integer_or(f"tokenizer.ggml.{kind}_token_id", None) for kind in ("eos", "eot", "eom")]
    eos = [token for token in named if token is not None] + _end_of_turn_tokens(fields)
    return _with_special_tokens(spec, fields.integer_or("tokenizer.ggml.bos_token_id", None), eos)


def _with_special_tokens(spec: ModelSpec, bos: int | None, eos: Sequence[int]) -> ModelSpec:
    """Ids outside the vocabulary are left out: they can never be drawn, and would not index logits."""
    known = tuple(dict.fromkeys(token for token in eos if 0 <= token < spec.vocab_size))
    has_bos = bos is not None and 0 <= bos < spec.vocab_size
    return replace(spec, bos_token_id=bos if has_bos else None, eos_token_ids=known)


def _token_ids(fields: Fields, key: str) -> list[int]:
    """One id or a list of them."""
    value = fields.values.get(key)
    items = value if isinstance(value, list) else [value] if value is not None else []
    if not all(type(item) is int for item in items):
        raise fields.fail(key, "a token id or a list of them is needed")
    return [item for item in items if isinstance(item, int)]


def _end_of_turn_tokens(metadata: Fields) -> list[int]:
    tokens = metadata.items_or("tokenizer.ggml.tokens", ())
    types = metadata.items_or("tokenizer.ggml.token_type", ())
    found = [tokens.index(text) for text in _END_OF_TURN if text in tokens]
    return [token for token in found if token < len(types) and types[token] in _GGUF_CONTROL_TOKENS]
