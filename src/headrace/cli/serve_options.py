"""What `headrace serve` may be told: each option once, with its default, its kind and its explanation.

The command line and the configuration file are read from this one table. Knows names, kinds and help; what the values
mean for the engine and the server is for `serve.py` to say.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from typing import Any

from headrace.base.errors import ConfigurationError, nearest
from headrace.base.units import parse_bytes
from headrace.cli.packaged_models import DEFAULT_MODEL
from headrace.engine.grammar.registry import BACKENDS
from headrace.engine.host.config import AUTO_MAX_MODEL_LEN, ClientConfig, EngineConfig, EngineDeath
from headrace.engine.mind.config import SchedulingPolicy
from headrace.engine.ops.capabilities import ATTENTION_BACKENDS, KV_CACHE_DTYPES, QUANTIZATION_NAMES
from headrace.obs.logging import LEVELS, LogFormat
from headrace.server.reasoning import formats as reasoning_formats
from headrace.server.tools import formats as tool_formats

ENGINE = EngineConfig(model_path="")
CLIENT = ClientConfig(served_model_names=())
"""Defaults are theirs, so that none is written down twice."""


class Group(StrEnum):
    MODEL = "model"
    SERVER = "server"
    MEMORY = "memory"
    SCHEDULING = "scheduling"
    LIFE = "life and death"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How values of one kind are written, as a word and in TOML."""

    metavar: str | None
    parse: Callable[[str], Any]
    """Raises ValueError with words that help."""
    toml_types: tuple[type, ...]
    """What a TOML file may give; a text is parsed as on the command line."""
    is_list: bool = False


def _count(text: str) -> int:
    try:
        return int(text.replace("_", ""))
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _real(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"must be a finite number, not {text}")
    return number


def _length(text: str) -> int:
    return AUTO_MAX_MODEL_LEN if text == "auto" else _count(text)


TEXT = Kind(metavar="TEXT", parse=str, toml_types=(str,))
FILE = Kind(metavar="FILE", parse=str, toml_types=(str,))
NAMES = Kind(metavar="NAME", parse=str, toml_types=(str,), is_list=True)
COUNT = Kind(metavar="N", parse=_count, toml_types=(int,))
LENGTH = Kind(metavar="N", parse=_length, toml_types=(int, str))
REAL = Kind(metavar="X", parse=_real, toml_types=(float, int))
SIZE = Kind(metavar="SIZE", parse=parse_bytes, toml_types=(int, str))
SWITCH = Kind(metavar=None, parse=bool, toml_types=(bool,))


def choice(names: Iterable[str]) -> Kind:
    known = tuple(str(name) for name in names)

    def parse(text: str) -> str:
        if text not in known:
            raise ValueError(f"{text!r} is none of {', '.join(known)}{nearest(text, known)}")
        return text

    return Kind(metavar="{" + ",".join(known) + "}", parse=parse, toml_types=(str,))


