"""How one engine is spread over GPUs, as data. Knows counts and what they exclude; knows no process and no group."""

from dataclasses import dataclass

from headrace.base.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelSpec:
    """The layout of one engine. Raises ConfigurationError where the numbers contradict each other.

    Attention is split over `tensor_parallel_size` GPUs and copied `data_parallel_size` times, each copy with sequences of
    its own; layers are split over `pipeline_parallel_size` stages. Experts are spread over `expert_parallel_size` GPUs of a
    stage, and each expert is split over what remains. Dense layers are split as attention is.

    >>> deepseek = ParallelSpec(data_parallel_size=8, expert_parallel_size=8)
    >>> deepseek.num_gpus, deepseek.moe_tensor_parallel_size
    (8, 1)
    """

    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    """Attention replicas inside the engine that share its experts ("attention-DP"); 1: none."""
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "data_parallel_size", "pipeline_parallel_size", "expert_parallel_size"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_gpus_per_stage % self.expert_parallel_size:
            raise ConfigurationError(
                f"expert_parallel_size ({self.expert_parallel_size}) must divide the {self.num_gpus_per_stage} GPUs of a "
                "stage (tensor_parallel_size x data_parallel_size)"
            )

    @property
    def num_gpus_per_stage(self) -> int:
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def num_gpus(self) -> int:
        return self.num_gpus_per_stage * self.pipeline_parallel_size

    @property
    def moe_tensor_parallel_size(self) -> int:
        """GPUs that share each expert."""
        return self.num_gpus_per_stage // self.expert_parallel_size
