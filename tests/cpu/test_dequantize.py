"""Dequantisation, bit for bit against the gguf package where it has the format, against its definition where it has not."""

from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine.ops.dequantize import dequantize
from headrace.engine.ops.iq_grids import grid
from headrace.engine.ops.storage import STORAGE_BLOCKS, row_bytes, storage_bytes

QUANTISED = [name for name, block in STORAGE_BLOCKS.items() if block.num_elements > 1]
WITHOUT_ORACLE = {"Q1_0", "Q2_0", "Q8_K", "INT4_G32", "INT4_G64", "INT4_G128"}
"""Formats that ggml defines and the gguf package cannot dequantise, and those that are not ggml's."""


def _raw(array: npt.NDArray[Any]) -> memoryview:
    """The array's bytes, read-only, as a mapped file would give them."""
    return memoryview(array.tobytes())


def _same_bits(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> bool:
    """Equal in every bit, signs of zero included; NaNs need only be NaNs."""
    both_nan = np.isnan(got) & np.isnan(expected)
    return bool(((got.view(np.uint32) == expected.view(np.uint32)) | both_nan).all())


def _oracle(storage: str, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    with np.errstate(all="ignore"):
        result: Any = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[storage])
    return np.asarray(result, np.float32)


@pytest.mark.parametrize("storage", sorted(set(QUANTISED) - WITHOUT_ORACLE))
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 9), blocks=st.integers(1, 5))
def test_random_bytes_become_the_numbers_that_the_gguf_package_finds_in_them(
    storage: str, seed: int, rows: int, blocks: int
) -> None:
    block = STORAGE_BLOCKS[storage]
    data = np.random.default_rng(seed).integers(0, 256, (rows, blocks * block.num_bytes), dtype=np.uint8)
    shape = (rows, blocks * block.num_elements)
    got = dequantize(storage, _raw(data), shape)
    assert got.shape == shape
    assert _same_bits(got, _oracle(storage, data))


@pytest.mark.parametrize("storage", sorted(set(QUANTISED) - WITHOUT_ORACLE))
def test_more_blocks_than_one_chunk_holds_leave_no_seam(storage: str) -> None:
    block = STORAGE_BLOCKS[storage]
    num_blocks = (1 << 18) // block.num_elements * 2 + 3
    data = np.random.default_rng(3).integers(0, 256, (num_blocks, block.num_bytes), dtype=np.uint8)
    got = dequantize(storage, _raw(data), (num_blocks * block.num_elements,))
    expected = _oracle(storage, data)
    assert _same_bits(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("storage", sorted(name for name in QUANTISED if name not in WITHOUT_ORACLE))
def test_block_sizes_are_those_of_the_format(storage: str) -> None:
    block = STORAGE_BLOCKS[storage]
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[storage]] == (block.num_elements, block.num_bytes)


def test_every_format_that_the_gguf_package_knows_is_known_here() -> None:
    known = {kind.name for kind in gguf.GGMLQuantizationType}
    assert known - STORAGE_BLOCKS.keys() == {"Q8_1"}, "Q8_1 is an intermediate of computation, never in a file"


def _halves(*values: float) -> npt.NDArray[np.uint8]:
    return np.array(values, "<f2").view(np.uint8)


def test_a_group_of_integers_is_a_scale_a_zero_point_and_nibbles() -> None:
    nibbles = np.arange(16, dtype=np.uint8) | 0xF0  # 0 to 15 below, all ones above
    raw = np.concatenate([np.array([0.5], "<f4").view(np.uint8), np.array([9], np.uint8), nibbles])
    got = dequantize("INT4_G32", _raw(raw), (32,))
    assert np.array_equal(got, np.concatenate([(np.arange(16) - 9) * 0.5, np.full(16, 3.0)]))


