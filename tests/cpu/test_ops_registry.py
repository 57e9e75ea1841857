"""Which ops are chosen for what, and what is said of it."""

import sys

import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.registry import OpsChoice, check_something_computes, choose_ops

AS_STORED = frozenset({"Q4_1", "Q8_0"})


@pytest.fixture
def kernels() -> None:
    pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headrace.engine.ops.native._kernels", None)  # importing it fails
    monkeypatch.delattr("headrace.engine.ops.native._kernels", raising=False)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "headrace.engine.ops.torch.ops", raising=False)


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
def test_plain_tables_beside_quantised_projections_are_served_natively() -> None:
    assert choose(storages=frozenset({"INT4_G128", "BF16"})).name == "native"


@pytest.mark.usefixtures("kernels")
def test_who_names_a_dtype_gets_that_arithmetic_throughout() -> None:
    choice = choose(dtype="float32")
    assert (choice.name, choice.make(1).dtype) == ("torch", "float32")
    assert choice.remark == "without the native kernels: they do not compute in float32 throughout with Q4_1, Q8_0"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("storage", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_native_serves_unquantised_checkpoints_in_float32(storage: str, dtype: str) -> None:
    choice = choose(dtype=dtype, storages=frozenset({storage}))
    assert choice.name == "native"
    assert choice.make(1).dtype == "float32"


@pytest.mark.usefixtures("kernels")
def test_bfloat16_that_is_asked_for_is_native_where_the_weights_are_in_it() -> None:
    assert choose(dtype="bfloat16", storages=frozenset({"BF16"})).name == "native"
    assert choose(dtype="bfloat16", storages=frozenset({"BF16", "F32"})).name == "torch"


@pytest.mark.usefixtures("kernels", "no_torch")
def test_without_torch_native_computes_whatever_it_can_hold_and_says_what_it_would_have_left_to_torch() -> None:
    for choice in (choose(storages=frozenset({"IQ4_NL", "Q4_1"})), choose(dtype="float32")):
        assert choice.name == "native"
        assert choice.remark.endswith("; headrace[torch] would")


@pytest.mark.usefixtures("kernels", "no_torch")
def test_without_torch_what_only_torch_computes_is_an_error_that_says_how_to_get_it() -> None:
    for wanted, block_size in (("torch", 16), ("auto", 8)):
        with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[torch\]'"):
            choose(wanted, block_size=block_size)


@pytest.mark.usefixtures("no_kernels", "no_torch")
@pytest.mark.parametrize("wanted", ["auto", "native", "torch"])
def test_with_neither_kernels_nor_torch_the_error_says_what_to_install(wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=r"pip install 'headrace\[torch\]'") as refusal:
        check_something_computes(wanted)
    assert wanted == "torch" or "install a C++ compiler" in str(refusal.value)


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


@pytest.mark.usefixtures("no_kernels")
def test_a_package_without_the_compiled_kernels_still_serves_and_says_why() -> None:
    choice = choose()
    assert choice.name == "torch"
    assert "not built when headrace was installed" in choice.remark
    assert choice.make(1).dtype in ("float32", "bfloat16")
    with pytest.raises(ConfigurationError, match="want of a C\\+\\+ compiler; take ops torch"):
        choose("native")
