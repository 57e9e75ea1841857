"""The matrix products of every weight format, for 1 to 512 rows: operations per second, and weight bytes per second beside
what one core reads. Weights are so many that none is in a cache when its turn comes."""

import argparse
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from benchmarks.harness import Figure, Result

from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.native.ops import KERNEL_FORMATS, NativeOps
from headrace.engine.ops.storage import STORAGE_BLOCKS, storage_bytes

_FORMATS = (
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "INT4_G128",
    "INT8_CHANNEL",
    "F16",
    "BF16",
    "F32",
)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512)
_SECONDS_PER_FIGURE = 0.25


@dataclass(frozen=True)
class Shape:
    num_in: int
    num_out: int

    def __str__(self) -> str:
        return f"{self.num_in}x{self.num_out}"


def random_weight(storage: str, shape: Shape, rng: np.random.Generator) -> HostTensor:
    """Any integers, small scales: wherever a block's scales stand, a small number in each format."""
    size = (shape.num_out, shape.num_in)
    if storage in ("F32", "F16"):
        numbers = rng.standard_normal(size).astype(np.float16 if storage == "F16" else np.float32)
        return HostTensor("w", storage, size, numbers.reshape(-1).view(np.uint8).data)
    if storage == "BF16":
        halves = (rng.standard_normal(size).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return HostTensor("w", storage, size, halves.reshape(-1).view(np.uint8).data)
    raw = rng.integers(0, 256, storage_bytes(storage, size), dtype=np.uint8)
    if storage == "INT8_CHANNEL":
        raw.reshape(shape.num_out, -1)[:, :4] = np.full((shape.num_out, 1), 0.01, "<f4").view(np.uint8)
    else:
        blocks = raw.reshape(-1, STORAGE_BLOCKS[storage].num_bytes)
        half = np.full((len(blocks), 1), 0.01, "<f2").view(np.uint8)
        if storage.startswith("INT4"):
            blocks[:, :4] = np.full((len(blocks), 1), 0.015625, "<f4").view(np.uint8)
            blocks[:, 4] = 8
        elif storage == "Q6_K":
            blocks[:, 208:] = half
        else:
            blocks[:, :2] = half
            if storage in ("Q4_1", "Q5_1", "Q4_K", "Q5_K"):
                blocks[:, 2:4] = half
    return HostTensor("w", storage, size, raw.data)


class Products:
    """One format's products with rows of one shape, each call with the next of many weights."""

    def __init__(self, ops: NativeOps, storage: str, shape: Shape, *, working_set: int) -> None:
        rng = np.random.default_rng(0)
        self._ops = ops
        self._shape = shape
        weight = random_weight(storage, shape, rng)
        self.weight_bytes = weight.data.nbytes
        count = max(2, math.ceil(working_set / self.weight_bytes))
        self._weights = [ops.load_linear([weight]) for _ in range(count)]

    def seconds(self, num_rows: int) -> list[float]:
        """Per product, one figure for each pass over all weights."""
        x = np.random.default_rng(1).standard_normal((num_rows, self._shape.num_in)).astype(np.float32)
        rows = self._ops._engine.from_array(x)
        taken: list[float] = []
        with self._ops.computing():
            self._pass(rows)
            began = time.perf_counter()
            while len(taken) < 3 or (time.perf_counter() - began < _SECONDS_PER_FIGURE and len(taken) < 101):
                start = time.perf_counter()
                self._pass(rows)
                taken.append((time.perf_counter() - start) / len(self._weights))
        return taken

    def _pass(self, rows: object) -> None:
        for weight in self._weights:
            self._ops.linear(rows, weight)  # type: ignore[arg-type]


def read_bandwidth(num_bytes: int = 256 << 20) -> float:
    """GB/s at which one core reads, by NumPy's maximum over large integers: a lower bound to what both can."""
    numbers: npt.NDArray[np.int64] = np.zeros(num_bytes // 8, np.int64)
    best = 0.0
    for _ in range(5):
        start = time.perf_counter()
        numbers.max()
        best = max(best, num_bytes / (time.perf_counter() - start))
    return best / 1e9


def figures(name: str, products: Products, shape: Shape, rows: tuple[int, ...]) -> Iterator[Figure]:
    for num_rows in rows:
        taken = products.seconds(num_rows)
        operations = 2 * num_rows * shape.num_in * shape.num_out
        yield Figure(f"{name} {shape}, {num_rows} rows", "Gop/s", tuple(operations / s / 1e9 for s in taken))
        if num_rows <= 4:
            yield Figure(
                f"{name} {shape}, {num_rows} rows: weights", "GB/s", tuple(products.weight_bytes / s / 1e9 for s in taken)
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", nargs="+", default=list(_FORMATS), choices=sorted(KERNEL_FORMATS), metavar="FORMAT")
    parser.add_argument("--shapes", nargs="+", default=["576x3072", "2048x2048"], help="inputs x outputs")
    parser.add_argument("--rows", nargs="+", type=int, default=list(_ROWS))
    parser.add_argument("--num-threads", type=int, default=2)
    parser.add_argument("--isa", default="")
    parser.add_argument("--working-set-mb", type=int, default=128, help="of weights, as their file has them")
    parser.add_argument("--no-result", action="store_true", help="print only")
    options = parser.parse_args()
    result = Result("kernels", f"Matrix products by weight format, {options.num_threads} threads, weights from memory")
    result.figures.append(Figure("one core reads", "GB/s", (read_bandwidth(),)))
    for text in options.shapes:
        shape = Shape(*map(int, text.split("x")))
        for storage in options.formats:
            ops = NativeOps(
                dtype="bfloat16" if storage == "BF16" else "float32", num_threads=options.num_threads, isa=options.isa
            )
            products = Products(ops, storage, shape, working_set=options.working_set_mb << 20)
            for figure in figures(storage, products, shape, tuple(options.rows)):
                result.figures.append(figure)
                print(figure, flush=True)
            del products, ops
            gc.collect()
    if not options.no_result:
        result.save()


if __name__ == "__main__":
    main()