def test_rows_of_bytes_have_one_scale_each() -> None:
    def row(scale: float, integers: list[int]) -> npt.NDArray[np.uint8]:
        return np.concatenate([np.array([scale], "<f4").view(np.uint8), np.array(integers, np.int8).view(np.uint8)])

    raw = np.concatenate([row(0.25, [-127, 0, 4]), row(2.0, [1, -1, 127])])
    got = dequantize("INT8_CHANNEL", _raw(raw), (2, 3))
    assert np.array_equal(got, np.array([[-31.75, 0, 1], [2, -2, 254]]))
    assert storage_bytes("INT8_CHANNEL", (2, 3)) == 14


def test_q1_0_is_a_sign_for_each_weight_and_one_scale() -> None:
    signs = np.zeros(16, np.uint8)
    signs[0], signs[15] = 0b0000_0101, 0b1000_0000
    got = dequantize("Q1_0", _raw(np.concatenate([_halves(0.5), signs])), (128,))
    expected = np.full(128, -0.5, np.float32)
    expected[[0, 2, 127]] = 0.5
    assert _same_bits(got, expected)


def test_q2_0_is_one_of_four_steps_for_each_weight_and_one_scale() -> None:
    fields = np.full(16, 0b01_01_01_01, np.uint8)  # all zero
    fields[0] = 0b11_10_01_00
    got = dequantize("Q2_0", _raw(np.concatenate([_halves(0.25), fields])), (64,))
    expected = np.zeros(64, np.float32)
    expected[:4] = [-0.25, 0.0, 0.25, 0.5]
    assert np.array_equal(got, expected)


def test_q8_k_is_a_byte_for_each_weight_and_one_float_scale() -> None:
    weights = np.arange(-128, 128).astype(np.int8)
    block = np.concatenate([np.array([0.1], "<f4").view(np.uint8), weights.view(np.uint8), np.zeros(32, np.uint8)])
    got = dequantize("Q8_K", _raw(block), (1, 256))
    assert _same_bits(got[0], np.float32(0.1) * weights.astype(np.float32))


@pytest.mark.parametrize(
    ("storage", "dtype"),
    [("F64", "<f8"), ("F32", "<f4"), ("F16", "<f2"), ("I64", "<i8"), ("I32", "<i4"), ("I16", "<i2"), ("I8", "i1"),
     ("U8", "u1")],
)  # fmt: skip
def test_plain_numbers_become_float32(storage: str, dtype: str) -> None:
    numbers = (np.arange(-6, 6) if dtype[-2] != "u" else np.arange(12)).astype(dtype).reshape(3, 4)
    got = dequantize(storage, _raw(numbers), (3, 4))
    assert np.array_equal(got, numbers.astype(np.float32))


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    bits = np.arange(65536, dtype=np.uint32).astype("<u2")
    got = dequantize("BF16", _raw(bits), (256, 256))
    assert np.array_equal(got.view(np.uint32).reshape(-1), np.arange(65536, dtype=np.uint32) << 16)


def test_the_result_is_the_callers_own() -> None:
    source = _raw(np.ones(4, np.float32))
    got = dequantize("F32", source, (4,))
    got += 1
    assert bytes(source) == np.ones(4, np.float32).tobytes()


def test_a_scalar_has_one_element() -> None:
    assert dequantize("F32", _raw(np.array([2.5], np.float32)), ()) == np.float32(2.5)


def test_bytes_that_do_not_fit_the_shape_are_a_programmers_error() -> None:
    with pytest.raises(AssertionError, match="17 bytes are no Q4_0 tensor of shape"):
        dequantize("Q4_0", memoryview(bytes(17)), (32,))


def test_sizes_count_whole_blocks() -> None:
    assert row_bytes("Q6_K", 512) == 420
    assert storage_bytes("F16", (3, 5)) == 30
    assert storage_bytes("F32", ()) == 4
    with pytest.raises(AssertionError, match="33 elements are no whole blocks of Q4_0"):
        row_bytes("Q4_0", 33)


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_the_tables_of_points_are_the_published_ones(name: str) -> None:
    published: Any = getattr(gguf.quants, name)
    published.init_grid()
    assert np.array_equal(grid(name), published.grid.reshape(published.grid_shape))
