"""Which ops are chosen for what, and what is said of it."""

import sys

import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.registry import OpsChoice, choose_ops

AS_STORED = frozenset({"Q4_1", "Q8_0"})


@pytest.fixture
def kernels() -> None:
    pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")


def choose(
    wanted: str = "auto",
    *,
    device: str = "cpu",
    dtype: str = "auto",
    storages: frozenset[str] = AS_STORED,
    block_size: int = 16,
) -> OpsChoice:
    return choose_ops(wanted, device=device, dtype=dtype, storages=storages, block_size=block_size)


@pytest.mark.usefixtures("kernels")
def test_native_serves_quantised_checkpoints_that_it_keeps_as_stored() -> None:
    choice = choose()
    assert (choice.name, choice.remark) == ("native", "")
    assert choice.make(1).processor.startswith("native-")


@pytest.mark.usefixtures("kernels")
def test_a_format_without_a_kernel_goes_to_torch_and_says_so() -> None:
    choice = choose(storages=frozenset({"Q3_K", "Q4_1"}))
    assert (choice.name, choice.remark) == ("torch", "without the native kernels: they do not keep Q3_K as stored")
    assert choice.make(1).processor.startswith("torch-")


@pytest.mark.usefixtures("kernels")
def test_plain_tables_beside_quantised_projections_are_served_natively_and_plain_checkpoints_are_not() -> None:
    assert choose(storages=frozenset({"INT4_G128", "BF16"})).name == "native"
    assert choose(storages=frozenset({"BF16"})).name == "torch"


def test_who_names_a_dtype_gets_that_arithmetic_throughout() -> None:
    choice = choose(dtype="float32")
    assert (choice.name, choice.remark, choice.make(1).dtype) == ("torch", "", "float32")


@pytest.mark.usefixtures("kernels")
def test_native_that_is_asked_for_holds_what_it_has_no_kernel_for_as_told() -> None:
    choice = choose("native", dtype="bfloat16", storages=frozenset({"Q3_K", "F64", "Q4_1"}))
    assert (choice.name, choice.remark) == ("native", "F64, Q3_K held as bfloat16")
    assert choice.make(1).dtype == "bfloat16"


@pytest.mark.usefixtures("kernels")
def test_blocks_that_are_no_whole_pages_go_to_torch_unless_native_is_asked_for() -> None:
    assert choose(block_size=8).name == "torch"
    assert "multiple of 16, not 8" in choose(block_size=8).remark
    with pytest.raises(ConfigurationError, match="ops native cannot be had: they need a block_size"):
        choose("native", block_size=8)


def test_native_computes_on_the_cpu_only() -> None:
    assert choose(device="cuda").name == "torch"
    with pytest.raises(ConfigurationError, match="they compute on the CPU"):
        choose("native", device="cuda")


def test_a_package_without_the_compiled_kernels_still_serves_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.engine.ops.native._kernels", None)  # importing it fails
    monkeypatch.delattr("headrace.engine.ops.native._kernels", raising=False)
    choice = choose()
    assert choice.name == "torch"
    assert "not built when this package was installed" in choice.remark
    assert choice.make(1).dtype in ("float32", "bfloat16")
    with pytest.raises(ConfigurationError, match="want of a C\\+\\+ compiler; take ops torch"):
        choose("native")
