"""Which ops are chosen for what, and what is said of it."""

import sys
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.capabilities import CAPABILITIES, Overrides
from headrace.engine.ops.host_tensor import HostTensor
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


# What a person asks for by name


def choose_with(wanted: str = "auto", *, device: str = "cpu", dtype: str = "auto", **asked: Any) -> OpsChoice:
    return choose_ops(wanted, device=device, dtype=dtype, storages=AS_STORED, block_size=16, overrides=Overrides(**asked))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8", "fp8_e4m3"])
def test_native_holds_keys_and_values_as_told(kv_dtype: str) -> None:
    ops = choose_with(kv_cache_dtype=kv_dtype).make(1)
    assert (ops.kv_dtype, ops.dtype) == (kv_dtype, "float32")


@pytest.mark.usefixtures("kernels")
def test_where_nobody_says_keys_and_values_are_held_in_bfloat16_and_all_else_in_float32() -> None:
    ops = choose_with().make(1)
    assert (ops.kv_dtype, ops.dtype) == ("bfloat16", "float32")
    assert choose_with("native", dtype="float32").make(1).kv_dtype == "float32"


@pytest.mark.usefixtures("kernels")
def test_fp8_is_e4m3() -> None:
    assert choose_with(kv_cache_dtype="fp8").make(1).kv_dtype == "fp8_e4m3"


@pytest.mark.usefixtures("kernels")
def test_a_dtype_that_is_named_is_the_caches_as_well_unless_another_is_named() -> None:
    assert choose_with("native", dtype="bfloat16").make(1).kv_dtype == "bfloat16"
    assert choose_with("native", dtype="bfloat16", kv_cache_dtype="int8").make(1).kv_dtype == "int8"
    assert choose_with("torch", dtype="bfloat16").make(1).kv_dtype == "bfloat16"


@pytest.mark.usefixtures("kernels")
def test_what_only_native_can_do_chooses_native_even_where_a_dtype_is_named() -> None:
    assert choose_with(dtype="float32").name == "torch"
    assert choose_with(dtype="float32", kv_cache_dtype="int8").name == "native"
    assert choose_with(dtype="float32", quantization="q8_0").name == "native"
    assert choose_with(dtype="float32", kv_cache_dtype="float32", quantization="none").name == "torch"


def test_the_reference_refuses_by_name_what_it_cannot_do() -> None:
    with pytest.raises(ConfigurationError, match="kv_cache_dtype int8 cannot be had with ops torch in float32"):
        choose_with("torch", dtype="float32", kv_cache_dtype="int8")
    with pytest.raises(ConfigurationError, match="kv_cache_dtype float32 cannot be had with ops torch in bfloat16"):
        choose_with("torch", dtype="bfloat16", kv_cache_dtype="float32")
    with pytest.raises(ConfigurationError, match="quantization q4_0 cannot be had with ops torch"):
        choose_with("torch", quantization="q4_0")
    with pytest.raises(ConfigurationError, match="kv_cache_dtype fp8 needs the native kernels, and they compute on the CPU"):
        choose_with(device="cuda", kv_cache_dtype="fp8")


def test_batch_invariance_is_promised_on_the_cpu_and_refused_on_a_gpu() -> None:
    assert choose_with("torch", batch_invariant=True).name == "torch"
    with pytest.raises(ConfigurationError, match="batch_invariant cannot be kept by ops torch on cuda"):
        choose_with(device="cuda", dtype="float32", batch_invariant=True)


@pytest.mark.usefixtures("kernels")
def test_an_attention_backend_is_part_of_its_ops() -> None:
    assert choose_with(attention_backend="torch").name == "torch"
    assert choose_with(attention_backend="native", dtype="float32").name == "native"
    with pytest.raises(ConfigurationError, match="attention_backend torch is part of ops torch, but ops native"):
        choose_with("native", attention_backend="torch")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kv_cache_dtype": "in8"}, "kv_cache_dtype 'in8' is none of auto, .*did you mean 'int8'"),
        ({"quantization": "q8"}, "quantization 'q8' is none of auto, none, .*did you mean 'q8_0'"),
        ({"attention_backend": "nativ"}, "attention_backend 'nativ' is none of .*did you mean 'native'"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest_right_one(asked: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Overrides(**asked)  # type: ignore[arg-type]


@pytest.mark.usefixtures("kernels")
def test_weights_are_requantised_as_told() -> None:
    from headrace.engine.ops.native.ops import NativeOps  # not everywhere built

    rows = np.random.default_rng(0).standard_normal((20, 64)).astype(np.float32)
    weight = HostTensor("w", "F32", rows.shape, memoryview(rows.tobytes()))
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    exact = x.astype(np.float64) @ rows.T
    errors = []
    for name in ("none", "q8_0", "q4_1", "q4_0"):
        choice = choose_with("native", quantization=name)
        ops = choice.make(1)
        assert isinstance(ops, NativeOps)
        with ops.computing():
            ours = ops.linear(ops._engine.from_array(x), ops.load_linear([weight])).numpy()
        errors.append(float(np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2))))
        assert choice.weights == f"as {'float32' if name == 'none' else name.upper()}"
    assert errors[0] < 1e-6 < errors[1] < 0.02 < errors[2] < errors[3] < 0.2


@pytest.mark.usefixtures("kernels")
def test_the_table_tells_what_the_native_ops_do() -> None:
    from headrace.engine.ops.native.ops import KV_DTYPES

    assert CAPABILITIES["native"].kv_dtypes == KV_DTYPES
