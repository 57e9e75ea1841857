"""Our quantisers give llama.cpp's bytes."""

import numpy as np
import pytest

from headrace.base.errors import ConfigurationError
from headrace.engine.ops.quantize import quantize
from headrace.engine.ops.storage import QUANTIZATIONS

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("storage", QUANTIZATIONS.values())
@pytest.mark.parametrize("seed", range(5))
def test_blocks_are_those_of_the_gguf_package(storage: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((20, 96)).astype(np.float32) * np.float32(10.0 ** rng.integers(-4, 4))
    rows[3], rows[4, :32] = 0, 1.5
    expected = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[storage])
    assert np.array_equal(quantize(storage, rows), expected.reshape(-1))


def test_rows_that_are_no_whole_blocks_are_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"quantization q8_0: rows of model.x have 48 numbers.*multiple of 32"):
        quantize("Q8_0", np.zeros((2, 48), np.float32), name="model.x")
