"""The chat page in a real browser, over the real app and a fake engine: what a reader sees, and what the server is asked."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from tests.e2e.page.driver import DESKTOP, PHONE, Page, serving
from tests.fakes import FakeEngine, fixed_answer

from headrace.base.errors import EngineDeadError, InvalidRequestError, OverloadedError
from headrace.server.config import ServerConfig

OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: webdriver.Chrome) -> Iterator[OpenPage]:
    """Opens the page over an engine. Whatever a test does, the page must not complain, nor ask anyone but its own server."""
    pages: list[Page] = []
    with ExitStack() as servers:

        def open_over(engine: FakeEngine, config: ServerConfig | None = None) -> Page:
            page = Page(browser, servers.enter_context(serving(engine, config)))
            page.collect()
            page.requests.clear()
            page.complaints.clear()
            page.resize(DESKTOP)
            page.prefer(color_scheme="light", reduced_motion="no-preference")
            pages.append(page)
            page.open()
            return page

        yield open_over
        for page in pages:
            page.collect()
            browser.get("about:blank")  # lets go of the server's connections
            assert page.complaints == []
            assert {request["url"] for request in page.requests if not request["url"].startswith(page.url)} == set()


# Conversation


def test_a_conversation_streams_in_and_shows_its_figures(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer("**Water** turns the wheel, and the wheel turns the stone."))
    engine.hold_after = 20
    page = open_page(engine)

    page.start_asking("What turns the mill?")
    page.wait(lambda: page.text(".prose").startswith("Water"))
    assert page.is_shown("#stop")
    assert not page.is_shown("#send")
    assert page.all(".answer[aria-busy=true]")

    engine.goes_on.set()
    page.wait_for_end()
    assert page.text(".question-text") == "What turns the mill?"
    assert page.text(".prose") == "Water turns the wheel, and the wheel turns the stone."
    assert page.text(".prose strong") == "Water"
    figures = page.text(".figures")
    num_tokens = len("**Water** turns the wheel, and the wheel turns the stone.") + 1
    assert f"{num_tokens} tokens" in figures
    assert "tokens/s" in figures
    assert "to first token" in figures
    assert "0 of " in figures
    assert "finished: stop" in figures
    assert page.is_shown("#send")
    assert page.text("#context-use").endswith("of 4,096 tokens used")


def test_the_second_question_carries_the_first_and_its_prompt_is_cached(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(fixed_answer("Yes.")))
    page.ask("Is it so?")
    page.ask("And now?")
    assert [turn.text for turn in page.all(".question-text")] == ["Is it so?", "And now?"]
    assert page.chat_bodies()[-1]["messages"] == [
        {"role": "user", "content": "Is it so?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "And now?"},
    ]
    cached = page.text(".figures").split(" of ")[0].split()[-1]
    assert int(cached) > 0


def test_the_page_names_the_model_and_its_context(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(served_model_names=("mill-135m", "mill"), max_model_len=2048))
    assert page.text("#model") == "mill-135m\n2,048-token context" or page.text("#model") == "mill-135m 2,048-token context"
    page.ask("Hello")
    assert page.chat_bodies()[-1]["model"] == "mill-135m"


def test_an_example_of_the_empty_page_asks_itself(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    examples = page.all(".example")
    assert len(examples) == 3
    words = examples[0].text
    examples[0].click()
    page.wait_for_end()
    assert page.text(".question-text") == words
    assert not page.is_shown("#welcome")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stopping_ends_the_stream_and_the_server_frees_the_request(open_page: OpenPage, how: str) -> None:
    engine = FakeEngine(fixed_answer("Water flows for ever and ever"))
    engine.hold_after = 11
    page = open_page(engine)
    page.start_asking("How long?")
    page.wait(lambda: page.text(".prose") == "Water flows")
    assert engine.num_live == 1
    if how == "button":
        page.click("#stop")
    else:
        page.type("#question", Keys.ESCAPE)
    page.wait_for_end()
    page.wait(lambda: engine.num_live == 0)
    assert len(engine.aborted) == 1
    assert page.text(".prose") == "Water flows"
    assert "stopped" in page.text(".figures")
    assert "≈ 11 tokens" in page.text(".figures")
    assert not page.is_shown(".error")

    engine.hold_after = None
    page.ask("Go on")
    assert page.text(".prose") == "Water flows for ever and ever"


def test_leaving_the_page_frees_the_request(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    engine = FakeEngine(fixed_answer("Water flows"))
    engine.hold_after = 5
    page = open_page(engine)
    page.start_asking("How long?")
    page.wait(lambda: page.text(".prose") == "Water")
    browser.refresh()
    page.wait(lambda: engine.num_live == 0)
    page.wait(lambda: page.text(".prose") == "Water")
    assert "stopped" in page.text(".figures")


def test_regenerating_replaces_the_last_answer(open_page: OpenPage) -> None:
    answers = iter(["first", "second"])
    page = open_page(FakeEngine(lambda request, index: [*next(answers).encode(), 257]))
    page.ask("Which?")
    assert page.text(".prose") == "first"
    page.click(".actions [data-action=again]")
    page.wait(lambda: page.text(".prose") == "second")
    page.wait_for_end()
    assert len(page.all(".turn")) == 1
    assert page.chat_bodies()[0]["messages"] == page.chat_bodies()[1]["messages"]


def test_regenerating_while_an_answer_comes_drops_that_answer(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer("Water flows"))
    engine.hold_after = 5
    page = open_page(engine)
    page.start_asking("One?")
    page.wait(lambda: page.text(".prose") == "Water")
    page.click(".question [data-action=edit]")
    page.type(".editor textarea", Keys.END, " Two?", Keys.ENTER)
    page.wait(lambda: len(engine.aborted) == 1)
    engine.hold_after = None
    page.wait(lambda: page.text(".prose") == "Water flows")
    page.wait_for_end()
    assert [question.text for question in page.all(".question-text")] == ["One? Two?"]


def test_editing_the_last_question_asks_again_in_its_place(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.ask("First")
    page.ask("Secnod")
    page.type("#question", Keys.ARROW_UP)
    page.type(".editor textarea", Keys.CONTROL, "a")
    page.type(".editor textarea", "Second", Keys.ENTER)
    page.wait(lambda: [question.text for question in page.all(".question-text")] == ["First", "Second"])
    page.wait_for_end()
    assert [m["content"] for m in page.chat_bodies()[-1]["messages"] if m["role"] == "user"] == ["First", "Second"]


def test_escape_leaves_the_editor_without_asking(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.ask("As it was")
    page.type("#question", Keys.ARROW_UP)
    page.type(".editor textarea", "something else", Keys.ESCAPE)
    assert page.text(".question-text") == "As it was"
    assert len(page.chat_bodies()) == 1


def test_a_new_conversation_starts_empty(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.ask("Old")
    page.click("#new-conversation")
    assert page.is_shown("#welcome")
    assert page.all(".turn") == []
    page.ask("New")
    assert [m["content"] for m in page.chat_bodies()[-1]["messages"]] == ["New"]


def test_a_reload_keeps_the_conversation(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    page = open_page(FakeEngine(fixed_answer("**kept**")))
    page.ask("Remember me")
    figures = page.text(".figures")
    browser.refresh()
    page.wait(lambda: page.all(".prose strong"))
    assert page.text(".question-text") == "Remember me"
    assert page.text(".figures") == figures


def test_shift_enter_breaks_the_line_and_enter_sends(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    height = page.one("#question").size["height"]
    page.type("#question", "one", Keys.SHIFT, Keys.ENTER, Keys.SHIFT, "two")
    assert page.one("#question").size["height"] > height
    page.type("#question", Keys.ENTER)
    page.wait_for_end()
    assert page.chat_bodies()[-1]["messages"][0]["content"] == "one\ntwo"
    assert page.one("#question").size["height"] == height


def test_nothing_but_spaces_is_not_sent(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.type("#question", "  ", Keys.ENTER)
    assert page.one("#send").get_property("disabled")
    assert page.all(".turn") == []


# Settings


def test_only_changed_settings_are_sent(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.ask("Plain")
    assert page.chat_bodies()[-1] == {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "Plain"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }

    page.click("#settings-toggle")
    page.type("#setting-temperature", "0.3")
    page.type("#setting-seed", "7")
    page.type("#setting-max_tokens", "64")
    page.type("#setting-system_prompt", "Be brief.")
    assert page.text("#settings-count") == "4"
    page.ask("Changed")
    body = page.chat_bodies()[-1]
    assert {key: body[key] for key in body if key not in ("model", "messages", "stream", "stream_options")} == {
        "temperature": 0.3,
        "seed": 7,
        "max_tokens": 64,
    }
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_every_setting_reaches_the_engine(open_page: OpenPage) -> None:
    engine = FakeEngine()
    page = open_page(engine)
    page.click("#settings-toggle")
    values = {
        "temperature": "0.5",
        "top_p": "0.9",
        "top_k": "40",
        "min_p": "0.05",
        "max_tokens": "99",
        "seed": "12",
        "repetition_penalty": "1.1",
    }
    for name, value in values.items():
        page.type(f"#setting-{name}", value)
    page.ask("Go")
    sampling = engine.requests[-1].sampling
    assert {name: getattr(sampling, name) for name in values} == {name: float(value) for name, value in values.items()}


def test_a_slider_sets_its_number_and_reset_leaves_it_to_the_server_again(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.click("#settings-toggle")
    page.type(".setting:has(#setting-temperature) input[type=range]", Keys.HOME)
    assert page.one("#setting-temperature").get_property("value") == "0"
    page.ask("Greedy")
    assert page.chat_bodies()[-1]["temperature"] == 0
    page.click(".setting:has(#setting-temperature) .reset")
    page.ask("Default")
    assert "temperature" not in page.chat_bodies()[-1]


def test_a_value_out_of_range_is_explained_and_not_sent(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.click("#settings-toggle")
    page.type("#setting-top_p", "7")
    assert page.text("#setting-top_p-hint") == "A number from 0.01 to 1."
    assert page.one("#setting-top_p").get_attribute("aria-invalid") == "true"
    page.type("#setting-top_k", "1.5")
    assert page.text("#setting-top_k-hint") == "A whole number, please."
    page.ask("Go")
    assert {"top_p", "top_k"}.isdisjoint(page.chat_bodies()[-1])


def test_settings_are_remembered_and_reset_together(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    page = open_page(FakeEngine())
    page.click("#settings-toggle")
    page.type("#setting-temperature", "0.3")
    page.type("#setting-system_prompt", "Be brief.")
    browser.refresh()
    page.wait(lambda: page.text("#settings-count") == "2")
    page.click("#settings-toggle")
    assert page.one("#setting-temperature").get_property("value") == "0.3"
    assert page.one("#setting-system_prompt").get_property("value") == "Be brief."
    page.click("#settings-reset")
    browser.refresh()
    page.wait(lambda: page.all("#model .model-name"))
    assert not page.is_shown("#settings-count")
    assert page.run("return localStorage.length") == 0


# Trouble


def test_a_refused_request_says_why_and_can_be_tried_again(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer("Now it works."))
    engine.refusal = InvalidRequestError("seed must be between 0 and 5, not 7", param="seed")
    page = open_page(engine)
    page.ask("Go")
    assert "seed must be between 0 and 5, not 7." in page.text(".error")
    assert page.one(".error").get_attribute("role") == "alert"
    page.click(".error [data-action=settings]")
    assert page.run("return document.activeElement.id") == "setting-seed"
    engine.refusal = None
    page.click(".error [data-action=again]")
    page.wait(lambda: page.text(".prose") == "Now it works.")
    assert page.all(".error") == []


def test_a_busy_server_is_told_from_a_broken_one(open_page: OpenPage) -> None:
    engine = FakeEngine()
    engine.refusal = OverloadedError("the queue is full")
    page = open_page(engine)
    page.ask("Go")
    assert "The queue is full." in page.text(".error")
    assert "Try again in a moment" in page.text(".error")


def test_an_engine_that_dies_in_an_answer_leaves_what_came_and_raises_the_banner(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer("Water flows"))
    engine.fail_after = (5, EngineDeadError("the engine process ended"))
    page = open_page(engine)
    page.start_asking("Go")
    page.wait(lambda: page.all(".error"))
    assert page.text(".prose") == "Water"
    assert "The engine process ended." in page.text(".error")

    engine.dead = "the engine process ended"
    page.click(".error [data-action=again]")
    page.wait(lambda: page.is_shown("#banner"))
    assert "The engine is not running: the engine process ended" in page.text("#banner")

    engine.dead = ""
    engine.fail_after = None
    page.wait(lambda: not page.is_shown("#banner"))
    page.click(".error [data-action=again]")
    page.wait(lambda: page.text(".prose") == "Water flows")


def test_a_server_that_went_away_is_named_as_such(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    page = open_page(FakeEngine())
    browser.execute_cdp_cmd(
        "Network.emulateNetworkConditions", {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    )
    try:
        page.ask("Anybody there?")
        assert "The server cannot be reached." in page.text(".error")
        page.wait(lambda: page.is_shown("#banner"))
        assert "The server cannot be reached." in page.text("#banner")
    finally:
        browser.execute_cdp_cmd(
            "Network.emulateNetworkConditions",
            {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1},
        )
    page.click(".error [data-action=again]")
    page.wait(lambda: page.is_shown(".figures"))


def test_an_answer_cut_at_the_limit_explains_the_limit(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(fixed_answer("Water flows for ever")))
    page.click("#settings-toggle")
    page.type("#setting-max_tokens", "5")
    page.click("#settings-close")
    page.ask("Go")
    assert page.text(".prose") == "Water"
    assert "Cut short at the limit of 5 tokens" in page.text(".notice")
    assert "finished: length" in page.text(".figures")
    page.click(".notice [data-action=settings]")
    assert page.run("return document.activeElement.id") == "setting-max_tokens"


def test_an_answer_that_fills_the_context_says_so(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(fixed_answer("Water " * 100), max_model_len=128))
    page.ask("Go")
    assert "fill the model's context of 128 tokens" in page.text(".notice")


def test_a_question_longer_than_the_context_is_refused_in_words(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(max_model_len=64))
    page.ask("word " * 40)
    assert "longer than the model can read" in page.text(".error")


def test_a_server_with_a_key_asks_for_it(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(fixed_answer("Welcome.")), ServerConfig(access_log=False, api_key="open sesame"))
    page.click("#model .link")
    assert page.run("return document.activeElement.id") == "api-key"
    page.type("#api-key", "open sesame", Keys.ENTER)
    page.wait(lambda: page.text("#model .model-name") == "fake-model")
    page.click("#settings-close")
    page.ask("May I?")
    assert page.text(".prose") == "Welcome."


# Markdown, safely

HOSTILE = """\
<script>window.pwned = 1</script>
<img src=x onerror="window.pwned = 2"> <svg/onload=window.pwned=3>

