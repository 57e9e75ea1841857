"""A real server and a browser for the tests of this folder that leave them as they found them: started once, if at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from tests.e2e.page.driver import start_browser
from tests.e2e.real_server import SMALL, RealServer


@pytest.fixture(scope="session")
def server(smollm2_path: Path) -> Iterator[RealServer]:
    """`headrace serve` with the default model. `server.client()` is the official OpenAI client."""
    with RealServer(*SMALL) as server:
        yield server


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Who takes it sets size and preferences, and passes over what it has logged until then."""
    driver = start_browser(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()
