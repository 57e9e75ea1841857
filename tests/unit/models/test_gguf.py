"""The GGUF reader: what llama.cpp writes is read back; what is damaged is refused by name, whatever the damage."""

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.checkpoint_files import RawTensor, Typed, f32, gguf_bytes

from headrace.base.errors import CheckpointError
from headrace.engine.models.gguf import GgufFile

EVERY_TYPE: dict[str, Any] = {
    "a.u8": Typed("u8", 255),
    "a.i8": Typed("i8", -128),
    "a.u16": Typed("u16", 65535),
    "a.i16": Typed("i16", -32768),
    "a.u32": Typed("u32", 4294967295),
    "a.i32": Typed("i32", -2147483648),
    "a.u64": Typed("u64", 18446744073709551615),
    "a.i64": Typed("i64", -9223372036854775808),
    "a.f32": Typed("f32", 0.5),
    "a.f64": Typed("f64", 0.1),
    "a.yes": True,
    "a.no": False,
    "a.text": "Grüße, 世界",
    "a.empty": "",
    "a.numbers": Typed("[i32]", [1, -2, 3]),
    "a.floats": Typed("[f32]", [0.5, -0.25]),
    "a.flags": Typed("[bool]", [True, False]),
    "a.words": Typed("[str]", ["", "ab", "c" * 300]),
    "a.nothing": Typed("[u8]", []),
    "a.nested": Typed("[[u16]]", [[1, 2], [], [3]]),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: bytes, name: str = "model.gguf") -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


_TEXTS = st.one_of(
    st.text(st.sampled_from("ab\0é "), max_size=20),
    st.sampled_from(["", "\0" * 7, "\0" * 9, "x" * 255, "x" * 256, "x" * 3000]),
)


