"""Parameters and paths that clients of this API know and this server does not have, each with the reason.

They are refused by name, never ignored: an answer that silently lacks what was asked for is worse than none. Only a value
that would change nothing (null, an empty list, the default) is let through. Knows names and values; not how bodies are
decoded.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A parameter with the reason for refusing it, and what may be sent all the same."""

    reason: str
    changes_nothing: Callable[[Any, Body], bool]
    """Whether this value, in this body, asks for nothing that would not happen anyway."""


def _refuse(reason: str, *harmless: Any) -> Refusal:
    """Refuses everything but null and `harmless`; 0 does not pass for False."""

    def changes_nothing(value: Any, body: Body) -> bool:
        return value is None or any(type(value) is type(known) and value == known for known in harmless)

    return Refusal(reason, changes_nothing)


def _equals_n(value: Any, body: Body) -> bool:
    return value is None or (type(value) is int and value == (body.get("n") or 1))


def _anything(value: Any, body: Body) -> bool:
    return True


_TOOLS = "give tools and tool_choice instead"
_MULTIMODAL = "the model reads and writes text only"
_GUIDED = "it is called structured_outputs now: {}"
_TRANSFER = "this engine does not exchange its cache with others"

_COMMON: dict[str, Refusal] = {
    # OpenAI
    "store": _refuse("answers are not stored", False),
    "service_tier": _refuse("there are no service tiers", "auto", "default"),
    "prompt_cache_retention": _refuse("how long prompts stay cached cannot be chosen", "in_memory"),
    "prompt_cache_options": _refuse("prompt caching has no options here"),
    "moderation": _refuse("prompts and answers are not moderated"),
    # vLLM
    "guided_json": _refuse(_GUIDED.format('{"json": …}')),
    "guided_regex": _refuse(_GUIDED.format('{"regex": …}')),
    "guided_choice": _refuse(_GUIDED.format('{"choice": …}')),
    "guided_grammar": _refuse(_GUIDED.format('{"grammar": …}')),
    "spaces_between_special_tokens": _refuse("spaces between special tokens are kept as the tokenizer has them", True),
    "return_token_offsets": _refuse("offsets belong to rendered prompts; answers do not report them", False),
    "return_mm_kwargs": _refuse("the model reads text only", True),
    "routed_experts_prompt_start": _refuse("which experts a token was routed to is not reported", 0),
    "watermarking": _refuse("answers are not watermarked", False),
    "kv_transfer_params": _refuse(_TRANSFER),
    "ec_transfer_params": _refuse(_TRANSFER),
    "vllm_xargs": _refuse("there are no engine-specific arguments", {}),
}

CHAT: dict[str, Refusal] = _COMMON | {
    "prompt": _refuse("a text is continued by /v1/completions, a conversation is given as messages"),
    "functions": _refuse(_TOOLS, []),
    "function_call": _refuse(_TOOLS, "none", "auto"),
    "web_search_options": _refuse("the web is not searched"),
    "modalities": _refuse(_MULTIMODAL, ["text"], []),
    "audio": _refuse(_MULTIMODAL),
    "media_io_kwargs": _refuse(_MULTIMODAL, {}),
    "mm_processor_kwargs": _refuse(_MULTIMODAL, {}),
    "prediction": _refuse("predicted outputs are not used"),
    "verbosity": _refuse("models here know no verbosity", "medium"),
    "best_of": Refusal("answers are not generated to be thrown away", _equals_n),
}

COMPLETION: dict[str, Refusal] = _COMMON | {
    "messages": _refuse("a conversation is continued by /v1/chat/completions, a text is given as prompt"),
    "suffix": _refuse("filling in the middle is not supported", ""),
    "prompt_embeds": _refuse("prompts are text or token ids"),
    "return_prompt_text": _refuse("the prompt is what the request holds; echo repeats it", False),
}

TOKENIZE: dict[str, Refusal] = {
    "mm_processor_kwargs": CHAT["mm_processor_kwargs"],
    "media_io_kwargs": CHAT["media_io_kwargs"],
}

DETOKENIZE: dict[str, Refusal] = {}

MESSAGE: dict[str, Refusal] = {
    "function_call": _refuse("give tool_calls instead"),
    "refusal": _refuse("models here do not refuse in a channel of its own; put the text into content"),
    "annotations": _refuse("annotations are not rendered", []),
    "parsed": Refusal("", _anything),
    "audio": _refuse(_MULTIMODAL),
}
"""In messages. The official clients send an earlier answer back with all its empty fields."""

TOOL_CALL: dict[str, Refusal] = {"index": Refusal("", _anything)}
CALLED_FUNCTION: dict[str, Refusal] = {"parsed_arguments": Refusal("", _anything)}
"""In calls: the official clients' own notes on an earlier answer, which they send back."""

STREAM_OPTIONS: dict[str, Refusal] = {"include_obfuscation": _refuse("streams are not padded", False)}

SYNONYMS = {
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "num_return_sequences": "n",
    "stop_sequences": "stop",
    "guided_decoding": "structured_outputs",
}
"""What other servers call our parameters, where spelling alone would not lead there."""

PATHS = {
    "/v1/embeddings": "this server answers and scores, and makes no embeddings",
    "/v1/responses": "of OpenAI's APIs this server speaks /v1/chat/completions and /v1/completions",
    "/v1/messages": "Anthropic's API is not spoken here; use /v1/chat/completions",
    "/completion": "use /v1/completions",
    "/api/generate": "use /v1/completions",
    "/api/chat": "use /v1/chat/completions",
}
"""Where clients of other servers ask, and what they find here."""