[click](javascript:window.pwned=4) [data](data:text/html,<script>window.pwned=5</script>) ![i](javascript:window.pwned=6)

<a href="javascript:window.pwned=7">link</a> <javascript:window.pwned=8> <https://example.com/" onmouseover="window.pwned=9>

[ok](https://example.com/a"onclick="window.pwned=10) [tab](java\tscript:window.pwned=11)

- <iframe src="https://example.com"></iframe>
- `<script>window.pwned = 12</script>`

| <b>a</b> | <style>*{display:none}</style> |
|---|---|
| <object data=x> | <form action=x><input autofocus onfocus=window.pwned=13> |

# <h1 onclick=x>heading</h1>

> </blockquote><script>window.pwned = 14</script>

```"><script>window.pwned = 15</script>
</code></pre><script>window.pwned = 16</script>
<img src=x onerror=window.pwned=17>
"""


def test_hostile_markdown_is_only_text(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer(HOSTILE))
    engine.tokens_per_step = 7
    page = open_page(engine)
    page.ask(HOSTILE.replace("\t", " ").replace("\n", " "))
    elements = page.run("return [...document.querySelectorAll('.turns *')].map((node) => node.tagName.toLowerCase())")
    assert {"script", "img", "iframe", "object", "form", "style", "input", "svg/onload"}.isdisjoint(elements)
    attributes = page.run(
        "return [...document.querySelectorAll('.turns *')].flatMap((node) => [...node.attributes].map((a) => a.name))"
    )
    assert [name for name in attributes if name.startswith("on") or name in ("style", "src", "srcdoc")] == []
    hrefs = page.run("return [...document.querySelectorAll('.prose a')].map((a) => [a.protocol, a.rel, a.target])")
    assert hrefs
    assert all(href == ["https:", "noopener noreferrer nofollow", "_blank"] for href in hrefs)
    for words in (
        "<script>window.pwned = 1</script>",
        "<img src=x onerror=",
        "</code></pre><script>",
        "javascript:window.pwned=4",
    ):
        assert words in page.text(".prose")
    assert page.run("return window.pwned ?? null") is None
    assert page.all(".prose figure.code"), "the fence that never closed is still a code block"


def test_markup_arrives_as_elements(open_page: OpenPage) -> None:
    text = (
        "# Title\n\nA *b* **c** `d` ~~e~~ [f](https://example.com/x).\n\n1. one\n   - two\n2. three\n\n"
        "> quoted\n\n| h | i |\n|---|--:|\n| j | k |\n\n---\n\n```python\nprint('<x>')\n```\n"
    )
    page = open_page(FakeEngine(fixed_answer(text)))
    page.ask("Show me")
    found = {
        name: page.text(f".prose {name}") for name in ("h3", "em", "strong", "p > code", "del", "a", "blockquote", "td")
    }
    assert found == {
        "h3": "Title",
        "em": "b",
        "strong": "c",
        "p > code": "d",
        "del": "e",
        "a": "f",
        "blockquote": "quoted",
        "td": "k",
    }
    assert page.text(".prose ol > li > ul > li") == "two"
    assert page.all(".prose td.align-right")
    assert page.all(".prose hr")
    assert page.text(".prose figcaption span") == "python"
    assert page.text(".prose pre code") == "print('<x>')"


def test_while_an_answer_grows_only_its_last_block_is_drawn_again(open_page: OpenPage) -> None:
    blocks = [f"Paragraph {i} with **bold** words." for i in range(60)]
    engine = FakeEngine(fixed_answer("\n\n".join(blocks)))
    engine.tokens_per_step = 40
    engine.step_s = 0.02
    engine.hold_after = 400  # eleven paragraphs
    page = open_page(engine)
    page.start_asking("Much, please")
    page.wait(lambda: len(page.all(".prose > p")) > 4)
    page.run(
        """
        window.touched = new Set();
        const early = [...document.querySelectorAll(".prose > p")].slice(0, 3);
        new MutationObserver((changes) => changes.forEach((change) => early.forEach((p, i) => {
          if (p.contains(change.target) || [...change.removedNodes].includes(p)) window.touched.add(i);
        }))).observe(document.querySelector(".prose"), {childList: true, characterData: true, subtree: true});
        """
    )
    engine.goes_on.set()
    page.wait_for_end()
    assert [p.text for p in page.all(".prose > p")] == [block.replace("**", "") for block in blocks]
    assert page.run("return [...window.touched]") == []


def test_the_newest_text_stays_in_sight_unless_the_reader_scrolls_up(open_page: OpenPage) -> None:
    engine = FakeEngine(fixed_answer("\n\n".join(f"Paragraph {i}." for i in range(80))))
    engine.tokens_per_step = 8
    engine.step_s = 0.02
    engine.hold_after = 500  # 33 paragraphs
    page = open_page(engine)
    below = "return document.documentElement.scrollHeight - innerHeight - scrollY"
    page.start_asking("Much, please")
    page.wait(lambda: len(page.all(".prose > p")) > 30)
    page.wait(lambda: page.run(below) < 60)
    page.run("scrollTo(0, 100)")
    page.wait(lambda: page.is_shown("#to-latest"))
    engine.goes_on.set()
    page.wait_for_end()
    assert page.run("return scrollY") == 100
    page.click("#to-latest")
    assert page.run(below) < 60
    assert not page.is_shown("#to-latest")


def test_code_and_answers_can_be_copied(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    text = "Try:\n\n```sh\nls -l | wc\n```"
    page = open_page(FakeEngine(fixed_answer(text)))
    permission = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "origin": page.url}
    browser.execute_cdp_cmd("Browser.grantPermissions", permission)
    page.ask("How?")
    for selector, expected in (("[data-action=copy-code]", "ls -l | wc"), ("[data-action=copy-answer]", text)):
        page.click(f".turn {selector}")
        page.wait(lambda: page.all(f".turn {selector}[data-copied]"))  # noqa: B023
        assert page.run_async("navigator.clipboard.readText().then(arguments[0])") == expected


# Looks and access


def test_the_page_follows_the_systems_theme_until_told_otherwise(open_page: OpenPage, browser: webdriver.Chrome) -> None:
    page = open_page(FakeEngine())
    background = "return getComputedStyle(document.documentElement).backgroundColor"
    light = page.run(background)
    page.prefer(color_scheme="dark")
    dark = page.run(background)
    assert light != dark
    page.click("#theme-toggle")
    assert page.run(background) == light
    browser.refresh()
    assert page.run(background) == light
    page.click("#theme-toggle")
    assert page.run(background) == dark
    assert page.run("return localStorage.getItem('headrace.theme')") is None
    page.prefer(color_scheme="light")
    assert page.run(background) == light


LONG = (
    "Donaudampfschifffahrt" * 12
    + " https://example.com/"
    + "path/" * 40
    + "\n\n```\n"
    + "x = 1; " * 60
    + "\n```\n\n|"
    + " column |" * 14
    + "\n|"
    + "---|" * 14
    + "\n|"
    + " value |" * 14
    + "\n\n> - `"
    + "code" * 60
    + "`"
)


