"""Hugging Face checkpoints whose projections are quantised: what `quantization_config` says, and their tensors as rows.

Knows how AWQ, GPTQ and compressed-tensors describe what they wrote, which variants are served, and the names of their
tensors. Refuses the others by name. Does not know how integers lie in words: `ops/packed_integers.py` does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.base.errors import CheckpointError
from headrace.engine.models.fields import Fields
from headrace.engine.models.tensor_files import StoredTensor, TensorFiles
from headrace.engine.ops.host_tensor import HostTensor
from headrace.engine.ops.packed_integers import Packing, integer_rows, storage_of_rows
from headrace.engine.ops.storage import storage_bytes

_METHODS = ("awq", "gptq", "compressed-tensors")
_GROUP_SIZES = (32, 64, 128)
_NIBBLES = 8
"""Four-bit integers in a word."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a checkpoint's quantised projections are packed."""

    packing: Packing
    group_size: int
    """Inputs that share a scale; -1: all of a row."""


def read_quantization(config: Fields) -> Quantization | None:
    """From a config.json; None where nothing is quantised. Raises CheckpointError that names what is not served."""
    section = config.section_or_none("quantization_config")
    if section is None:
        if config.has("compression_config"):
            raise config.fail("compression_config", "that is an early form of quantization_config; save the model anew")
        return None
    method = section.text("quant_method")
    match method:
        case "awq":
            return _awq(section)
        case "gptq":
            return _gptq(section)
        case "compressed-tensors":
            return _compressed(section)
    raise section.fail("quant_method", f"supported are {', '.join(_METHODS)}; use the model's plain or GGUF form")


def _awq(section: Fields) -> Quantization:
    version = section.text_or("version", "gemm").lower()
    if version != "gemm":
        raise section.fail("version", "the supported layout of AWQ is gemm")
    _need_four_bits(section, section.count_or("bits", section.count_or("w_bit", 4)))
    if not section.flag_or("zero_point", True):
        raise section.fail("zero_point", "AWQ without zero points is not supported")
    return Quantization(Packing.AWQ, _group_size(section, section.integer_or("q_group_size", 128)))


def _gptq(section: Fields) -> Quantization:
    _need_four_bits(section, section.count("bits"))
    if section.flag_or("is_marlin_format", False):
        raise section.fail("is_marlin_format", "weights repacked for one GPU kernel are not supported")
    packings = {"gptq": Packing.GPTQ, "gptq_v2": Packing.GPTQ_V2}
    name = section.text_or("checkpoint_format", "gptq")
    if name not in packings:
        raise section.fail("checkpoint_format", f"supported are {' and '.join(packings)}")
    return Quantization(packings[name], _group_size(section, 128))


def _compressed(section: Fields) -> Quantization:
    groups = section.section_or_none("config_groups")
    if groups is None or len(groups.values) != 1:
        raise CheckpointError(f"{section.source}: config_groups must hold one group: a mixture of schemes is not supported")
    sparsity = section.section_or_none("sparsity_config")
    if sparsity is not None and sparsity.text_or("format", "dense") != "dense":
        raise sparsity.fail("format", "sparse weights are not supported")
    group = groups.section_or_none(next(iter(groups.values)))
    weights = group.section_or_none("weights") if group is not None else None
    if group is None or weights is None:
        raise CheckpointError(f"{groups.source}: a group must say what its weights are")
    if weights.text_or("type", "int") != "int":
        raise weights.fail("type", "integers are supported")
    name = group.text_or("format", section.text_or("format", "dense"))
    inputs = group.section_or_none("input_activations")
    if group.section_or_none("output_activations") is not None:
        raise group.fail("output_activations", "outputs that are quantised are not supported")
    match name:
        case "pack-quantized":
            return _compressed_int4(weights, inputs)
        case "int-quantized":
            return _compressed_int8(group, weights, inputs)
    raise section.fail("format", "supported are pack-quantized (4 bits) and int-quantized (8 bits)")


def _compressed_int4(weights: Fields, inputs: Fields | None) -> Quantization:
    _need_four_bits(weights, weights.count("num_bits"), key="num_bits")
    if inputs is not None:
        raise inputs.fail("num_bits", "packed weights are supported where inputs are not quantised (W4A16)")
    strategy = weights.text_or("strategy", "group")
    if strategy == "channel":
        return Quantization(Packing.COMPRESSED_INT4, -1)
    if strategy != "group":
        raise weights.fail("strategy", "supported are group and channel")
    return Quantization(Packing.COMPRESSED_INT4, _group_size(weights, 128))


