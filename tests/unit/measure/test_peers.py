"""What a comparison with other engines makes of its runs, and what it knows of the machine meanwhile."""

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from benchmarks.peers import load
from benchmarks.peers.load import OtherLoad
from benchmarks.peers.measures import PARTS, Measured, Taken, highest, prompts
from benchmarks.peers.report import Report, bars, ordered


def measured(*runs: tuple[str, float, float], is_less_better: bool = False, factor: float | None = 2.0) -> Measured:
    taken = [Taken(who, value, other) for who, value, other in runs]
    return Measured("decode", "tok/s", is_less_better, factor, taken)


def test_a_tainted_run_does_not_count_where_there_is_a_clean_one(tmp_path: Path) -> None:
    report = Report(tmp_path / "peers.json")
    report.keep("decode", [measured(("headrace", 10, 1.5), ("headrace", 30, 0.0), ("llama.cpp", 7, 1.0))], 1)
    (measure,) = report.measures
    assert measure["who"]["headrace"]["median"] == 30
    assert measure["who"]["headrace"]["num_tainted"] == 1
    assert measure["who"]["llama.cpp"]["median"] == 7, "where there is none, the tainted ones do, and are marked"


def test_the_target_is_by_the_best_peer_and_our_best_form(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    runs = [("headrace Q4_0", 50.0, 0.0), ("headrace Q4_1", 40.0, 0.0), ("llama.cpp", 10.0, 0.0), ("OpenVINO", 20.0, 0.0)]
    Report(path).keep("decode", [measured(*runs)], 1)
    (target,) = Report(path)._document()["targets"]
    assert target["reached"] == pytest.approx(2.5)
    assert target["is_met"] is True
    assert "(OpenVINO)" in target["text"]


def test_where_less_is_better_the_least_is_best(tmp_path: Path) -> None:
    report = Report(tmp_path / "peers.json")
    report.keep("start", [measured(("headrace", 4.0, 0.0), ("llama.cpp", 2.0, 0.0), is_less_better=True)], 1)
    assert [who for who, _ in ordered(report.measures[0])] == ["llama.cpp", "headrace"]
    (target,) = report._document()["targets"]
    assert (target["reached"], target["is_met"]) == (pytest.approx(0.5), False)


def test_parts_measured_at_different_times_stand_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    Report(path).keep("decode", [measured(("headrace", 1.0, 0.0))], 1)
    Report(path).keep("start", [measured(("headrace", 2.0, 0.0))], 1)
    Report(path).keep("decode", [measured(("headrace", 3.0, 0.0))], 1)
    assert [measure["who"]["headrace"]["median"] for measure in Report(path).measures] == [3.0, 2.0]


def test_a_part_that_was_measured_on_another_processor_is_told(tmp_path: Path) -> None:
    path = tmp_path / "peers.json"
    Report(path).keep("decode", [measured(("headrace", 1.0, 0.0))], 1)
    document = json.loads(path.read_text())
    document["parts"]["decode"]["processor"] = "Abacus 3"
    path.write_text(json.dumps(document))
    report = Report(path)
    report.keep("start", [measured(("headrace", 2.0, 0.0))], 1)
    assert report._document()["notes"] == ["decode: measured on Abacus 3"]


def test_a_peer_that_cannot_is_told_and_is_no_end(tmp_path: Path) -> None:
    one = measured(("headrace", 1.0, 0.0))
    one.failures["vLLM CPU BF16"] = "RuntimeError: no"
    report = Report(tmp_path / "peers.json")
    report.keep("decode", [one], 1)
    assert "vLLM CPU BF16: RuntimeError: no" in report._document()["notes"]
    assert not report._document()["targets"], "without a peer's figure there is nothing to compare with"


def test_the_plot_is_well_formed(tmp_path: Path) -> None:
    report = Report(tmp_path / "peers.json")
    report.keep("decode", [measured(("headrace <1>", 1.0, 0.5), ("a & b", 2.0, 0.0)), Measured("none", "s", True, None)], 1)
    root = ElementTree.fromstring(bars(report.measures))
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == 3, "the page, and a bar for each"


def test_our_own_work_is_not_other_load(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((load._Moment(0.0, 100.0, 40.0), load._Moment(10.0, 119.0, 58.0)))
    monkeypatch.setattr(load, "_moment", lambda: next(moments))
    with OtherLoad() as other:
        pass
    assert other.cores == pytest.approx(0.1)
    assert not other.is_tainted


def test_the_machine_is_read_with_this_process_in_it() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("this system has no /proc with what processes hold")
    assert os.getpid() in load.tree(os.getpid())
    assert load.resident_bytes(os.getpid()) > 1_000_000


def test_prompts_differ_between_rounds_and_share_what_they_are_to_share() -> None:
    first, second = prompts(3, 40, seed=1, shared=30), prompts(3, 40, seed=2, shared=30)
    assert len({tuple(prompt[:30]) for prompt in first}) == 1
    assert len({tuple(prompt) for prompt in first}) == 3
    assert first[0][:30] != second[0][:30]
    assert {len(prompt) for prompt in first} == {40}


def test_parts_have_names_of_their_own() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)


@pytest.mark.parametrize("limit", [0.3, 0.5, 0.77, 1.0, 3.1, 8.0, 23.7, 63.9, 1000.0])
def test_the_highest_rate_is_found_to_a_tenth(limit: float) -> None:
    asked: list[float] = []

    def keeps(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    found = highest(keeps, lowest=0.5)

    if limit < 0.5:
        assert found == 0
    else:
        assert found <= limit and found * 1.1 >= min(limit, 64)
    assert len(set(asked)) == len(asked) < 13