def option(
    default: Any, kind: Kind, group: Group, explanation: str, *, spellings: tuple[str, ...] = (), shown: str = ""
) -> Any:
    """A field of ServeOptions. `spellings`: other servers' names for it; `shown`: the default in words."""
    metadata = {"kind": kind, "group": group, "help": explanation, "spellings": spellings, "shown": shown}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    model: str = option(
        DEFAULT_MODEL, TEXT, Group.MODEL,
        "a checkpoint folder, a .gguf file, a packaged model (smollm2-135m), or a hub name (org/model[:file.gguf])",
    )  # fmt: skip
    revision: str = option("", TEXT, Group.MODEL, "a hub's branch, tag or commit", shown="the hub's own choice")
    served_model_name: tuple[str, ...] = option(
        (), NAMES, Group.MODEL, "names under which clients may ask for it; the first is the one in answers",
        shown="the model's own name",
    )  # fmt: skip
    dtype: str = option(
        ENGINE.dtype, choice(("auto", "float32", "bfloat16")), Group.MODEL, "how weights and activations are held"
    )
    device: str = option(ENGINE.device, choice(("auto", "cpu", "cuda")), Group.MODEL, "what computes")
    ops: str = option(
        ENGINE.ops, choice(("auto", "native", "torch")), Group.MODEL, "which kernels compute",
        shown="native where they serve the model as stored",
    )  # fmt: skip
    attention_backend: str = option(
        ENGINE.attention_backend, choice(ATTENTION_BACKENDS), Group.MODEL, "whose attention; the rest computes there too",
        shown="that of --ops",
    )  # fmt: skip
    quantization: str = option(
        ENGINE.quantization, choice(QUANTIZATION_NAMES), Group.MODEL,
        "what matrices are turned into as they are loaded; none is --dtype", shown="kept as stored where kernels take them",
    )  # fmt: skip
    batch_invariant: bool = option(
        ENGINE.batch_invariant, SWITCH, Group.MODEL,
        "refuse to start where an answer's bits might depend on what is computed beside it",
    )  # fmt: skip
    threads: int = option(
        ENGINE.num_threads, COUNT, Group.MODEL, "threads that compute", spellings=("--num-threads",), shown="one per core"
    )
    enforce_eager: bool = option(
        ENGINE.enforce_eager, SWITCH, Group.MODEL, "call the model's operations one by one instead of replaying a recording"
    )
    structured_output_backend: str = option(
        ENGINE.structured_output_backend, choice(BACKENDS), Group.MODEL, "the library that enforces forms of answers"
    )
    chat_template: str = option("", FILE, Group.MODEL, "a Jinja chat template to use", shown="the model's own")

    tool_call_parser: str = option(
        "", TEXT, Group.MODEL, f"how the model writes calls of tools: {', '.join(tool_formats.FORMATS)}",
        shown="as its chat template shows",
    )  # fmt: skip
    reasoning_parser: str = option(
        "", TEXT, Group.MODEL, f"how the model marks its reasoning: {', '.join(reasoning_formats.FORMATS)}, none",
        shown="as its chat template shows",
    )  # fmt: skip

    host: str = option("127.0.0.1", TEXT, Group.SERVER, "the address to listen on; 0.0.0.0 is every one")
    port: int = option(8000, COUNT, Group.SERVER, "the port to listen on; 0 takes a free one")
    api_key: str = option(
        "", TEXT, Group.SERVER, "what clients must send as `Authorization: Bearer ...`",
        shown="HEADRACE_API_KEY, or everybody may ask",
    )  # fmt: skip
    allowed_origins: tuple[str, ...] = option(
        (), NAMES, Group.SERVER, "web origins whose pages may ask from a browser; * is all", shown="none"
    )
    trust_request_chat_template: bool = option(False, SWITCH, Group.SERVER, "let clients send chat templates of their own")
    access_log: bool = option(True, SWITCH, Group.SERVER, "write a line for every request")
    log_level: str = option("info", choice(LEVELS), Group.SERVER, "from which level on to write")
    log_format: str = option(str(LogFormat.PLAIN), choice(LogFormat), Group.SERVER, "for people or for machines")
    drain_timeout_s: float = option(30.0, REAL, Group.SERVER, "how long open answers may go on after Ctrl-C or SIGTERM")

    max_model_len: int = option(
        ENGINE.max_model_len, LENGTH, Group.MEMORY,
        "most tokens of one sequence; `auto` takes what the KV cache can hold", shown="the model's own",
    )  # fmt: skip
    kv_cache_memory: int = option(
        ENGINE.kv_cache_bytes, SIZE, Group.MEMORY, "memory for the KV cache, for example 2GiB",
        spellings=("--kv-cache-memory-bytes",), shown="by --memory-fraction",
    )  # fmt: skip
    memory_fraction: float = option(
        ENGINE.memory_fraction, REAL, Group.MEMORY,
        "share of the memory still free once the weights are loaded, for the KV cache",
        spellings=("--gpu-memory-utilization",), shown="0.4 of the machine's, 0.9 of a GPU's",
    )  # fmt: skip
    kv_cache_dtype: str = option(
        ENGINE.kv_cache_dtype, choice(KV_CACHE_DTYPES), Group.MEMORY, "how keys and values are held; fp8 is fp8_e4m3"
    )
    block_size: int = option(ENGINE.block_size, COUNT, Group.MEMORY, "tokens per KV block")
    enable_prefix_caching: bool = option(
        ENGINE.enable_prefix_caching, SWITCH, Group.MEMORY, "reuse the KV of equal beginnings"
    )

    max_num_seqs: int = option(ENGINE.max_num_seqs, COUNT, Group.SCHEDULING, "most sequences that run at once")
    max_num_batched_tokens: int = option(
        ENGINE.max_num_batched_tokens, COUNT, Group.SCHEDULING, "the token budget: most tokens of one step",
        shown="512 on a CPU, 2048 on a GPU",
    )  # fmt: skip
    max_tokens_per_prompt_chunk: int = option(
        ENGINE.max_tokens_per_prompt_chunk, COUNT, Group.SCHEDULING,
        "most tokens of one step for long prompts, all together, while others want some too",
        spellings=("--long-prefill-token-threshold",), shown="half of the budget",
    )  # fmt: skip
    min_prompt_tokens_per_step: int = option(
        ENGINE.min_prompt_tokens_per_step, COUNT, Group.SCHEDULING,
        "beside streams, prompts share in each step the budget divided by their number, but no fewer tokens than this",
        shown="128 on a CPU; on a GPU prompts have all of the budget",
    )  # fmt: skip
    max_num_queued_requests: int = option(
        ENGINE.max_num_queued_requests, COUNT, Group.SCHEDULING, "requests that may wait; more are refused with 503"
    )
    scheduling_policy: str = option(
        str(ENGINE.policy), choice(SchedulingPolicy), Group.SCHEDULING,
        "who goes first: in order of arrival, or by each request's `priority`",
    )  # fmt: skip
    max_steps_in_flight: int = option(
        ENGINE.max_steps_in_flight, COUNT, Group.SCHEDULING, "steps planned ahead; 1 waits for each before the next"
    )

    on_engine_death: str = option(
        str(CLIENT.on_engine_death), choice(EngineDeath), Group.LIFE, "what to do when the engine process dies"
    )
    hang_timeout_s: float = option(
        CLIENT.hang_timeout_s, REAL, Group.LIFE, "an engine that answers nothing for so long is reported by /health"
    )
    record_steps: str = option(
        "", FILE, Group.LIFE, "record what the engine decides, for `headrace simulate --replay`", shown="not recorded"
    )