def _compressed_int8(group: Fields, weights: Fields, inputs: Fields | None) -> Quantization:
    if weights.count("num_bits") != 8:
        raise weights.fail("num_bits", "int-quantized weights of 8 bits are supported")
    if weights.text_or("strategy", "channel") != "channel":
        raise weights.fail("strategy", "8-bit weights are supported with one scale for each output channel")
    if not weights.flag_or("symmetric", True):
        raise weights.fail("symmetric", "8-bit weights with zero points are not supported")
    if inputs is None:
        raise group.fail("input_activations", "8-bit weights are supported where inputs have 8 bits too (W8A8)")
    if inputs.count_or("num_bits", 8) != 8 or inputs.text_or("type", "int") != "int":
        raise inputs.fail("num_bits", "8-bit integer inputs are supported")
    if inputs.values.get("dynamic") is not True:
        raise inputs.fail("dynamic", "inputs whose scales were fixed beforehand are not supported")
    if inputs.text_or("strategy", "token") != "token":
        raise inputs.fail("strategy", "inputs with one scale for each token are supported")
    if not inputs.flag_or("symmetric", True):
        raise inputs.fail("symmetric", "inputs with zero points are not supported")
    return Quantization(Packing.COMPRESSED_INT8, -1)


def _need_four_bits(section: Fields, bits: int, *, key: str = "bits") -> None:
    if bits != 4:
        raise section.fail(key, "packed integers of 4 bits are supported")


def _group_size(section: Fields, default: int) -> int:
    size = section.integer_or("group_size", default)
    if size != -1 and size not in _GROUP_SIZES:
        raise section.fail("group_size", f"supported are {', '.join(map(str, _GROUP_SIZES))} and -1")
    return size


# Tensors


@dataclass(frozen=True, slots=True)
class RowsTensor:
    """A projection that is put together from the tensors of its module."""

    name: str
    storage: str
    shape: tuple[int, int]
    members: tuple[str, ...]
    """Names of its tensors within the module."""

    @property
    def num_bytes(self) -> int:
        return storage_bytes(self.storage, self.shape)


_MEMBERS: dict[Packing, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # The tensor that marks a quantised module, those that must be beside it, and those that may
    Packing.AWQ: ("qweight", ("qzeros", "scales"), ()),
    Packing.GPTQ: ("qweight", ("qzeros", "scales"), ("g_idx",)),
    Packing.GPTQ_V2: ("qweight", ("qzeros", "scales"), ("g_idx",)),
    Packing.COMPRESSED_INT4: ("weight_packed", ("weight_scale", "weight_shape"), ("weight_zero_point", "weight_g_idx")),
    Packing.COMPRESSED_INT8: ("weight", ("weight_scale",), ("weight_zero_point",)),
}

_FLOATS = ("F16", "BF16", "F32")


