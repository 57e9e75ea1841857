"""What the mind calls without knowing who answers."""

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.base.ids import BlockId
from headrace.engine.mind.kv_transfer import KVLoad
from headrace.engine.mind.request import Request
from headrace.engine.mind.step import StepPlan, StepResult


class Executor(Protocol):
    """Carries plans to whatever computes them, in order."""

    def submit(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        """Calls `done` exactly once, never before `submit` returns, possibly from another thread.

        Several plans may be submitted before the first is done; they are executed and answered in order.
        """
        ...


class KVConnector(Protocol):
    """Moves KV between engines: the side that a scheduler speaks to. It is told what was decided, and answers later, through
    `EngineCore.end_load`; it never calls back before it returns."""

    def num_tokens_elsewhere(self, request: Request) -> int:
        """Of the prompt's first tokens, how many have KV that can be fetched. Changes nothing, so it may be asked again."""
        ...

    def load(self, load: KVLoad) -> None:
        """Fetch this. `EngineCore.end_load` must hear of it exactly once, whether it came or not, also if the request ends
        first: until then the blocks may be written to, and are kept."""
        ...

    def forgo(self, request: Request) -> None:
        """The request's KV will not be fetched from where it lies: all of it was found here, or nobody waits any more."""
        ...

    def offer(self, request: Request, block_ids: Sequence[BlockId], num_tokens: int) -> None:
        """A request that `keeps_kv` has ended: these blocks hold its prompt, until `EngineCore.end_lease` or the lease's own
        end. Whoever is told of its end can be told where they lie."""
        ...
