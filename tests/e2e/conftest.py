"""A real server for the tests of this folder that need one and leave it as they found it: started once, if at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.real_server import SMALL, RealServer


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[RealServer]:
    """`headrace serve` with the default model. `server.client()` is the official OpenAI client."""
    with RealServer(*SMALL) as server:
        yield server