class QuantizedFiles:
    """The container's tensors, each quantised module's as one: `...q_proj.weight`, rows of integers with their scales."""

    def __init__(self, files: TensorFiles, quantization: Quantization) -> None:
        """Raises CheckpointError where a module's tensors are incomplete or do not fit one another."""
        self.quantization = quantization
        self._files = files
        self.tensors: dict[str, StoredTensor] = {}
        mark, _, _ = _MEMBERS[quantization.packing]
        modules = [name.removesuffix(f".{mark}") for name in files.tensors if self._is_quantized(name, mark)]
        taken: set[str] = set()
        for module in modules:
            tensor = self._module(module)
            self.tensors[tensor.name] = tensor
            taken.update(f"{module}.{member}" for member in tensor.members)
        for name, stored in files.tensors.items():
            if name not in taken and not self._is_empty_bias(name, modules):
                self.tensors[name] = stored

    def _is_quantized(self, name: str, mark: str) -> bool:
        return name.endswith(f".{mark}") and (mark != "weight" or self._files.tensors[name].storage == "I8")

    def _is_empty_bias(self, name: str, modules: list[str]) -> bool:
        """Writers of GPTQ and AWQ add biases to models that have none: all zero."""
        return name.endswith(".bias") and name.removesuffix(".bias") in modules and not any(self._files.data(name))

    def _module(self, module: str) -> RowsTensor:
        mark, needed, optional = _MEMBERS[self.quantization.packing]
        missing = [member for member in needed if f"{module}.{member}" not in self._files.tensors]
        if missing:
            raise self._fail(module, mark, f"{', '.join(missing)} of the same module is missing")
        members = (mark, *needed, *(member for member in optional if f"{module}.{member}" in self._files.tensors))
        shape = self._check_shapes(module, members)
        packing, group_size = self.quantization.packing, self.quantization.group_size
        index = next((member for member in members if member.endswith("g_idx")), None)
        group_of_input = None if index is None else self._host(module, index)
        storage = storage_of_rows(packing, num_in=shape[1], group_size=group_size, group_of_input=group_of_input)
        if storage is None:
            raise self._fail(module, mark, f"rows of {shape[1]} are no whole groups of {group_size} in multiples of 32")
        return RowsTensor(f"{module}.weight", storage, shape, members)

    def _check_shapes(self, module: str, members: tuple[str, ...]) -> tuple[int, int]:
        """[N, K], once every tensor of the module has the shape and type that follow from it."""
        packing = self.quantization.packing
        mark = self._files.tensors[f"{module}.{members[0]}"]
        if len(mark.shape) != 2 or 0 in mark.shape:
            raise self._fail(module, members[0], f"its shape is {mark.shape}; a matrix is needed")
        rows, columns = mark.shape
        if packing is Packing.AWQ:
            num_out, num_in = columns * _NIBBLES, rows
        elif packing in (Packing.GPTQ, Packing.GPTQ_V2):
            num_out, num_in = columns, rows * _NIBBLES
        elif packing is Packing.COMPRESSED_INT4:
            num_out, num_in = rows, self._packed_columns(module, rows, columns)
        else:
            num_out, num_in = rows, columns
        size = num_in if self.quantization.group_size == -1 else self.quantization.group_size
        groups = num_in // size
        expected = {
            "qweight": ("I32", mark.shape),
            "qzeros": ("I32", (groups, num_out // _NIBBLES)),
            "scales": (_FLOATS, (groups, num_out)),
            "g_idx": ("I32", (num_in,)),
            "weight_packed": ("I32", mark.shape),
            "weight_scale": (_FLOATS, (num_out, groups)),
            "weight_shape": (("I64", "I32"), (2,)),
            "weight_zero_point": ("I32", (-(-num_out // _NIBBLES), groups)),
            "weight_g_idx": (("I32", "I64"), (num_in,)),
            "weight": ("I8", mark.shape),
        }
        if packing is Packing.COMPRESSED_INT8 and "weight_zero_point" in members:
            raise self._fail(module, "weight_zero_point", "8-bit weights with zero points are not supported")
        for member in members:
            stored = self._files.tensors[f"{module}.{member}"]
            types, shape = expected[member]
            if stored.storage not in types or stored.shape != shape:
                raise self._fail(
                    module, member, f"it is {stored.storage} of shape {stored.shape}; {types} of shape {shape} is needed"
                )
        for member in ("g_idx", "weight_g_idx"):
            if member in members:
                self._check_groups(module, member, groups)
        return num_out, num_in

    def _packed_columns(self, module: str, rows: int, words: int) -> int:
        shape = self._host(module, "weight_shape")
        size = 8 if shape.storage == "I64" else 4
        numbers = [int.from_bytes(shape.data[at : at + size], "little") for at in range(0, shape.data.nbytes, size)]
        if len(numbers) != 2 or numbers[0] != rows or -(-numbers[1] // _NIBBLES) != words:
            raise self._fail(module, "weight_shape", f"it says {numbers}, and the packed words are [{rows}, {words}]")
        return numbers[1]

    def _check_groups(self, module: str, member: str, groups: int) -> None:
        index = self._host(module, member)
        size = 8 if index.storage == "I64" else 4
        data = index.data
        if any(int.from_bytes(data[at : at + size], "little") >= groups for at in range(0, data.nbytes, size)):
            raise self._fail(module, member, f"it names groups that are not among the {groups} there are")

    def _host(self, module: str, member: str) -> HostTensor:
        stored = self._files.tensors[f"{module}.{member}"]
        return HostTensor(stored.name, stored.storage, stored.shape, self._files.data(stored.name))

    def _fail(self, module: str, member: str, what: str) -> CheckpointError:
        name = f"{module}.{member}"
        return CheckpointError(f"{self._files.file_of(name)}: tensor {name!r}: {what}")

    # What a container offers

    def header(self) -> Iterator[memoryview]:
        yield memoryview(repr(self.quantization).encode())
        yield from self._files.header()

    def file_of(self, name: str) -> Path:
        tensor = self.tensors[name]
        if isinstance(tensor, RowsTensor):
            return self._files.file_of(f"{tensor.name.removesuffix('.weight')}.{tensor.members[0]}")
        return self._files.file_of(name)

    def data(self, name: str) -> memoryview:
        """Rows of integers are put together anew at every call: they are asked for once."""
        tensor = self.tensors[name]
        if not isinstance(tensor, RowsTensor):
            return self._files.data(name)
        module = name.removesuffix(".weight")
        members = {member: self._host(module, member) for member in tensor.members}
        rows = integer_rows(self.quantization.packing, tensor.storage, members, tensor.shape)
        assert rows.nbytes == tensor.num_bytes
        return rows

    def stored_bytes(self) -> Iterator[memoryview]:
        """Every tensor as it lies in the files, by name."""
        for name in sorted(self._files.tensors):
            yield self._files.data(name)

    def release_pages(self) -> None:
        self._files.release_pages()

    def close(self) -> None:
        self._files.close()
