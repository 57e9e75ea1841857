"""What a checkpoint's author proposes for sampling. Knows `generation_config.json`; decides nothing."""

import json
from pathlib import Path

from headrace.base.errors import CheckpointError

SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(model_path: Path) -> dict[str, float | int]:
    """The fields above that the checkpoint folder gives; none for a GGUF file, which has no such description."""
    path = model_path / "generation_config.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds no object")
    defaults: dict[str, float | int] = {}
    for name in SAMPLING_FIELDS:
        value = found.get(name)
        if value is None:
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise CheckpointError(f"{path}: {name} is {value!r}, not a number")
        defaults[name] = value
    return defaults
