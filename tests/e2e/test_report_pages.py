"""Reports and plots in a real browser: no text leaves its page or lies upon another, whatever was measured."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from tests.e2e.page.driver import DESKTOP, PHONE, Page, start_browser
from tests.unit.measure.records import request, run_of
from tests.unit.measure.test_roofline import CEILINGS, PRODUCT

from headrace.base.clock import Nanos
from headrace.base.rng import stream
from headrace.measure.report.page import render_page
from headrace.measure.report.pareto_plot import ParetoPoint, pareto_svg
from headrace.measure.report.record import Run
from headrace.measure.report.roofline import MeasuredPhase, place
from headrace.measure.report.roofline_plot import roofline_svg
from headrace.measure.report.summary import DEFAULT_SHARES
from headrace.sim.plan import known_prices

_TROUBLE = """
const texts = [...document.querySelectorAll("svg text")].filter((text) => text.textContent.trim()).map((text) => {
  const [box, page] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
  return { text: text.textContent, box, page, svg: text.ownerSVGElement, isNumber: text.classList.contains("number") };
});
const outside = texts.filter(({ box, page }) =>
  box.left < page.left - 1 || box.right > page.right + 1 || box.top < page.top - 1 || box.bottom > page.bottom + 1);
const over = [];
texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
  if (a.svg !== b.svg || a.isNumber || b.isNumber) return;  // numbers of kernels lie where their kernels do
  const wide = Math.min(a.box.right, b.box.right) - Math.max(a.box.left, b.box.left);
  const high = Math.min(a.box.bottom, b.box.bottom) - Math.max(a.box.top, b.box.top);
  if (wide > 1 && high > 3) over.push(`${a.text} | ${b.text}`);
}));
const sideways = document.documentElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [];
return [...outside.map(({ text }) => `outside: ${text}`), ...over, ...sideways];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    driver = start_browser(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


def trouble(browser: webdriver.Chrome, path: Path, size: tuple[int, int] = DESKTOP) -> list[str]:
    page = Page(browser, path.as_uri())
    page.resize(size)
    browser.get(page.url)
    found: list[str] = page.run(_TROUBLE)
    return found


def a_run(*, number: int, scale: float, **facts: Any) -> Run:
    """Requests whose answers begin after `scale` times 50 to 60 ms, some of them far later."""
    rng = stream(number, f"a run of {scale}")
    records = []
    for n in range(number):
        first = (50 + 10 * rng.random()) * scale * (40 if n % 17 == 16 else 1)
        chunks = [first + i * (10 + rng.random()) * scale for i in range(5)]
        records.append(request(n, intended=n * 20.0 * scale, chunks=chunks, num_prompt_tokens=8, queued_ns=Nanos(3)))
    return run_of(records, slo_ms={"ttft": 55.0 * scale, "tpot": 11.0 * scale}, **facts)


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("scale", [0.003, 1.0, 47.0, 900.0])
def test_a_report_has_room_for_its_words_whatever_the_figures(
    browser: webdriver.Chrome, tmp_path: Path, scale: float, size: tuple[int, int]
) -> None:
    path = tmp_path / "report.html"
    path.write_text(render_page([a_run(number=60, scale=scale, model="a-model", request_rate=50.0)], shares=DEFAULT_SHARES))
    assert trouble(browser, path, size) == []


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
@pytest.mark.parametrize("number", [2, 9])
def test_a_report_of_many_runs_has_room_for_its_words(
    browser: webdriver.Chrome, tmp_path: Path, number: int, size: tuple[int, int]
) -> None:
    path = tmp_path / "report.html"
    runs = [a_run(number=20 + n, scale=2.0**n, request_rate=2.0**n, label="a-label-without-spaces") for n in range(number)]
    path.write_text(render_page(runs, shares=DEFAULT_SHARES))
    assert trouble(browser, path, size) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_a_roofline_has_room_for_its_words_however_many_steps_were_measured(
    browser: webdriver.Chrome, tmp_path: Path, number: int
) -> None:
    calls = [replace(PRODUCT, name=f"linear of {n}", duration_ns=20_000 * (n + 1)) for n in range(10)]
    phases = [
        place(MeasuredPhase(f"decode, {n} sequences", n, [calls], [2_000_000]), CEILINGS, resident_bytes=10**8)
        for n in range(1, number + 1)
    ]
    path = tmp_path / "roofline.svg"
    path.write_text(roofline_svg("a-model.Q4_K_M.gguf, cpu (native, 2 threads)", CEILINGS, phases))
    assert [found for found in trouble(browser, path) if "sideways" not in found] == []


@pytest.mark.parametrize("number", [1, 3, 6, 11])
@pytest.mark.parametrize("place_of_best", [0.02, 0.45, 0.55, 0.98])
def test_a_plan_has_room_for_its_words_however_many_devices_were_tried(
    browser: webdriver.Chrome, tmp_path: Path, number: int, place_of_best: float
) -> None:
    devices = [*known_prices(), "rtx_pro_6000_server", "h100_pcie", "b300_sxm", "gb200", "gb300"][:number]
    points = [
        ParetoPoint(
            x=110 * place_of_best if n == 0 else 110.0 * n / number,
            y=4400 * place_of_best if n == 0 else 4400.0 - 300 * n,
            label="12 prefill of 2 x rtx_pro_6000_server, 16384 tokens a step\n"
            "+ 4 decode of 8 x h100_sxm DP, 2048 tokens a step\n"
            "$1,234.56 an hour",
            series=name,
            is_square=n % 2 == 0,
            is_on_frontier=True,
            is_chosen=n == 0,
        )
        for n, name in enumerate(devices)
    ]
    path = tmp_path / "plan.svg"
    path.write_text(pareto_svg("llama-3.1-8b under sessions", points))
    assert trouble(browser, path) == []
