"""What a server's processes import: a machine that only serves needs no torch, whatever it is asked."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint_files import LLAMA_CONFIG, tiny_llama, write_folder
from tests.e2e.real_server import SMALL, RealServer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

pytest.importorskip("headrace.engine.ops.native._kernels", reason="the native kernels were not built here")

_MODEL = "smollm2-135m"

_NOTES_IMPORTS = """
import os, sys

def note(event, arguments):
    if event == "import":
        with open(os.path.join(os.environ["NOTED_IMPORTS"], str(os.getpid())), "a") as file:
            file.write(arguments[0] + "\\n")

sys.addaudithook(note)
"""
"""A `sitecustomize`, which every Python process runs first: it notes, in a file for each process, what is imported."""

_HEAVY = {"torch", "transformers", "gguf", "safetensors"}
"""What tests have and serving does without."""


class NotedServer(RealServer):
    """Knows what each of its processes has imported since it began."""

    def __init__(self, folder: Path, *words: str, model: str = _MODEL) -> None:
        (folder / "hooks").mkdir()
        (folder / "imports").mkdir()
        (folder / "hooks" / "sitecustomize.py").write_text(_NOTES_IMPORTS)
        self._imports = folder / "imports"
        path = os.pathsep.join(filter(None, (str(folder / "hooks"), os.environ.get("PYTHONPATH", ""))))
        environment = {"PYTHONPATH": path, "NOTED_IMPORTS": str(self._imports)}
        super().__init__(*words, model=model, environment=environment)

    def imported_by(self, pid: int) -> set[str]:
        return {name.split(".")[0] for name in (self._imports / str(pid)).read_text().split()}


def test_neither_process_of_a_server_imports_torch_whatever_it_is_asked(smollm2_path: Path, tmp_path: Path) -> None:
    assert importlib.util.find_spec("torch"), "where there is no torch, this proves nothing"
    with NotedServer(tmp_path, *SMALL) as server:
        client = server.client()
        question: Any = [{"role": "user", "content": "Name a river."}]
        schema: Any = {"name": "river", "schema": {"type": "object", "properties": {"name": {"enum": ["Po", "Rhine"]}},
                                              "required": ["name"], "additionalProperties": False}}  # fmt: skip
        asked: Any = {"model": _MODEL, "messages": question, "max_tokens": 24}
        every_filter: Any = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.2, "seed": 3, "logprobs": True}
        client.chat.completions.create(**asked, **every_filter, n=2)
        form: Any = {"type": "json_schema", "json_schema": schema}
        formed = client.chat.completions.create(**asked, response_format=form)
        assert json.loads(formed.choices[0].message.content or "")["name"] in ("Po", "Rhine")
        list(client.completions.create(model=_MODEL, prompt="Water", max_tokens=4, stream=True))
        scored = client.completions.create(model=_MODEL, prompt="Water flows", max_tokens=1, echo=True, logprobs=2)
        assert scored.choices[0].logprobs
        pids = server.process.pid, server.engine_pid
        assert all("headrace" in server.imported_by(pid) for pid in pids)
        assert "numpy" in server.imported_by(pids[1])
        assert not [name for pid in pids for name in _HEAVY & server.imported_by(pid)]


def test_a_safetensors_checkpoint_is_served_without_torch(tmp_path: Path) -> None:
    model = write_folder(tmp_path / "model", LLAMA_CONFIG, tiny_llama())
    _letters().save(str(model / "tokenizer.json"))
    with NotedServer(tmp_path, *SMALL, "--max-model-len", "64", model=str(model)) as server:
        answer = server.client().completions.create(model=model.name, prompt="abba", max_tokens=8)
        assert answer.usage is not None
        assert "native kernels on CPU" in server.output
        assert not _HEAVY & server.imported_by(server.engine_pid)


def _letters() -> Tokenizer:
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {chr(97 + i): 3 + i for i in range(26)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    return backend


def test_a_start_without_kernels_and_without_torch_says_what_to_install(tmp_path: Path) -> None:
    hide = 'import sys; sys.modules["torch"] = sys.modules["headrace.engine.ops.native._kernels"] = None'
    (tmp_path / "sitecustomize.py").write_text(hide)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    server = RealServer(environment={"PYTHONPATH": path})
    assert server.wait() == 2
    assert "nothing here can compute" in server.output
    assert "install a C++ compiler" in server.output
    assert "pip install 'headrace[torch]'" in server.output
