"""What this folder sets up before anything else: threads of torch that share cores, and a gguf package that reads once.

torch's threads sleep while they wait, as in the engine. The gguf package takes seconds to read a large file and to list the
names of a model's tensors, and transformers asks for both again at every turn.
"""

import functools
import os
from typing import Any

import gguf

import headrace.engine.worker

assert headrace.engine.worker.__doc__

_GGUFReader = gguf.GGUFReader


@functools.lru_cache(maxsize=2)
def _read(path: str, changed_ns: int) -> Any:
    return _GGUFReader(path)


gguf.GGUFReader = lambda path: _read(str(path), os.stat(path).st_mtime_ns)
gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
