"""The replay of a fleet in a real browser: what its tiles say at a moment is what the log says of it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from tests.e2e.page.driver import DESKTOP, PHONE, Page

from headrace.base.clock import Nanos
from headrace.engine.mind.config import SchedulerConfig
from headrace.measure.report.record import RunFacts
from headrace.measure.workload.arrivals import arrival_times
from headrace.measure.workload.lengths import Fixed
from headrace.measure.workload.prompts import at, shared_prefix_requests
from headrace.measure.workload.request import Workload
from headrace.sim.fleet import Fleet, FleetOutcome, Rehearsal
from headrace.sim.fleet_frames import fleet_frames
from headrace.sim.fleet_page import fleet_page
from headrace.sim.fleet_spec import ClientSpec, FaultKind, FaultSpec, FleetSpec, PoolSpec, StartSpec

QUICK_START = StartSpec(process_s=1.0, weight_bytes=0, warm_up_s=1.0)


def rehearse(*, num_replicas: int, num_requests: int, rate: float, faults: tuple[FaultSpec, ...]) -> FleetOutcome:
    pool = PoolSpec(
        num_replicas=num_replicas,
        scheduler=SchedulerConfig(max_model_len=4096, num_blocks=300),
        start=QUICK_START,
    )
    spec = FleetSpec(pools={"main": pool}, model="a-model", faults=faults, client=ClientSpec(timeout_s=9.0))
    requests = shared_prefix_requests(
        num_requests, num_groups=4, num_prefix_tokens=600, suffixes=Fixed(80), outputs=Fixed(120)
    )
    load = Workload(name="load", requests=tuple(at(requests, arrival_times(len(requests), rate=rate, seed=0))))
    how = Rehearsal(log_interval_ns=100_000_000)
    return Fleet(spec, load, how).run(RunFacts(source="simulated", duration_ns=Nanos(0), model="a-model", seed=0))


FAULTS = (
    FaultSpec(kind=FaultKind.CRASH, at_s=2.0, replica="main-1", duration_s=1.0),
    FaultSpec(kind=FaultKind.SLOW, at_s=3.0, replica="main-2", duration_s=2.0),
    FaultSpec(kind=FaultKind.PARTITION, at_s=6.0, replica="main-0", duration_s=1.5),
    FaultSpec(kind=FaultKind.DRAIN, at_s=5.0, replica="main-2", duration_s=2.0),
    FaultSpec(kind=FaultKind.STORM, at_s=4.0, num_requests=30),
)


@pytest.fixture(scope="module")
def outcome() -> FleetOutcome:
    return rehearse(num_replicas=3, num_requests=80, rate=10.0, faults=FAULTS)


def opened(browser: webdriver.Chrome, folder: Path, outcome: FleetOutcome, size: tuple[int, int] = DESKTOP) -> Page:
    path = folder / "fleet.html"
    path.write_text(fleet_page(outcome.log, outcome.run))
    page = Page(browser, path.as_uri())
    browser.get("about:blank")
    page.collect()
    page.requests.clear()
    page.complaints.clear()
    page.resize(size)
    page.prefer(color_scheme="light", reduced_motion="no-preference")
    browser.get(page.url)
    page.wait(lambda: shown_frame(page) == 0)
    return page


@pytest.fixture
def page(browser: webdriver.Chrome, tmp_path: Path, outcome: FleetOutcome) -> Iterator[Page]:
    """From a file; it must ask the network for nothing but itself, and not complain."""
    page = opened(browser, tmp_path, outcome)
    yield page
    page.collect()
    assert page.complaints == []
    assert {request["url"].partition("#")[0] for request in page.requests} == {page.url}


def shown_frame(page: Page) -> int:
    return int(page.run("return document.body.dataset.frame ?? -1"))


def press(page: Page, *keys: str) -> None:
    page.one("body").send_keys(*keys)


def scrub(page: Page, frame: int) -> None:
    page.run(
        "const slider = document.getElementById('slider'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input'))",
        frame,
    )


def tile_figures(page: Page, name: str) -> tuple[int, int, str, float, float]:
    tile = f'[data-replica="{name}"]'
    running, waiting, hits = (page.text(f"{tile} .{what} b") for what in ("running", "waiting", "hits"))
    used, cached = (
        float(page.run("return document.querySelector(arguments[0]).style.getPropertyValue(arguments[1])", tile, variable))
        for variable in ("--used", "--cached")
    )
    return int(running), int(waiting), hits, used, cached


def test_wherever_the_reader_scrubs_the_tiles_say_what_the_log_says(page: Page, outcome: FleetOutcome) -> None:
    log = outcome.log
    assert len(log.at_ms) == len(fleet_frames(log, outcome.run).at_s) > 60
    seen_waiting = seen_hits = 0
    for frame in range(0, len(log.at_ms), 7):
        scrub(page, frame)
        assert page.text("#clock b") == f"0:{log.at_ms[frame] / 1e3:04.1f}"
        for name in log.replicas:
            columns = log.columns[name]
            running, waiting, hits, used, cached = tile_figures(page, name)
            assert (running, waiting) == (columns.num_running[frame], columns.num_waiting[frame])
            assert (used, cached) == (columns.kv_permille[frame] / 1e3, columns.cached_permille[frame] / 1e3)
            looked_up = columns.query_tokens[frame]
            assert hits == (f"{100 * columns.hit_tokens[frame] / looked_up:.0f} %" if looked_up else "–")
            seen_waiting += waiting
            seen_hits += columns.hit_tokens[frame]
    assert seen_waiting and seen_hits


def test_what_has_befallen_a_replica_is_on_its_tile(page: Page, outcome: FleetOutcome) -> None:
    at_s = [round(at / 1e3, 3) for at in outcome.log.at_ms]
    ends = {event.kind: event.at_ms / 1e3 for event in outcome.log.events}
    for moment, name, state in (
        (1.9, "main-1", ""), (2.5, "main-1", "down"), (4.0, "main-1", "starting"), (5.5, "main-1", ""),
        (4.0, "main-2", "slow"), (6.5, "main-0", "cut off"), (round(ends["drain ends"] + 1.0, 1), "main-2", "starting"),
    ):  # fmt: skip
        scrub(page, at_s.index(moment))
        assert page.text(f'[data-replica="{name}"] .state') == state, (moment, name)
    assert [label.text for label in page.all(".lane-label span")][3:] == ["crash", "partition", "drain", "slow", "storm"]
    assert len(page.all(".mark")) == len(FAULTS)


def test_a_click_on_the_timeline_goes_there(page: Page, outcome: FleetOutcome) -> None:
    frames = fleet_frames(outcome.log, outcome.run)
    plots = page.one(".plots").rect
    lane = page.one(".lane")
    for share in (0.25, 0.7):
        x = plots["x"] + share * plots["width"] - (lane.rect["x"] + lane.rect["width"] / 2)
        ActionChains(page.driver).move_to_element_with_offset(lane, round(x), 0).click().perform()
        wanted = share * frames.duration_s
        assert abs(frames.at_s[shown_frame(page)] - wanted) < 0.1 + frames.duration_s * 2 / plots["width"]


def test_keys_move_by_frames_and_play_runs_to_the_end(page: Page, outcome: FleetOutcome) -> None:
    last = len(outcome.log.at_ms) - 1
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    assert shown_frame(page) == 2
    ActionChains(page.driver).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(Keys.SHIFT).perform()
    assert shown_frame(page) == 12
    press(page, Keys.END)
    assert shown_frame(page) == last
    press(page, Keys.HOME, Keys.ARROW_LEFT)
    assert shown_frame(page) == 0
    before = page.one("#speed").get_property("value")
    press(page, "]", "]", "]", "]", "]", "]")
    assert float(page.one("#speed").get_property("value")) > float(before)
    press(page, " ")
    page.wait(lambda: shown_frame(page) == last)
    assert page.text("#play .hidden") == "Play", "at the end it rests"


def test_a_chosen_replica_has_its_own_curves_until_it_is_chosen_again(page: Page) -> None:
    lanes = len(page.all(".lane"))
    page.click('[data-replica="main-1"]')
    assert len(page.all(".lane")) == lanes + 2
    assert page.all(".lane-label span")[3].text == "main-1"
    page.click('[data-replica="main-1"]')
    assert len(page.all(".lane")) == lanes


def test_an_address_may_end_in_a_moment(page: Page) -> None:
    page.driver.get(f"{page.url}#t=3.55")
    page.wait(lambda: page.text("#clock b") == "0:03.5")


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_large_fleet_fits_the_width_and_every_tile_has_its_number(
    browser: webdriver.Chrome, tmp_path: Path, size: tuple[int, int]
) -> None:
    outcome = rehearse(num_replicas=150, num_requests=60, rate=60.0, faults=())
    page = opened(browser, tmp_path, outcome, size)
    assert len(page.all(".size-small .tile")) == 150
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")
    scrub(page, 5)
    shown = page.run("return [...document.querySelectorAll('.tile .running b')].map((one) => Number(one.textContent))")
    assert shown == [outcome.log.columns[name].num_running[5] for name in outcome.log.replicas]
    clipped = page.run(
        "return [...document.querySelectorAll('.tile .name')].filter((one) => one.scrollWidth > one.clientWidth + 8).length"
    )
    assert clipped == 0


def test_a_page_holds_a_bounded_number_of_frames_and_says_so(
    browser: webdriver.Chrome, tmp_path: Path, outcome: FleetOutcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sim.fleet_page.fleet_frames", lambda log, run: fleet_frames(log, run, max_frames=20))
    page = opened(browser, tmp_path, outcome)
    said = page.text("#sampled")
    found = re.match(r"(\d+) frames of (\d+) moments, one of (\d+)", said)
    assert found is not None, said
    assert int(found[1]) <= 20 and int(found[2]) == len(outcome.log.at_ms)
    assert int(page.one("#slider").get_property("max")) == int(found[1]) - 1


def test_a_run_that_nobody_looked_at_says_what_to_do(browser: webdriver.Chrome, tmp_path: Path) -> None:
    outcome = rehearse(num_replicas=1, num_requests=1, rate=1e6, faults=())
    outcome.log.at_ms.clear()
    for columns in outcome.log.columns.values():
        for name in columns.__struct_fields__:
            getattr(columns, name).clear()
    path = tmp_path / "fleet.html"
    path.write_text(fleet_page(outcome.log, outcome.run))
    page = Page(browser, path.as_uri())
    browser.get(page.url)
    page.wait(lambda: "--log-interval" in page.text("#notice"))
