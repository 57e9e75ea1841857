"""An engine process without a model: the real loop, mind and executor around a worker that writes the alphabet.

What `model_path` says is how it behaves:
    alphabet           a, b, c … after any prompt
    alphabet/patient   the same, each step when a file of that name, `go`, exists in the folder that follows
    refuses            fails while starting, with a ConfigurationError
    crashes            ends while starting, without a word
    broken             its executor fails in the third step
    deaf               answers nothing once it is ready
"""

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.base.system_clock import SystemClock
from headrace.engine.executor.in_process import InProcessExecutor
from headrace.engine.host.connection import engine_end
from headrace.engine.host.loop import EngineLoop, describe_failure
from headrace.engine.host.messages import EngineReady, StartupPhase
from headrace.engine.host.process import Launch
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.step import SampledToken, StepPlan, StepResult

NUM_BLOCKS = 64


class AlphabetWorker:
    def __init__(self, behaviour: str) -> None:
        self._gate = Path(behaviour.removeprefix("alphabet/patient")) if "patient" in behaviour else None
        self._is_broken = behaviour == "broken"
        self._num_prompt_tokens: dict[int, int] = {}
        self._num_steps = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self._num_steps += 1
        if self._is_broken and self._num_steps == 3:
            raise RuntimeError("the fan has stopped")
        while self._gate is not None and not (self._gate / "go").exists():
            time.sleep(0.005)
        for sequence in plan.new_sequences:
            self._num_prompt_tokens[sequence.sequence_id] = sequence.num_prompt_tokens
        sampled = []
        for entry in plan.scheduled:
            place = entry.num_computed_tokens + entry.num_tokens - self._num_prompt_tokens[entry.sequence_id]
            sampled.append(SampledToken(ord("a") + place % 26) if entry.samples else None)
        return StepResult(plan.step_id, tuple(sampled))


def main() -> int:
    launch = msgspec.json.decode(sys.stdin.buffer.readline(), type=Launch)
    threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(3)), daemon=True).start()
    behaviour = launch.config.model_path
    connection = engine_end(launch.endpoint)
    print("a line for people", file=sys.stderr, flush=True)
    if behaviour == "crashes":
        return 7
    connection.send(StartupPhase("wake", 0.25, "quickly"))
    if behaviour == "refuses":
        connection.send(describe_failure(ConfigurationError("no room: make some")))
        connection.close()
        return 1
    config = launch.config.scheduler_config(num_blocks=NUM_BLOCKS, max_model_len=256, is_on_cpu=True)
    core = EngineCore(config, eos_token_ids=(0,), identity_digest=b"alphabet")
    executor = InProcessExecutor(AlphabetWorker(behaviour), lambda error: loop.fail(error))  # noqa: PLW0108
    loop = EngineLoop(core=core, executor=executor, connection=connection, clock=SystemClock())
    connection.send(
        EngineReady(
            num_blocks=NUM_BLOCKS,
            block_size=16,
            max_model_len=256,
            kv_bytes=1,
            vocab_size=256,
            execution_identity="ab",
            dtype="letters",
            device="a pencil",
        )
    )
    if behaviour == "deaf":
        threading.Event().wait()
    status = loop.run()
    connection.close()
    return status


if __name__ == "__main__":
    os._exit(main())
