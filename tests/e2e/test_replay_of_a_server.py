"""Replay equality for the whole server with the real model: what its engine decided, the simulator decides again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.real_server import RealServer
from tests.patience import PATIENCE_S

from headrace.engine.host.recording import Aborted, Planned, read_recording
from headrace.sim.replay import replay

SHARED = "The water of the headrace turns the wheel, and the wheel turns the stones. " * 8


def ask(server: RealServer, index: int) -> None:
    prompt = SHARED + f"Number {index}:"
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 8 + index, "n": 1 + index % 2, "seed": index}
    leaves = index % 5 == 2
    if leaves:
        body |= {"stream": True, "max_tokens": 60, "ignore_eos": True}
    elif index % 4 == 1:
        body |= {"use_beam_search": True, "max_tokens": 8}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as answer:
        assert answer.status_code == 200
        for _ in answer.iter_bytes():
            if leaves:  # in the middle of the answer
                break


@pytest.mark.usefixtures("smollm2_path")
def test_a_real_servers_plans_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    recording = tmp_path / "steps"
    # Few blocks and a small budget, so that prompts are cut, and preemption and eviction happen.
    limits = (
        "--max-model-len",
        "256",
        "--kv-cache-memory",
        "16MiB",
        "--max-num-batched-tokens",
        "64",
        "--max-num-seqs",
        "8",
    )
    with RealServer(*limits, "--record-steps", str(recording)) as server, ThreadPoolExecutor(max_workers=15) as clients:
        list(clients.map(lambda index: ask(server, index), range(15)))
    events = list(read_recording(recording))
    outcome = replay(events)
    assert outcome.difference is None
    assert outcome.num_requests == 15
    assert outcome.num_steps == sum(isinstance(event, Planned) for event in events)
    assert any(isinstance(event, Aborted) for event in events), "some clients gave up"
    assert any(event.plan.chosen_tokens for event in events if isinstance(event, Planned)), "some searched"
