"""The API page in a real browser: it renders every operation and a call made from it is answered."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from tests.e2e.live_server import DEADLINE_S, LiveServer
from tests.fakes import FakeEngine, fixed_answer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs chromium and chromedriver: apt-get install chromium chromium-driver"
)

OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--window-size=1280,1400",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile: Path = tmp_path_factory.mktemp("chromium")
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield browser
    browser.quit()


def test_the_page_shows_every_operation_and_a_streamed_call_is_answered(browser: webdriver.Chrome) -> None:
    text = "Water 水 turns <b>wheels</b>."
    with LiveServer(FakeEngine(fixed_answer(text))) as server:
        browser.get(f"{server.url}/docs")
        wait = WebDriverWait(browser, DEADLINE_S)
        wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, ".operation"))
        paths = [heading.text for heading in browser.find_elements(By.CSS_SELECTOR, ".operation h3")]
        assert "/v1/chat/completions" in paths
        assert len(paths) == 12
        first = browser.find_element(By.CSS_SELECTOR, ".operation")
        first.find_element(By.CSS_SELECTOR, ".go").click()
        wait.until(lambda b: "request" in first.find_element(By.CSS_SELECTOR, ".state").text)
        assert first.find_element(By.CSS_SELECTOR, ".state").text.startswith("200")
        assert first.find_element(By.CSS_SELECTOR, ".text").text == text
        assert "[DONE]" in first.find_elements(By.CSS_SELECTOR, "pre")[1].get_attribute("textContent")
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_an_error_is_shown_with_what_the_server_says(browser: webdriver.Chrome) -> None:
    with LiveServer() as server:
        browser.get(f"{server.url}/docs")
        wait = WebDriverWait(browser, DEADLINE_S)
        wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, ".operation"))
        first = browser.find_element(By.CSS_SELECTOR, ".operation")
        editor = first.find_element(By.CSS_SELECTOR, "textarea")
        editor.clear()
        editor.send_keys('{"messages": []}')
        first.find_element(By.CSS_SELECTOR, ".go").click()
        wait.until(lambda b: first.find_element(By.CSS_SELECTOR, ".state").text.startswith("400"))
        assert "at least one message" in first.find_elements(By.CSS_SELECTOR, "pre")[1].text