@pytest.mark.parametrize("width", [320, PHONE[0], 768, DESKTOP[0]])
def test_nothing_makes_the_page_scroll_sideways(open_page: OpenPage, width: int) -> None:
    engine = FakeEngine(
        fixed_answer(LONG), served_model_names=("a-model-with-quite-a-long-name-that-must-be-cut-somewhere",)
    )
    engine.tokens_per_step = 50
    page = open_page(engine)
    page.resize((width, 740))
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.run(overflow) == 0
    page.ask("w" * 200)
    assert page.run(overflow) == 0
    page.click("#settings-toggle")
    assert page.run(overflow) == 0
    assert page.run("const d = document.querySelector('#settings'); return d.scrollWidth - d.clientWidth") == 0
    page.click("#settings-close")
    page.click("#api-toggle")
    assert page.run("const d = document.querySelector('#api'); return d.scrollWidth - d.clientWidth") == 0


def test_the_settings_leave_room_for_the_conversation_on_a_wide_screen_and_cover_it_on_a_narrow_one(
    open_page: OpenPage,
) -> None:
    page = open_page(FakeEngine())
    page.click("#settings-toggle")
    assert page.one("#settings-toggle").get_attribute("aria-expanded") == "true"
    assert page.run("return document.querySelector('#settings').matches(':modal')") is False
    drawer_left = page.run("return document.querySelector('#settings').getBoundingClientRect().left")
    page.wait(lambda: page.run("return document.querySelector('#composer').getBoundingClientRect().right") <= drawer_left)
    page.type("#setting-temperature", Keys.ESCAPE)
    assert not page.is_shown("#settings")
    page.resize(PHONE)
    page.click("#settings-toggle")
    assert page.run("return document.querySelector('#settings').matches(':modal')") is True
    page.type("#setting-temperature", Keys.ESCAPE)
    assert not page.is_shown("#settings")
    assert page.one("#settings-toggle").get_attribute("aria-expanded") == "false"


