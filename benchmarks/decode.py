"""Batched greedy decode beside `transformers`' generate, same prompts, both of its precisions, interleaved."""

import argparse
import time
from pathlib import Path

from benchmarks.harness import Figure, Result, Target, interleave, ratios
from benchmarks.local_engine import LocalEngine, timed_tokens_per_second
from benchmarks.models import smollm2_path
from benchmarks.texts import prompts

from headrace.engine.host.tokenizer import load_tokenizer


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    engine = LocalEngine(path, enable_prefix_caching=False)
    models = {dtype: transformers_model(path, dtype) for dtype in ("bfloat16", "float32")}
    result = Result(
        "decode", f"Greedy decode, 32-token prompts, {options.max_tokens} tokens each, beside transformers generate"
    )
    for size in options.batch_sizes:
        batch = prompts(tokenizer, [32] * size)
        contenders = {"headrace": lambda batch=batch: timed_tokens_per_second(engine, batch, max_tokens=options.max_tokens)}
        for dtype, model in models.items():
            contenders[f"transformers {dtype}"] = lambda model=model, batch=batch: transformers_tokens_per_second(
                model, batch, max_tokens=options.max_tokens
            )
        runs = interleave(contenders, num_runs=options.num_runs)
        for name, values in runs.items():
            dtype_of = f" {engine.worker.dtype}" if name == "headrace" else ""
            result.figures.append(Figure(f"{name}{dtype_of}, {size} at once", "tok/s", tuple(values)))
        best = max(models, key=lambda dtype: sorted(runs[f"transformers {dtype}"])[options.num_runs // 2])
        ratio = Figure(
            f"headrace / transformers {best}, {size} at once", "x", ratios(runs["headrace"], runs[f"transformers {best}"])
        )
        result.figures.append(ratio)
        if size == 16:
            result.targets.append(Target("at least 2x transformers at 16 sequences", ratio.median, "x", ratio.median >= 2))
    result.save()
    engine.close()


if __name__ == "__main__":
    main()
