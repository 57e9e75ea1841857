"""The decoder against `transformers`, family by family: small random checkpoints, float32, every way to cut the work.

Whole prompts, prompts cut anywhere, ragged batches and decode steps must all give the logits of one plain forward pass.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.cpu.paged_decoder import PagedDecoder
from tests.cpu.test_checkpoints_of_transformers import CONFIGS, SIZES

from headrace.engine.models.weights import Checkpoint, open_checkpoint

LENGTH = 75
"""Longer than every window of the small checkpoints, and no multiple of a block."""

LONGROPE_LENGTH = 150
"""Beyond the trained length of the checkpoints that scale by LongRoPE, which change their frequencies there."""

DYNAMIC_CASE = "llama dynamic"


def random_model(case: str) -> Any:
    """Weights such that attention is neither flat nor one-hot, norms and biases included."""
    architecture, settings = CONFIGS[case]
    torch.manual_seed(11)
    model_class: Any = getattr(transformers, architecture)
    config = model_class.config_class(**(SIZES | settings))
    config._attn_implementation = "eager"  # the only one that knows soft caps
    model = model_class(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            else:
                parameter.normal_(std=0.15)
    return model.eval()


def tokens(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(SIZES["vocab_size"]), k=length)


def reference(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([ids]), use_cache=False).logits[0]
    return logits


def assert_agrees(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    error = float((ours - theirs).abs().max() / theirs.std())
    assert error < 5e-5, f"logits differ by {error:.2e} of their spread"


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Checkpoint]:
    model = random_model(request.param)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    return request.param, model, open_checkpoint(folder)


def length_for(case: str) -> int:
    return LONGROPE_LENGTH if "longrope" in case else LENGTH


def paged(checkpoint: Checkpoint, *, max_model_len: int | None = None, num_blocks: int = 128) -> PagedDecoder:
    length = max_model_len or checkpoint.spec.max_position_embeddings
    return PagedDecoder(checkpoint.spec, checkpoint, max_model_len=length, num_blocks=num_blocks)


def test_a_whole_prompt_has_the_logits_of_a_plain_forward_pass(case: tuple[str, Any, Checkpoint]) -> None:
    name, model, checkpoint = case
    ids = tokens(length_for(name), seed=1)
    decoder = paged(checkpoint)
    decoder.start("a", ids)
    assert_agrees(decoder.finish("a"), reference(model, ids))


def test_a_prompt_cut_anywhere_has_the_same_logits(case: tuple[str, Any, Checkpoint]) -> None:
    name, model, checkpoint = case
    ids = tokens(length_for(name), seed=2)
    theirs = reference(model, ids)
    decoder = paged(checkpoint, num_blocks=len(ids) * 10 + 10)
    for cut in range(1, len(ids)):
        decoder.start(f"cut at {cut}", ids)
        assert_agrees(decoder.finish(f"cut at {cut}", cut), theirs)


def test_a_prompt_token_by_token_has_the_same_logits(case: tuple[str, Any, Checkpoint]) -> None:
    name, model, checkpoint = case
    ids = tokens(length_for(name), seed=3)
    decoder = paged(checkpoint)
    decoder.start("a", ids)
    assert_agrees(decoder.finish("a", *[1] * len(ids)), reference(model, ids))


def test_ragged_batches_give_every_sequence_its_own_logits(case: tuple[str, Any, Checkpoint]) -> None:
    name, model, checkpoint = case
    rng = random.Random(4)
    shortest = 129 if "longrope" in name else 1  # below the trained length, LongRoPE as the library does it is another model
    prompts = {f"s{i}": tokens(rng.randint(shortest, length_for(name)), seed=i) for i in range(7)}
    decoder = paged(checkpoint)
    for sequence, ids in prompts.items():
        decoder.start(sequence, ids)
    parts: dict[str, list[torch.Tensor]] = {sequence: [] for sequence in prompts}
    while remaining := [sequence for sequence in prompts if decoder.num_remaining(sequence)]:
        chosen = rng.sample(remaining, k=rng.randint(1, len(remaining)))
        chunks = {s: rng.choice([1, rng.randint(1, decoder.num_remaining(s))]) for s in chosen}
        for sequence, logits in decoder.step(chunks).items():
            parts[sequence].append(logits)
    for sequence, ids in prompts.items():
        assert_agrees(torch.cat(parts[sequence]), reference(model, ids))


def test_a_shared_prefix_need_not_be_computed_again(case: tuple[str, Any, Checkpoint]) -> None:
    name, model, checkpoint = case
    ids = tokens(length_for(name), seed=5)
    fork = ids[:32] + tokens(length_for(name) - 32, seed=6)
    decoder = paged(checkpoint)
    decoder.start("first", ids)
    decoder.finish("first")
    decoder.start("second", fork, prefix_of="first", num_shared_blocks=2)
    assert_agrees(decoder.finish("second"), reference(model, fork)[32:])


def test_dynamic_scaling_is_that_of_a_text_as_long_as_the_engine_allows(tmp_path: Path) -> None:
    model = random_model(DYNAMIC_CASE)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    length = SIZES["max_position_embeddings"] + 88
    ids = tokens(length, seed=7)
    decoder = paged(checkpoint, max_model_len=length)
    decoder.start("a", ids)
    assert_agrees(decoder.finish("a", 200, 300), reference(model, ids))


def test_longrope_within_the_trained_length_uses_its_short_factors(tmp_path: Path) -> None:
    model = random_model("phi3 longrope")
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    trained = checkpoint.spec.ropes[0].original_max_position
    ids = tokens(trained, seed=8)
    decoder = paged(checkpoint, max_model_len=trained)
    decoder.start("a", ids)
    assert_agrees(decoder.finish("a", 50), reference(model, ids))
