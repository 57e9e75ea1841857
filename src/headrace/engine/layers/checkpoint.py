"""What a layer asks of a checkpoint: tensors by canonical name. Knows names; does not know files."""

from typing import Protocol

from headrace.engine.ops.host_tensor import HostTensor


class TensorSource(Protocol):
    """Declared here, where it is called; `models/weights.py` opens real ones."""

    def tensor(self, name: str) -> HostTensor:
        """Raises CheckpointError where the checkpoint has no such tensor."""
        ...
