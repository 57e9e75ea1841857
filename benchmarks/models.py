"""Where the benchmarks find the default model: in the cache, fetched by `headrace pull` if need be."""

from pathlib import Path

from headrace.cli.model_names import resolve_model


def smollm2_path() -> Path:
    return resolve_model("smollm2-135m")
