"""Where kernels stand under ceilings that are stated."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from typing import Any

import pytest

from headrace.measure.report.roofline import (
    Bound,
    Ceilings,
    KernelCall,
    MeasuredPhase,
    MemoryLevel,
    OperationPeak,
    PlacedKernel,
    place,
    result_of,
)
from headrace.measure.report.roofline_plot import roofline_svg

CEILINGS = Ceilings(
    2,
    (MemoryLevel("L1", 64_000, 100e9, 200e9), MemoryLevel("L2", 1_000_000, 50e9, 100e9), MemoryLevel("DRAM", 0, 8e9, 10e9)),
    (OperationPeak("f32", "fma", 50e9, 100e9), OperationPeak("int8", "dot", 200e9, 400e9)),
)
PRODUCT = KernelCall("linear", 1_000_000, operations=2_000_000, kind="int8", streamed_bytes=1_000_000, passed_bytes=4_000)


def kernels(*calls: KernelCall, resident_bytes: int = 100_000_000) -> list[PlacedKernel]:
    phase = MeasuredPhase("decode", 1, [list(calls)], [sum(call.duration_ns for call in calls)])
    return list(place(phase, CEILINGS, resident_bytes=resident_bytes).kernels)


def test_few_rows_are_bound_by_reading_the_weights_from_memory() -> None:
    (kernel,) = kernels(PRODUCT)
    assert (kernel.bound, kernel.level) == (Bound.STREAM, "DRAM")
    assert kernel.roof_ns == pytest.approx(100_000)
    assert kernel.share_of_roof == pytest.approx(0.1)
    assert kernel.bytes_per_s == pytest.approx(1.004e9)


def test_many_rows_are_bound_by_the_arithmetic_of_their_kind() -> None:
    for kind, roof_ns in (("int8", 500_000), ("f32", 2_000_000), ("bf16", 2_000_000)):
        (kernel,) = kernels(replace(PRODUCT, operations=200_000_000, kind=kind))
        assert kernel.bound is Bound.COMPUTE
        assert kernel.roof_ns == pytest.approx(roof_ns)
        assert kernel.kind == ("int8" if kind == "int8" else "f32"), "what has no instruction is expanded to float32"


def test_where_there_are_tiles_theirs_is_the_roof_of_their_kind() -> None:
    tiles = OperationPeak("int8 tiles", "dot of tiles", 1e12, 2e12)
    ceilings = replace(CEILINGS, peaks=(*CEILINGS.peaks, tiles))
    assert ceilings.peak_of("int8") is tiles
    assert ceilings.peak_of("f32").kind == "f32"


def test_a_model_that_fits_in_a_cache_streams_from_there() -> None:
    (kernel,) = kernels(PRODUCT, resident_bytes=1_000_000)
    assert kernel.level == "L2"
    assert kernel.roof_ns == pytest.approx(10_000)


def test_activations_come_from_the_nearest_level_that_holds_them() -> None:
    norm = KernelCall("norm", 40_000, operations=10, passed_bytes=60_000)
    (kernel,) = kernels(norm)
    assert (kernel.bound, kernel.level) == (Bound.PASS, "L1")
    assert kernel.roof_ns == pytest.approx(300)


def test_a_call_too_short_for_its_roof_is_bound_by_being_called() -> None:
    (kernel,) = kernels(KernelCall("norm", 5_000, operations=10, passed_bytes=2_000))
    assert kernel.bound is Bound.CALL


def test_calls_of_a_kernel_are_summed_over_a_step_and_steps_are_told_by_their_median() -> None:
    steps = [[replace(PRODUCT, duration_ns=d)] * 3 for d in (10_000, 900_000, 20_000)]
    phase = place(MeasuredPhase("decode", 1, steps, [40_000, 3_000_000, 100_000]), CEILINGS, resident_bytes=10**8)
    (kernel,) = phase.kernels
    assert (kernel.num_calls, kernel.step_ns, kernel.operations) == (3, 60_000, 6_000_000)
    assert phase.step_ns == 100_000
    assert phase.outside_ns == 40_000


def test_the_slowest_kernel_comes_first() -> None:
    short = KernelCall("norm", 10, operations=10, passed_bytes=8)
    assert [kernel.name for kernel in kernels(short, PRODUCT)] == ["linear", "norm"]


def test_the_plot_is_well_formed_and_shows_every_kernel_that_computes() -> None:
    silent = KernelCall("select_rows", 100, passed_bytes=100)
    named = replace(PRODUCT, name="linear <a & b>")
    phase = place(MeasuredPhase("decode <1>", 1, [[named, silent]], [2_000_000]), CEILINGS, resident_bytes=10**8)
    root = ElementTree.fromstring(roofline_svg("a model & its <steps>", CEILINGS, [phase]))
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("linear <a & b>: ") for title in titles)
    assert not any("select_rows" in title for title in titles)


def test_a_result_holds_rates_in_units_of_one() -> None:
    phase = place(MeasuredPhase("decode", 1, [[PRODUCT]], [1_500_000]), CEILINGS, resident_bytes=10**8)
    result: Any = result_of(CEILINGS, [phase], {"model": "m"})
    assert result["model"] == "m"
    (shown,) = result["phases"]
    assert shown["step_s"] == pytest.approx(0.0015)
    assert shown["kernels"][0]["operations_per_s"] == pytest.approx(2e9)
