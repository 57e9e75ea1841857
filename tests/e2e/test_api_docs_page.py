"""The API page in a real browser: it renders every operation and a call made from it is answered."""

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from tests.e2e.live_server import LiveServer
from tests.e2e.page.driver import DESKTOP, Page
from tests.fakes import FakeEngine, fixed_answer
from tests.patience import PATIENCE_S


def opened(browser: webdriver.Chrome, server: LiveServer) -> WebDriverWait:
    """The page, with patience for what it shows next."""
    page = Page(browser, f"{server.url}/docs")
    page.collect()
    page.resize(DESKTOP)
    browser.get(page.url)
    wait = WebDriverWait(browser, PATIENCE_S)
    wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, ".operation"))
    return wait


def test_the_page_shows_every_operation_and_a_streamed_call_is_answered(browser: webdriver.Chrome) -> None:
    text = "Water 水 turns <b>wheels</b>."
    with LiveServer(FakeEngine(fixed_answer(text))) as server:
        wait = opened(browser, server)
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
        wait = opened(browser, server)
        first = browser.find_element(By.CSS_SELECTOR, ".operation")
        editor = first.find_element(By.CSS_SELECTOR, "textarea")
        editor.clear()
        editor.send_keys('{"messages": []}')
        first.find_element(By.CSS_SELECTOR, ".go").click()
        wait.until(lambda b: first.find_element(By.CSS_SELECTOR, ".state").text.startswith("400"))
        assert "at least one message" in first.find_elements(By.CSS_SELECTOR, "pre")[1].text
