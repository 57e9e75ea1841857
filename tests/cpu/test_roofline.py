"""Steps of a small real model on the native kernels, every operation timed by a clock of the test's."""

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

import pytest
from tests.checkpoint_files import LLAMA_CONFIG, tiny_llama, write_folder

from headrace.base.clock import Nanos
from headrace.base.errors import ConfigurationError
from headrace.cli.main import main
from headrace.engine.worker.roofline import RooflineConfig, RooflineRun
from headrace.engine.worker.worker import WorkerConfig
from headrace.measure.report.roofline import KernelCall

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

STEPS = RooflineConfig(batch_sizes=(1, 3), context=20, prompt_length=12, num_decode_steps=4, num_prefill_steps=2)


class TickingClock:
    """A microsecond passes whenever somebody looks."""

    def __init__(self) -> None:
        self._now = 0

    def now(self) -> Nanos:
        self._now += 1000
        return Nanos(self._now)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny"), LLAMA_CONFIG, tiny_llama())


def run(model: Path, steps: RooflineConfig = STEPS, *, heard: list[str] | None = None) -> RooflineRun:
    config = WorkerConfig(model_path=str(model), device="cpu", num_threads=1)
    return RooflineRun(config, steps, TickingClock(), on_step=(heard if heard is not None else []).append)


def counted(step: list[KernelCall]) -> Counter[str]:
    return Counter(call.name.split()[0] for call in step)


def test_every_step_has_each_operation_of_the_model_once_a_layer(model: Path) -> None:
    phases = list(run(model).measure())
    assert [phase.num_tokens for phase in phases] == [1, 3, 12]
    assert [len(phase.steps) for phase in phases] == [4, 4, 2]
    of_a_layer = {"linear": 3, "gated_linear": 1, "rope_and_cache": 1, "attention": 1}
    expected = Counter({name: 2 * count for name, count in of_a_layer.items()})
    expected += Counter({"embed": 1, "rms_norm": 5, "select_rows": 1, "logits": 1})
    assert all(counted(step) == expected for phase in phases for step in phase.steps)


def test_attention_of_a_decode_step_reads_the_contexts_of_all_its_sequences(model: Path) -> None:
    one, three, _ = run(model).measure()

    def streamed(step: list[KernelCall]) -> int:
        return next(call.streamed_bytes for call in step if call.name.startswith("attention"))

    assert streamed(three.steps[0]) == 3 * streamed(one.steps[0]) > 0
    growth = streamed(one.steps[1]) - streamed(one.steps[0])
    assert streamed(one.steps[0]) % growth == 0, "whole tokens"
    assert streamed(one.steps[0]) // growth == 20 + 2 + 1, "the context, what warmed up, and the token itself"


def test_a_step_takes_longer_than_its_kernels(model: Path) -> None:
    for phase in run(model).measure():
        for step, duration in zip(phase.steps, phase.durations_ns, strict=True):
            assert all(call.duration_ns == 1000 for call in step)
            assert duration > sum(call.duration_ns for call in step)


def test_progress_is_told_as_often_as_was_promised(model: Path) -> None:
    heard: list[str] = []
    list(run(model, heard=heard).measure())
    assert len(heard) == STEPS.num_steps


def test_steps_that_the_model_is_too_short_for_are_refused(model: Path) -> None:
    with pytest.raises(ConfigurationError, match="end at 64 tokens, and these steps need 101"):
        run(model, RooflineConfig(prompt_length=100, context=8))
    with pytest.raises(ConfigurationError, match="at least 1"):
        RooflineConfig(batch_sizes=())


def test_the_command_writes_a_plot_and_a_result(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engine.ops.native.ceilings._TRY_S", 0.0005)
    monkeypatch.setattr("headrace.engine.ops.native.ceilings._LEAST_MEMORY_READ", 1 << 20)
    plot, result = tmp_path / "roofline.svg", tmp_path / "roofline.json"
    words = ["--threads", "1", "--batch-sizes", "1", "2", "--context", "8", "--prompt-length", "16"]
    assert main(["roofline", str(model), *words, "--plot", str(plot), "--result", str(result)]) == 0
    assert ElementTree.parse(plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    document = json.loads(result.read_text())
    assert set(document["ceilings"]["bytes_per_s"]) >= {"L1", "DRAM"}
    assert document["ceilings"]["operations_per_s"]["f32"]["all_threads"] > 0
    assert [phase["num_tokens"] for phase in document["phases"]] == [1, 2, 16]
    shown = capsys.readouterr().out
    assert "decode, 2 sequences, context 8" in shown
    assert "gated_linear 32 > 2 x 48 F32" in shown
