"""The safetensors reader: what the library writes is read back; what is damaged is refused by file and tensor."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from tests.checkpoint_files import raw_safetensors, safetensors_bytes

from headrace.base.errors import CheckpointError
from headrace.engine.models.safetensors import SafetensorsFiles

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.arange(4, dtype=np.float32)


def _folder(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "model.safetensors").write_bytes(content)
    return tmp_path


def test_a_file_written_by_the_library_is_read_back(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "half": A.astype(np.float16),
        "single": A,
        "double": A.astype(np.float64),
        "bytes": np.arange(5, dtype=np.uint8),
        "scalar": np.array(3.5, np.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with SafetensorsFiles(tmp_path) as files:
        types = {name: tensor.storage for name, tensor in files.tensors.items()}
        assert types == {"half": "F16", "single": "F32", "double": "F64", "bytes": "U8", "scalar": "F32"}
        for name, array in tensors.items():
            assert files.tensors[name].shape == array.shape
            assert bytes(files.data(name)) == array.tobytes()


def test_tensor_data_is_a_read_only_view_and_outlives_the_files(tmp_path: Path) -> None:
    files = SafetensorsFiles(_folder(tmp_path, safetensors_bytes({"a": A})))
    data = files.data("a")
    files.close()
    assert data.readonly
    assert bytes(data) == A.tobytes()


def _shards(folder: Path, weight_map: object) -> Path:
    (folder / "one.safetensors").write_bytes(safetensors_bytes({"a": A}))
    (folder / "two.safetensors").write_bytes(safetensors_bytes({"b": B, "spare": B}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_shards_are_read_by_their_index(tmp_path: Path) -> None:
    with SafetensorsFiles(_shards(tmp_path, {"b": "two.safetensors", "a": "one.safetensors"})) as files:
        assert sorted(files.tensors) == ["a", "b"], "what the index does not name is left alone"
        assert bytes(files.data("b")) == B.tobytes()
        assert files.file_of("b").name == "two.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "three.safetensors"}, "'a' should be in 'three.safetensors'"),
        ({"a": "../one.safetensors"}, r"'a' should be in '\.\./one\.safetensors'"),
        ({"a": 7}, "'a' should be in 7"),
        ({"c": "one.safetensors"}, r"one\.safetensors: tensor 'c', promised by the index, is not in it"),
        ({}, "weight_map must be an object"),
        ([], "weight_map must be an object"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path, weight_map: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFiles(_shards(tmp_path, weight_map))


def _entry(shape: object = (4,), offsets: object = (0, 16), dtype: object = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGED = {
    "an empty file": (b"", "the file is empty"),
    "seven bytes": (bytes(7), "the file is cut short: it has 7 bytes"),
    "an absurd header": (struct.pack("<Q", 1 << 60) + bytes(8), "not a safetensors file"),
    "half a header": (safetensors_bytes({"a": A})[:20], "the file is cut short: its header"),
    "a header that is no JSON": (struct.pack("<Q", 4) + b"{{{{", "header is not valid JSON"),
    "a header without end": (struct.pack("<Q", 99_999) + b"[" * 99_999, "header is not valid JSON"),
    "a header that is a list": (raw_safetensors([], b""), "must be a JSON object"),
    "a repeated tensor": (
        struct.pack("<Q", 15) + b'{"a":1,"a":2}  ',
        "a key appears twice",
    ),
    "an entry that is no object": (raw_safetensors({"t": 5}, b""), "entry for tensor 't'"),
    "an unknown type": (raw_safetensors({"t": _entry(dtype="F12")}, bytes(16)), "'t' has the unknown type 'F12'"),
    "a negative shape": (raw_safetensors({"t": _entry(shape=[-4])}, bytes(16)), r"'t' has the shape \[-4\]"),
    "a shape in words": (raw_safetensors({"t": _entry(shape="4")}, bytes(16)), "'t' has the shape '4'"),
    "a shape of truths": (raw_safetensors({"t": _entry(shape=[True])}, bytes(4)), r"'t' has the shape \[True\]"),
    "a thousand dimensions": (raw_safetensors({"t": _entry(shape=[1] * 1000)}, bytes(4)), "'t' has the shape"),
    "three offsets": (raw_safetensors({"t": _entry(offsets=[0, 8, 16])}, bytes(16)), "data_offsets"),
    "offsets backwards": (raw_safetensors({"t": _entry(offsets=[16, 0])}, bytes(16)), "needs 16 bytes, but has -16"),
    "too few bytes": (raw_safetensors({"t": _entry(offsets=[0, 8])}, bytes(8)), "needs 16 bytes, but has 8"),
    "a tensor beyond the end": (raw_safetensors({"t": _entry()}, bytes(12)), "the file is cut short: tensor 't'"),
    "a gap": (raw_safetensors({"t": _entry(offsets=[4, 20])}, bytes(20)), "'t' leaves a gap"),
    "an overlap": (
        raw_safetensors({"s": _entry(), "t": _entry(offsets=[8, 24])}, bytes(24)),
        "'t' overlaps",
    ),
    "bytes to spare": (raw_safetensors({"t": _entry()}, bytes(20)), "4 bytes at its end belong to no tensor"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    content, message = DAMAGED[damage]
    folder = _folder(tmp_path, content)
    with pytest.raises(CheckpointError, match=message) as caught:
        SafetensorsFiles(folder)
    assert "model.safetensors" in str(caught.value), "the message names the file"


SOUND = safetensors_bytes({"a": A, "b": B}, metadata={"format": "pt"})


@settings(max_examples=300)
@given(data=st.data())
def test_whatever_the_damage_reading_ends_in_tensors_or_a_checkpoint_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(SOUND)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 8))
        patch = data.draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"9" * 8, b"[[[[", b'"', b"}"])))
        content[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "damaged" / "model.safetensors"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)  # a new file each time: the old one may still be mapped
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(CheckpointError), SafetensorsFiles(path.parent) as files:
        for name, tensor in files.tensors.items():
            assert len(files.data(name)) == tensor.num_bytes