@given(texts=st.lists(_TEXTS, max_size=12))
def test_strings_are_read_whatever_zeros_they_hold_and_however_long_they_are(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("strings") / "model.gguf"
    path.write_bytes(gguf_bytes({"a.words": Typed("[str]", texts), "a.after": 7}))
    with GgufFile(path) as file:
        assert file.metadata["a.words"] == texts
        assert file.metadata["a.after"] == 7


@given(texts=st.lists(_TEXTS, max_size=12))
def test_lists_that_are_left_out_are_empty_and_what_follows_them_is_read(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("strings") / "model.gguf"
    numbers = Typed("[i32]", [1, -2, 3])
    path.write_bytes(gguf_bytes({"a.words": Typed("[str]", texts), "a.numbers": numbers, "a.after": 7}))
    with GgufFile(path, without=frozenset({"a.words", "a.numbers"})) as file:
        assert file.metadata == {"a.words": [], "a.numbers": [], "a.after": 7}
        file.forget_metadata()
        assert not file.metadata


@pytest.mark.parametrize("version", [2, 3])
def test_every_metadata_type_is_read(write: Callable[..., Path], version: int) -> None:
    with GgufFile(write(gguf_bytes(EVERY_TYPE, version=version))) as file:
        expected = {k: v.value if isinstance(v, Typed) else v for k, v in EVERY_TYPE.items()}
        assert file.metadata == expected
        assert type(file.metadata["a.yes"]) is bool


def test_a_file_written_by_the_gguf_package_is_read_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((6, 64)).astype(np.float32)
    packed = gguf.quants.quantize(weights, gguf.GGMLQuantizationType.Q4_1)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(3)
    writer.add_token_list(["a", "b"])
    writer.add_tensor("plain", weights)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("half", weights.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufFile(tmp_path / "model.gguf") as file:
        assert file.metadata["llama.block_count"] == 3
        assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        found = {name: (tensor.storage, tensor.shape) for name, tensor in file.tensors.items()}
        assert found == {"plain": ("F32", (6, 64)), "packed": ("Q4_1", (6, 64)), "half": ("F16", (6, 64))}
        assert bytes(file.data("plain")) == weights.tobytes()
        assert bytes(file.data("packed")) == packed.tobytes()
        assert bytes(file.data("half")) == weights.astype(np.float16).tobytes()


def test_tensor_data_is_a_read_only_view_and_outlives_the_file(write: Callable[..., Path]) -> None:
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4)
    file = GgufFile(write(gguf_bytes({}, {"t": f32(numbers)})))
    data = file.data("t")
    assert data.readonly
    file.close()
    assert np.array_equal(np.frombuffer(data, np.float32).reshape(3, 4), numbers)


def test_alignment_is_taken_from_the_metadata(write: Callable[..., Path]) -> None:
    numbers = np.arange(3, dtype=np.float32)
    tensors = {"a": f32(numbers), "b": f32(numbers + 1)}
    with GgufFile(write(gguf_bytes({"general.alignment": 64}, tensors, alignment=64))) as file:
        assert bytes(file.data("b")) == (numbers + 1).tobytes()


def test_text_that_is_not_utf8_keeps_its_bytes(write: Callable[..., Path]) -> None:
    raw = b"\xff\x00caf\xc3\xa9"
    with GgufFile(write(gguf_bytes({"t": Typed("[str]", [raw]), "s": raw}))) as file:
        words = file.metadata["t"]
        assert isinstance(words, list)
        for text in (words[0], file.metadata["s"]):
            assert isinstance(text, str)
            assert text.encode("utf-8", "surrogateescape") == raw


def test_shards_are_one_checkpoint_whichever_is_named(tmp_path: Path) -> None:
    numbers = np.arange(4, dtype=np.float32)
    count = {"split.count": Typed("u16", 2), "split.tensors.count": Typed("i32", 2)}
    first = gguf_bytes({"general.name": "x", "split.no": Typed("u16", 0), **count}, {"a": f32(numbers)})
    second = gguf_bytes({"split.no": Typed("u16", 1), **count}, {"b": f32(numbers + 9)})
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(first)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(second)
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf"):
        with GgufFile(tmp_path / name) as file:
            assert file.metadata["general.name"] == "x"
            assert list(file.tensors) == ["a", "b"]
            assert bytes(file.data("b")) == (numbers + 9).tobytes()
            assert file.file_of("b").name == "m-00002-of-00002.gguf"
            assert len(list(file.header())) == 2


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00003.gguf").write_bytes(gguf_bytes({}))
    with pytest.raises(CheckpointError, match=r"2 of 3 shards are missing, the first is m-00002-of-00003\.gguf"):
        GgufFile(tmp_path / "m-00001-of-00003.gguf")


def test_a_renamed_shard_is_not_taken_for_a_whole_model(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="one of 4 shards"):
        GgufFile(write(gguf_bytes({"split.count": Typed("u16", 4)})))


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for number in (1, 2):
        content = gguf_bytes({"split.count": Typed("u16", 2)}, {"a": f32(np.zeros(4, np.float32))})
        (tmp_path / f"m-{number:05}-of-00002.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match="'a' is in another shard"):
        GgufFile(tmp_path / "m-00001-of-00002.gguf")


ONE = np.ones(4, np.float32)
DAMAGED = {
    "an empty file": (b"", "the file is empty"),
    "another kind of file": (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
    "a file of four bytes": (b"GGUF", "damaged GGUF file: the version needs 4 bytes"),
    "version 1": (gguf_bytes({}, version=1), "GGUF version 1 is not supported"),
    "a version to come": (gguf_bytes({}, version=4), "GGUF version 4 is not supported"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "too many metadata entries": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "metadata entries is 1152921504606846976"),
    "too many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors are announced"),
    "a key longer than the file": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 40) + bytes(64), "the length of a metadata"),
    "an unknown metadata type": (gguf_bytes({"k": Typed("u32", 7)}).replace(b"k\x04", b"k\x63"), "unknown type 99"),
    "an unknown item type": (
        gguf_bytes({"k": Typed("[u32]", [7])}).replace(b"k\x09\0\0\0\x04", b"k\x09\0\0\0\x63"),
        "items of the unknown type 99",
    ),
    "an array longer than the file": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 6, 1 << 50) + bytes(64),
        "more than the 64 bytes left can hold",
    ),
    "strings longer than the file": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQQ", 9, 8, 1, 1 << 62) + bytes(64),
        "string 0 of k claims 4611686018427387904 bytes",
    ),
    "arrays without end": (gguf_bytes({"k": Typed("[[[[[u8]]]]]", [[[[[1]]]]])}), "nests arrays more than 4 deep"),
    "a repeated key": (gguf_bytes({"ka": 1, "kb": 2}).replace(b"kb", b"ka"), "'ka' appears twice"),
    "a key that is no text": (gguf_bytes({"ka": 1}).replace(b"ka", b"\xff\xff"), "not UTF-8"),
    "an odd alignment": (gguf_bytes({"general.alignment": 48}, {"t": f32(ONE)}, alignment=48), "not a power of two"),
    "an alignment in words": (gguf_bytes({"general.alignment": "32"}), "not a power of two"),
    "too many dimensions": (gguf_bytes({}, {"t": RawTensor((1,) * 5, 0, bytes(4))}), "5 dimensions; the limit is 4"),
    "an unknown tensor type": (gguf_bytes({}, {"t": RawTensor((4,), 77, bytes(16))}), "type 77 is unknown"),
    "a removed tensor type": (gguf_bytes({}, {"t": RawTensor((4,), 31, bytes(16))}), "Q4_0_4_4 is a repacked type"),
    "a row of half a block": (gguf_bytes({}, {"t": RawTensor((2, 16), 2, bytes(18))}), "no whole Q4_0 blocks of 32"),
    "no elements": (gguf_bytes({}, {"t": RawTensor((0, 4), 0, b"")}), "has no elements"),
    "a tensor beyond the end": (gguf_bytes({}, {"t": f32(ONE)})[:-1], "the file is cut short: tensor 't'"),
    "an absurd shape": (gguf_bytes({}, {"t": RawTensor((1 << 62, 1 << 62), 0, bytes(16))}), "the file is cut short"),
    "a repeated tensor": (gguf_bytes({}, {"ta": f32(ONE), "tb": f32(ONE)}).replace(b"tb", b"ta"), "'ta' is described twice"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_refused_by_name(write: Callable[..., Path], damage: str) -> None:
    content, message = DAMAGED[damage]
    path = write(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        GgufFile(path)
    assert "model.gguf" in str(caught.value), "the message names the file"


def _with_offset(name: str, offset: int) -> bytes:
    content = gguf_bytes({}, {"ta": f32(np.ones(16, np.float32)), "tb": f32(ONE)})
    at = content.index(name.encode()) + len(name) + 4 + 8 + 4
    return content[:at] + struct.pack("<Q", offset) + content[at + 8 :]


def test_an_offset_between_alignments_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="'tb' is not aligned to 32 bytes"):
        GgufFile(write(_with_offset("tb", 33)))


def test_tensors_that_overlap_are_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(CheckpointError, match="'ta' and 'tb' overlap"):
        GgufFile(write(_with_offset("tb", 32)))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no\.gguf: cannot be read: No such file"):
        GgufFile(tmp_path / "no.gguf")


SOUND = gguf_bytes(
    {**EVERY_TYPE, "general.architecture": "llama"},
    {"a": f32(np.ones((2, 4), np.float32)), "b": RawTensor((1, 32), 2, bytes(18)), "c": f32(ONE)},
)


@settings(max_examples=400)
@given(data=st.data())
def test_whatever_the_damage_reading_ends_in_a_file_or_a_checkpoint_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(SOUND)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(content) - 8))
        patch = data.draw(
            st.one_of(
                st.binary(min_size=1, max_size=8),
                st.sampled_from([0, 1, 31, 1 << 20, 1 << 31, 1 << 32, 1 << 62, (1 << 64) - 1]).map(
                    lambda number: struct.pack("<Q", number)
                ),
            )
        )
        content[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.unlink(missing_ok=True)  # a new file each time: the old one may still be mapped
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(CheckpointError), GgufFile(path) as file:
        for name, tensor in file.tensors.items():
            assert len(file.data(name)) == tensor.num_bytes


def test_a_false_length_allocates_nothing_before_it_is_refused(write: Callable[..., Path]) -> None:
    import tracemalloc

    lie = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 1 << 25) + bytes(1 << 25)
    path = write(lie)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="the limit is 16777216"):
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


VOCABULARIES = Path(__file__).parents[3].parent / "shared" / "data" / "suites" / "llama.cpp" / "vocab"


@pytest.mark.skipif(not VOCABULARIES.is_dir(), reason="the shared vocabularies are not beside this checkout")
@pytest.mark.parametrize("name", ["ggml-vocab-llama-spm", "ggml-vocab-gpt-2", "ggml-vocab-phi-3"])
def test_published_vocabularies_read_as_the_gguf_package_reads_them(name: str) -> None:
    reference = gguf.GGUFReader(VOCABULARIES / f"{name}.gguf")
    with GgufFile(VOCABULARIES / f"{name}.gguf") as file:
        fields = {key: field for key, field in reference.fields.items() if not key.startswith("GGUF.")}
        assert file.metadata.keys() == fields.keys()
        for key, field in fields.items():
            assert file.metadata[key] == field.contents(), key
