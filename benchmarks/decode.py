"""Batched greedy decode and prefill beside `transformers`, same prompts, both of its precisions, interleaved; each of our
implementations of the ops is a contender."""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.harness import Figure, Result, Target, interleave, ratios
from benchmarks.local_engine import LocalEngine, timed_tokens_per_second
from benchmarks.models import smollm2_path
from benchmarks.texts import prompts

from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.ops.capabilities import OPS_NAMES


def transformers_model(path: Path, dtype: str):  # type: ignore[no-untyped-def]
    """The same file as transformers reads it; put together by hand, since its own loader asks for one package more."""
    import torch
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    return model.to(getattr(torch, dtype)).eval()


def transformers_tokens_per_second(model, batch: list[list[int]], *, max_tokens: int) -> float:  # type: ignore[no-untyped-def]
    import torch

    longest = max(map(len, batch))
    token_ids = torch.tensor([[0] * (longest - len(ids)) + ids for ids in batch])
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in batch])
    began = time.perf_counter()
    with torch.inference_mode():
        out = model.generate(
            token_ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            pad_token_id=0,
        )
    assert out.shape == (len(batch), longest + max_tokens)
    return len(batch) * max_tokens / (time.perf_counter() - began)


def prefill_tokens_per_second(engine: LocalEngine, prompt: list[int]) -> float:
    began = time.perf_counter()
    engine.generate([prompt], max_tokens=1)
    return len(prompt) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--prompt-lengths", type=int, nargs="*", default=[512, 2000])
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    engines = {name: LocalEngine(path, ops=name, enable_prefix_caching=False) for name in OPS_NAMES}
    models = {dtype: transformers_model(path, dtype) for dtype in ("bfloat16", "float32")}
    result = Result(
        "decode", f"Greedy decode, 32-token prompts, {options.max_tokens} tokens each, beside transformers generate"
    )
    labels = {name: f"headrace {name} {engine.worker.dtype}" for name, engine in engines.items()}
    for size in options.batch_sizes:
        batch = prompts(tokenizer, [32] * size)
        contenders: dict[str, Callable[[], float]] = {
            labels[name]: partial(timed_tokens_per_second, engine, batch, max_tokens=options.max_tokens)
            for name, engine in engines.items()
        }
        for dtype, model in models.items():
            contenders[f"transformers {dtype}"] = partial(
                transformers_tokens_per_second, model, batch, max_tokens=options.max_tokens
            )
        runs = interleave(contenders, num_runs=options.num_runs)
        result.figures += [Figure(f"{name}, {size} at once", "tok/s", tuple(values)) for name, values in runs.items()]
        best = max(models, key=lambda dtype: sorted(runs[f"transformers {dtype}"])[options.num_runs // 2])
        native = runs[labels["native"]]
        ratio = Figure(
            f"headrace native / transformers {best}, {size} at once", "x", ratios(native, runs[f"transformers {best}"])
        )
        result.figures += [
            ratio,
            Figure(f"headrace native / headrace torch, {size} at once", "x", ratios(native, runs[labels["torch"]])),
        ]
        if size == 16:
            result.targets.append(Target("at least 2x transformers at 16 sequences", ratio.median, "x", ratio.median >= 2))
    for length in options.prompt_lengths:
        (prompt,) = prompts(tokenizer, [length])
        runs = interleave(
            {labels[name]: partial(prefill_tokens_per_second, engine, prompt) for name, engine in engines.items()},
            num_runs=options.num_runs,
        )
        result.figures += [Figure(f"{name}, a prompt of {length}", "tok/s", tuple(values)) for name, values in runs.items()]
    result.save()
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
