"""The real mind and worker around a tiny random model that speaks bytes, in one thread. Knows no HTTP and no processes.

A random model says anything at all: under a form, whatever the form allows may come.
"""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.checkpoint_files import LLAMA_CONFIG, Array, tiny_llama, write_folder
from tests.fakes import EOS, IM_END, ByteTokenizer
from tests.unit.grammar.vocabularies import vocabulary

from headrace.base.clock import Nanos
from headrace.base.ids import RequestId, SequenceId, StepId
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import GrammarBackend
from headrace.engine.grammar.registry import make_backend
from headrace.engine.mind.config import SchedulerConfig
from headrace.engine.mind.engine_core import EngineCore
from headrace.engine.mind.request import Request
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.step import StepPlan, TokenLogprobs
from headrace.engine.mind.structured_output import StructuredOutput
from headrace.engine.mind.update import FinishReason
from headrace.engine.worker.constraint import Masks
from headrace.engine.worker.worker import Worker, WorkerConfig

VOCABULARY = vocabulary(ByteTokenizer())
VOCAB_SIZE = len(VOCABULARY.token_bytes)
MAX_MODEL_LEN = 256
CONFIG = LLAMA_CONFIG | {"vocab_size": VOCAB_SIZE, "max_position_embeddings": MAX_MODEL_LEN, "eos_token_id": [EOS, IM_END]}


def write_model(folder: Path) -> Path:
    tensors: dict[str, Array] = tiny_llama()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = tensors[name]
        tensors[name] = rows.repeat(7, axis=0)[:VOCAB_SIZE] * 0.2  # several tokens alike: nearly uniform draws
    return write_folder(folder, CONFIG, tensors)


class Outcome:
    """What became of one continuation."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.error = ""
        self.num_cached_tokens = 0

    @property
    def text(self) -> str:
        return ByteTokenizer().decode(self.tokens)


class TinyEngine:
    def __init__(self, model: Path, *, backend: GrammarBackend | None = None) -> None:
        self.worker = Worker(WorkerConfig(model_path=str(model), dtype="float32", block_size=4), lambda *_: None)
        self.worker.allocate_kv_cache(256)
        self.forms = FormCache(backend or make_backend("llguidance", VOCABULARY))
        self.masks = Masks(self.forms, VOCABULARY)
        self.worker.enforce_forms(self.masks)
        self.core = self._new_core({})
        self._num_requests = 0
        self._held: dict[SequenceId, None] = {}
        """Sequences that the worker keeps: it hears with the next plan that they are over."""

    def restart(self, **limits: Any) -> None:
        """A new mind with an empty cache over the same worker, once nothing is left of the old one."""
        self.worker.execute(StepPlan(StepId(-1), (), released_sequence_ids=tuple(self._held)))
        self._held.clear()
        self.core = self._new_core(limits)

    def _new_core(self, limits: Mapping[str, Any]) -> EngineCore:
        config = {"max_model_len": MAX_MODEL_LEN, "num_blocks": 256, "block_size": 4, **limits}
        return EngineCore(SchedulerConfig(**config), eos_token_ids=(EOS, IM_END), identity_digest=b"tiny")

    def run(self, *requests: Request) -> list[list[Outcome]]:
        """All requests together, to their end."""
        outcomes = {request.request_id: [Outcome() for _ in range(request.num_sequences)] for request in requests}
        for request in requests:
            if request.structured_output is not None:
                self.forms.get(request.structured_output)
            self.core.add_request(request, Nanos(0))
        in_flight: deque[StepPlan] = deque()
        while self.core.has_unfinished_requests or in_flight:
            while (plan := self.core.begin_step(Nanos(0))) is not None:
                in_flight.append(plan)
            oldest = in_flight.popleft()
            for sequence_id in oldest.released_sequence_ids:
                del self._held[sequence_id]
            self._held |= {new.sequence_id: None for new in oldest.new_sequences}
            for update in self.core.finish_step(oldest, self.worker.execute(oldest), Nanos(0)):
                outcome = outcomes[update.request_id][update.sample_index]
                outcome.tokens += update.new_token_ids
                outcome.logprobs += update.logprobs
                outcome.prompt_logprobs += update.prompt_logprobs
                outcome.finish_reason = update.finish_reason
                outcome.error = update.error
                outcome.num_cached_tokens = update.num_cached_tokens
        self.core.check_integrity()
        return list(outcomes.values())

    def request(
        self,
        prompt: str = "water",
        *,
        form: StructuredOutput | None = None,
        n: int = 1,
        max_tokens: int = 100,
        **sampling: Any,
    ) -> Request:
        self._num_requests += 1
        return Request(
            request_id=RequestId(f"r{self._num_requests}"),
            prompt_token_ids=tuple(prompt.encode()),
            sampling=SamplingParams(max_tokens=max_tokens, **sampling),
            num_sequences=n,
            structured_output=form,
        )
