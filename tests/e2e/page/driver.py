"""A served page and a browser to look at it with, in the words of the tests.

Knows Chromium, the app and the fake engine; asserts nothing about the page itself.
"""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from tests.fakes import FakeChatTemplate, FakeEngine
from tests.patience import PATIENCE_S

from headrace.obs.metrics import ServingMetrics
from headrace.server.app import create_app, serve_http
from headrace.server.config import ServerConfig

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP = (1280, 860)
PHONE = (360, 740)


@contextlib.contextmanager
def serving(engine: FakeEngine, config: ServerConfig | None = None) -> Iterator[str]:
    """The real app over a fake engine, on a free port; gives its URL."""
    facts = engine.facts
    metrics = ServingMetrics(model_name=facts.served_model_names[0], max_model_len=facts.max_model_len)
    config = config or ServerConfig(access_log=False)
    app = create_app(engine, config, metrics, chat_template=FakeChatTemplate())
    started = threading.Event()
    urls: list[str] = []
    ends: list[Callable[[], object]] = []

    def on_started(url: str) -> None:
        urls.append(url)
        started.set()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        await serve_http(app, host="127.0.0.1", port=0, drain_timeout_s=0.1, on_started=on_started, stop=stop)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="page-server")
    thread.start()
    try:
        assert started.wait(PATIENCE_S), "the server did not start"
        yield urls[0]
    finally:
        for end in ends:
            end()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"


def start_browser(profile: Path) -> webdriver.Chrome:
    """A fresh headless Chromium; skips where there is none."""
    chromium = next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("chromium and its chromedriver are not installed (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))


class Page:
    """The chat page as a reader uses it."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.requests: list[dict[str, Any]] = []
        """What the page asked the network for, oldest first: `url`, `method`, `postData`."""
        self.complaints: list[str] = []
        """What the console said that it should not, answers with an error status aside: those the browser always reports."""

    def open(self) -> None:
        self.driver.get(self.url)
        self.wait(lambda: self.all("#model .model-name") or self.all("#banner:not([hidden])") or self.all("#model .link"))

    # Looking

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        found: list[WebElement] = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found

    def text(self, selector: str) -> str:
        """As it is shown; of the last that matches."""
        shown: str = self.all(selector)[-1].text
        return shown

    def is_shown(self, selector: str) -> bool:
        return any(element.is_displayed() for element in self.all(selector))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def run_async(self, script: str, *arguments: object) -> Any:
        """The last argument of the script is the callback for its result."""
        return self.driver.execute_async_script(script, *arguments)

    def wait(self, condition: Callable[[], object]) -> None:
        """Until the condition holds; elements may come and go meanwhile."""
        WebDriverWait(
            self.driver, PATIENCE_S, poll_frequency=0.05, ignored_exceptions=[WebDriverException, IndexError]
        ).until(lambda _: condition())

    # Doing

    def click(self, selector: str) -> None:
        self.all(selector)[-1].click()

    def type(self, selector: str, *keys: str) -> None:
        self.one(selector).send_keys(*keys)

    def ask(self, question: str) -> None:
        """Sends a question and waits for the end of its answer."""
        self.start_asking(question)
        self.wait_for_end()

    def start_asking(self, question: str) -> None:
        self.type("#question", question, Keys.ENTER)
        self.wait(lambda: not self.one("#question").get_property("value"))

    def wait_for_end(self) -> None:
        self.wait(lambda: self.all(".turn") and not self.all(".turn.is-running"))

    def resize(self, size: tuple[int, int]) -> None:
        """Comes back when the page has the size: the browser tells the page of it later than it answers the command."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self._wait_for_media(f"(width: {size[0]}px) and (height: {size[1]}px)")

    def prefer(self, **features: str) -> None:
        """The system's preferences, for example `color_scheme="dark"`; comes back when the page knows them."""
        named = {f"prefers-{name.replace('_', '-')}": value for name, value in features.items()}
        media = [{"name": name, "value": value} for name, value in named.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        self._wait_for_media(" and ".join(f"({name}: {value})" for name, value in named.items()))

    def _wait_for_media(self, query: str) -> None:
        """Until the query holds and the page has drawn once since: its own listeners run before a drawing."""
        self.wait(lambda: self.run("return matchMedia(arguments[0]).matches", query))
        self.run_async("requestAnimationFrame(() => setTimeout(arguments[0], 0))")

    # What went over the wire, and what the console said

    def collect(self) -> None:
        """Takes up what the browser logged since the last time."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            params = message["params"]
            if message["method"] == "Network.requestWillBeSent" and params["documentURL"].startswith(self.url):
                self.requests.append(params["request"])
        for entry in self.driver.get_log("browser"):
            if entry["level"] in ("SEVERE", "WARNING") and entry["source"] != "network":
                self.complaints.append(entry["message"])

    def chat_bodies(self) -> Sequence[dict[str, Any]]:
        """The bodies of the chat requests so far."""
        self.collect()
        return [json.loads(r["postData"]) for r in self.requests if r["url"].endswith("/v1/chat/completions")]