_FIELDS: dict[str, "Field[Any]"] = {entry.name: entry for entry in fields(ServeOptions)}

_TITLES = {
    Group.MODEL: ("the model", None),
    Group.SERVER: ("the server", None),
    Group.MEMORY: ("memory", "how much the engine can hold at once"),
    Group.SCHEDULING: ("scheduling", "how much the engine computes at once, and for whom first"),
    Group.LIFE: ("life and death", None),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Every option, in groups. Those not given leave no trace in the namespace: a file may still say something."""
    groups = {group: parser.add_argument_group(title, about) for group, (title, about) in _TITLES.items()}
    for name, entry in _FIELDS.items():
        metadata = entry.metadata
        kind: Kind = metadata["kind"]
        common: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": _help(entry)}
        flags = (_flag(name), *metadata["spellings"])
        group = groups[metadata["group"]]
        if name == "model":
            common.pop("dest")
            group.add_argument(name, metavar="MODEL", nargs="?", **common)
        elif kind is SWITCH:
            group.add_argument(*flags, action=argparse.BooleanOptionalAction, **common)
        else:
            common |= {"nargs": "+"} if kind.is_list else {}
            group.add_argument(*flags, metavar=kind.metavar, type=_as_argument(kind), **common)


def merge(given: Mapping[str, Any], from_file: Mapping[str, Any]) -> ServeOptions:
    """The command line's word counts, then the file's, then the default."""
    values: dict[str, Any] = {**from_file, **{name: value for name, value in given.items() if name in _FIELDS}}
    as_fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return ServeOptions(**as_fields)


def values_of_table(table: Mapping[str, object], source: str) -> dict[str, Any]:
    """The options that a TOML table gives. Raises ConfigurationError for a name or a value that is none."""
    values = {}
    for key, value in table.items():
        entry = _FIELDS.get(key)
        if entry is None:
            raise ConfigurationError(f"{source}: there is no option {key!r}{nearest(key, _FIELDS)}")
        kind: Kind = entry.metadata["kind"]
        items = value if kind.is_list and isinstance(value, list) else [value]
        read = [_from_toml(kind, item, f"{source}: {key}") for item in items]
        values[key] = tuple(read) if kind.is_list else read[0]
    return values


def _from_toml(kind: Kind, value: object, place: str) -> Any:
    # In Python a bool is an int, in TOML it is not.
    if type(value) not in kind.toml_types:
        wanted = " or ".join(_TOML_NAMES[type_] for type_ in kind.toml_types)
        raise ConfigurationError(f"{place} must be {wanted}, not {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigurationError(f"{place} must be a finite number, not {value}")
    if not isinstance(value, str):
        return value
    try:
        return kind.parse(value)
    except ValueError as error:
        raise ConfigurationError(f"{place}: {error}") from None


_TOML_NAMES: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def _as_argument(kind: Kind) -> Callable[[str], Any]:
    """argparse shows the words of its own exception only."""

    def parse(text: str) -> Any:
        try:
            return kind.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _help(entry: "Field[Any]") -> str:
    assert entry.default is not MISSING
    default = entry.metadata["shown"] or (
        "yes" if entry.default is True else "no" if entry.default is False else entry.default
    )
    return f"{entry.metadata['help']} (default: {default})".replace("%", "%%")