def test_everything_that_can_be_used_has_a_name(open_page: OpenPage) -> None:
    page = open_page(FakeEngine(fixed_answer("```sh\nls\n```\n\n| a |\n|---|\n| b |")))
    page.ask("Show me")
    page.click("#settings-toggle")
    nameless = page.run(
        """
        const labelled = (node) => node.labels?.length || node.ariaLabel || node.getAttribute("aria-labelledby");
        return [...document.querySelectorAll("button, a, input, select, textarea, dialog, [tabindex]")]
          .filter((node) => !labelled(node) && !(node.matches("button, a") && node.textContent.trim()))
          .map((node) => node.outerHTML);
        """
    )
    assert nameless == []


def test_a_slash_leads_to_the_message_box_and_focus_can_be_seen(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.run("document.activeElement.blur()")
    page.type("body", "/")
    assert page.run("return document.activeElement.id") == "question"
    assert page.one("#question").get_property("value") == ""
    page.type("#question", Keys.SHIFT, Keys.TAB)
    assert page.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


CONTRAST = """
const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const rgb = (color, over) => {
  context.fillStyle = over; context.fillRect(0, 0, 1, 1);
  context.fillStyle = color; context.fillRect(0, 0, 1, 1);
  const [r, g, b] = context.getImageData(0, 0, 1, 1).data;
  return `rgb(${r} ${g} ${b})`;
};
const luminance = (color) => {
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const [r, g, b] = color.match(/[0-9]+/g).map((c) => linear(c / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (node) => {
  const chain = [];
  for (; node; node = node.parentElement) chain.unshift(getComputedStyle(node).backgroundColor);
  return chain.reduce((under, color) => rgb(color, under), "rgb(255 255 255)");
};
const poor = [];
for (const node of document.querySelectorAll("body *")) {
  const says = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
  if (!says || !node.checkVisibility({opacityProperty: true}) || node.closest(".visually-hidden, [disabled]")) continue;
  const back = behind(node);
  const [a, b] = [luminance(rgb(getComputedStyle(node).color, back)), luminance(back)].sort().reverse();
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < 4.5) poor.push([node.className || node.tagName, node.textContent.slice(0, 30), contrast.toFixed(2)]);
}
return poor;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(open_page: OpenPage, scheme: str) -> None:
    engine = FakeEngine(fixed_answer("# A\n\n`b` [c](https://example.com)\n\n> d\n\n1. e\n\n```sh\nf\n```"))
    page = open_page(engine)
    page.prefer(color_scheme=scheme)
    assert page.run(CONTRAST) == []
    page.click("#settings-toggle")
    page.type("#setting-max_tokens", "80")
    page.type("#setting-top_p", "7")
    page.ask("Show me")
    engine.refusal = OverloadedError("busy")
    page.ask("And now")
    assert page.all(".error")
    assert page.run(CONTRAST) == []


def test_who_prefers_less_motion_gets_none(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    assert page.run("return document.getAnimations().length") > 0
    page.prefer(reduced_motion="reduce")
    page.wait(lambda: page.run("return document.getAnimations().length") == 0)


def test_the_footer_leads_to_the_api_and_examples_that_name_this_server(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    assert page.text("#api-toggle") == page.url.removeprefix("http://") + "/v1"
    page.click("#api-toggle")
    assert page.text("#api-base code") == f"{page.url}/v1"
    curl = page.text("#api-curl code")
    assert f"curl {page.url}/v1/chat/completions" in curl
    assert '"model": "fake-model"' in curl
    assert f'base_url="{page.url}/v1"' in page.text("#api-python code")
    statuses = page.run_async(
        """
        const links = [...document.querySelectorAll(".footer nav a")].map((a) => a.getAttribute("href"));
        Promise.all(links.map((link) => fetch(link).then((r) => [link, r.status]))).then(arguments[0]);
        """
    )
    assert statuses == [["/docs", 200], ["/metrics", 200]]


def test_the_pages_own_policy_forbids_inline_scripts(open_page: OpenPage) -> None:
    page = open_page(FakeEngine())
    page.run("const s = document.createElement('script'); s.textContent = 'window.pwned = 1'; document.body.append(s)")
    assert page.run("return window.pwned ?? null") is None
    page.collect()
    assert any("Content Security Policy" in complaint for complaint in page.complaints)
    page.complaints.clear()
