"""How long a test waits for what should happen at once. Knows no test, and never says how long anything may take."""

import time
from collections.abc import Callable

PATIENCE_S = 240
"""When a test gives up: a slow machine that does other things besides needs some of it, a hang would need it all."""


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Waits for what another thread or process is about to do."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"still not: {what}"
        time.sleep(0.01)
