"""What is measured beside the peers: one function for each measure, each bounded in time.

Knows prompts, lengths and rounds. Does not know how results are kept.
"""

import contextlib
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.peers import contenders, installation, llama_cpp, model_files, openvino, servers, vllm_cpu
from benchmarks.peers.contenders import Contender, LlamaBatched, Prompts
from benchmarks.peers.load import OtherLoad
from benchmarks.peers.servers import Server, ServerKind

from headrace.base.rng import stream

PEERS = (llama_cpp.NAME, openvino.NAME, vllm_cpu.NAME)

TTFT_LIMIT_MS = 2000
ITL_LIMIT_MS = 100


@dataclass(frozen=True, slots=True)
class Taken:
    """One figure of one run."""

    who: str
    value: float
    other_cores: float
    """Processors that did something else meanwhile."""


@dataclass(slots=True)
class Measured:
    """One quantity of everybody, in the order in which it was taken."""

    name: str
    unit: str
    is_less_better: bool
    factor: float | None
    """How many times better than the best peer was asked for; None where nothing was."""
    runs: list[Taken] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    def take(self, who: str, value: float, other: OtherLoad) -> None:
        self.runs.append(Taken(who, value, other.cores))
        print(f"    {self.name} {who}: {value:.4g} {self.unit}" + (f", {other.cores:.2f} cores busy with other work"
              if other.is_tainted else ""), flush=True)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    peers: tuple[str, ...]
    num_rounds: int

    def has(self, name: str) -> bool:
        return name in self.peers


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    what: str
    minutes: float
    """About how long one round of it takes on two cores, all peers together."""
    measure: Callable[[Plan], list[Measured]]


def prompts(count: int, length: int, *, seed: int, vocabulary: int = 49_000, shared: int = 0) -> Prompts:
    """Random token ids, other ones for each seed, so that no cache knows them; the first `shared` are the same in all."""
    drawn = stream(seed, f"{count} x {length}")
    beginning = [drawn.randrange(300, vocabulary) for _ in range(shared)]
    return [beginning + [drawn.randrange(300, vocabulary) for _ in range(length - shared)] for _ in range(count)]


@contextlib.contextmanager
def _open(makers: Sequence[Callable[[], "contextlib.AbstractContextManager[Contender]"]]) -> Iterator[list[Contender]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(make()) for make in makers]


Maker = Callable[[], "contextlib.AbstractContextManager[Contender]"]


def _everybody(plan: Plan) -> list[Maker]:
    """Each with the form of the model that it is quickest with; this one with both 4-bit files."""
    q4_0 = model_files.q4_0()
    makers: list[Maker] = [
        partial(contenders.headrace, q4_0, "Q4_0"),
        partial(contenders.headrace, model_files.shipped(), "Q4_1"),
    ]
    if plan.has(llama_cpp.NAME):
        makers.append(lambda: LlamaBatched("llama.cpp Q4_0", q4_0))
    if plan.has(openvino.NAME):
        makers.append(partial(contenders.openvino_genai, q4_0, "Q4_0"))
    if plan.has(vllm_cpu.NAME):
        makers.append(partial(contenders.vllm, model_files.bfloat16_folder()))
    return makers


@dataclass(frozen=True, slots=True)
class _Task:
    measured: Measured
    count: int
    length: int
    max_tokens: int
    shared: int = 0
    in_seconds: bool = False
    """The wall time is the figure; else tokens per second."""


def _race(plan: Plan, makers: Sequence[Maker], tasks: Sequence[_Task], *, vocabulary: int = 49_000) -> list[Measured]:
    """A B C, A B C, …: every round asks everybody for every task. Round 0 warms up and is not kept."""
    with _open(makers) as everybody:
        for round_ in range(plan.num_rounds + 1):
            for task in tasks:
                for who in everybody:
                    if who.name not in task.measured.failures:
                        _ask(who, task, round_, vocabulary)
    return [task.measured for task in tasks]


def _ask(who: Contender, task: _Task, round_: int, vocabulary: int) -> None:
    seed = round_ * 1000 + task.count
    asked = prompts(task.count, task.length, seed=seed, vocabulary=vocabulary, shared=task.shared)
    try:
        with OtherLoad() as other:
            seconds = who.seconds(asked, task.max_tokens, num_shared=task.shared)
    except Exception as error:  # a peer that cannot is a finding, not the end
        task.measured.failures[who.name] = f"{type(error).__name__}: {error}"[:300]
        print(f"    {task.measured.name} {who.name}: {task.measured.failures[who.name]}", flush=True)
        return
    if round_ == 0:
        return
    num_tokens = task.count * (task.length if task.max_tokens == 1 else task.max_tokens)
    task.measured.take(who.name, seconds if task.in_seconds else num_tokens / seconds, other)


def decode(plan: Plan) -> list[Measured]:
    tasks = [
        _Task(Measured(f"decode, {count} at once, 32 in, 128 out", "tok/s", False, factor), count, 32, 128)
        for count, factor in ((1, 2.0), (4, 3.0), (16, 2.0), (64, 1.6))
    ]
    return _race(plan, _everybody(plan), tasks)


def prefill(plan: Plan) -> list[Measured]:
    tasks = [
        _Task(Measured(f"prefill, {length} tokens", "tok/s", False, factor), 1, length, 1)
        for length, factor in ((512, 1.4), (2048, 1.5))
    ]
    return _race(plan, _everybody(plan), tasks)


def shared_prefix(plan: Plan) -> list[Measured]:
    name = "32 requests that share 1024 tokens, 32 more each, 64 out, cold"
    return _race(plan, _everybody(plan), [_Task(Measured(name, "s", True, 2.0), 32, 1056, 64, shared=1024, in_seconds=True)])


def larger(plan: Plan) -> list[Measured]:
    """Random numbers in Qwen3-0.6B's shape."""
    model = model_files.random_qwen3()
    makers: list[Maker] = [partial(contenders.headrace, model, "Qwen3-0.6B Q4_0")]
    if plan.has(llama_cpp.NAME):
        makers.append(lambda: LlamaBatched("llama.cpp Qwen3-0.6B Q4_0", model))
    tasks = [
        _Task(Measured(f"Qwen3-0.6B's shape: decode, {count} at once, 32 in, 64 out", "tok/s", False, None), count, 32, 64)
        for count in (1, 16)
    ]
    tasks.append(_Task(Measured("Qwen3-0.6B's shape: prefill, 512 tokens", "tok/s", False, None), 1, 512, 1))
    return _race(plan, makers, tasks, vocabulary=model_files.vocabulary(model))


# Over HTTP

Ask = Callable[[Server, int], Sequence[float]]
"""By server and round: a value for each figure."""

_ONLINE_SEQS, _ONLINE_LEN = 16, 1280


def _servers(plan: Plan) -> list[ServerKind]:
    size = {"max_num_seqs": _ONLINE_SEQS, "max_model_len": _ONLINE_LEN}
    q4_0 = model_files.q4_0()
    kinds = [servers.headrace(q4_0, label="Q4_0", **size)]
    if plan.has(llama_cpp.NAME):
        kinds.append(servers.llama_server(q4_0, label="Q4_0", **size))
    if plan.has(vllm_cpu.NAME):
        kinds.append(servers.vllm_server(model_files.bfloat16_folder(), **size))
    return kinds


def _traffic(rate: float, count: int, seed: int) -> list[str]:
    """Poisson arrivals, prompts of 32 to 1024 tokens, answers of 16 to 128."""
    return [
        "--request-rate", f"{rate:g}", "--num-prompts", str(count), "--input-len", "uniform:32:1024", "--output-len",
        "uniform:16:128", "--seed", str(seed), "--num-warmups", "2", "--vocab-size", "49000",
    ]  # fmt: skip


def _for_each_server(
    plan: Plan, figures: Sequence[Measured], ask: Callable[[Server, int], Sequence[float]]
) -> list[Measured]:
    """A server at a time, in turns; each figure of a run goes to its Measured."""
    for round_ in range(plan.num_rounds):
        for kind in _servers(plan):
            if any(kind.name in figure.failures for figure in figures):
                continue
            try:
                with servers.running(kind) as server, OtherLoad() as other:
                    values = ask(server, round_)
            except Exception as error:
                for figure in figures:
                    figure.failures[kind.name] = f"{type(error).__name__}: {error}"[:300]
                print(f"    {figures[0].name} {kind.name}: {figures[0].failures[kind.name]}", flush=True)
                continue
            for figure, value in zip(figures, values, strict=True):
                figure.take(kind.name, value, other)
    return list(figures)


def online(plan: Plan) -> list[Measured]:
    what = "online, Poisson 1 request/s"
    figures = [
        Measured(f"{what}: TTFT p50", "ms", True, None),
        Measured(f"{what}: TTFT p95", "ms", True, 2.0),
        Measured(f"{what}: ITL p95", "ms", True, 2.0),
    ]

    def ask(server: Server, round_: int) -> list[float]:
        result = server.bench(*_traffic(1.0, 40, round_), timeout_s=400)
        return [result["median_ttft_ms"], result["p95_ttft_ms"], result["p95_itl_ms"]]

    return _for_each_server(plan, figures, ask)


_HIGHEST_RATE, _RATE_RESOLUTION = 64.0, 1.1


def highest_rate(plan: Plan) -> list[Measured]:
    """Twice as many until a promise is broken, then halfway between what was kept and what was not, to a tenth."""
    name = f"highest rate with TTFT p95 < {TTFT_LIMIT_MS / 1000:g} s and ITL p95 < {ITL_LIMIT_MS} ms"

    def ask(server: Server, round_: int) -> list[float]:
        def keeps(rate: float) -> bool:
            # Other prompts at each rate: those of the last one would be in caches.
            seed = 10_000 * (round_ + 1) + round(100 * rate)
            result = server.bench(*_traffic(rate, max(30, round(rate * 20)), seed), timeout_s=300)
            is_kept = result["p95_ttft_ms"] < TTFT_LIMIT_MS and result["p95_itl_ms"] < ITL_LIMIT_MS and not result["failed"]
            print(f"      {rate:.3g} req/s: TTFT p95 {result['p95_ttft_ms']:.0f} ms, ITL p95 {result['p95_itl_ms']:.0f} ms, "
                  f"{result['failed']} failed", flush=True)  # fmt: skip
            return is_kept

        return [highest(keeps, lowest=0.5)]

    return _for_each_server(plan, [Measured(name, "req/s", False, 1.5)], ask)


def highest(keeps: Callable[[float], bool], *, lowest: float) -> float:
    """The highest rate that `keeps` its promises, 0 where not even the lowest does."""
    kept, broken = 0.0, lowest
    while keeps(broken):
        kept, broken = broken, broken * 2
        if kept >= _HIGHEST_RATE:
            return kept
    while kept and broken / kept > _RATE_RESOLUTION:
        middle = math.sqrt(kept * broken)
        kept, broken = (middle, broken) if keeps(middle) else (kept, middle)
    return kept


def start(plan: Plan) -> list[Measured]:
    """Files in the page cache: a first start of each is not kept."""
    warm = Plan(plan.peers, 1)
    ask = lambda server, _: [server.first_token(prompts(1, 8, seed=1)[0])]  # noqa: E731
    _for_each_server(warm, [Measured("a start that warms up", "s", True, None)], ask)
    return _for_each_server(plan, [Measured("process start to first token", "s", True, 1.0)], ask)


def memory(plan: Plan) -> list[Measured]:
    """After 16 concurrent answers of 128 tokens, above the KV that was asked for."""
    figures = [Measured("resident memory after 16 at once", "MB", True, None)]

    def ask(server: Server, round_: int) -> list[float]:
        words = ["--num-prompts", "16", "--input-len", "32", "--output-len", "128", "--max-concurrency", "16"]
        server.bench(*words, "--seed", str(round_), "--vocab-size", "49000", timeout_s=200)
        return [server.resident_bytes / 1e6]

    return _for_each_server(Plan(plan.peers, 1), figures, ask)


def size(plan: Plan) -> list[Measured]:
    """Of a fresh environment with nothing but the engine, or of the server and its libraries."""
    measured = Measured("installed size", "MB", True, None)
    sizes: dict[str, Callable[[], int]] = {"headrace": _headrace_bytes}
    sizes |= {llama_cpp.NAME: llama_cpp.installed_bytes} if plan.has(llama_cpp.NAME) else {}
    sizes |= {"OpenVINO GenAI": openvino.installed_bytes} if plan.has(openvino.NAME) else {}
    sizes |= {"vLLM CPU": vllm_cpu.installed_bytes} if plan.has(vllm_cpu.NAME) else {}
    for who, weigh in sizes.items():
        with OtherLoad() as other:
            num_bytes = weigh()
        measured.take(who, num_bytes / 1e6, other)
    return [measured]


def _headrace_bytes() -> int:
    """Of what `pip install .` makes of this working tree, anew each time; from a copy, since building replaces kernels."""
    root = Path(__file__).parents[2]

    def steps(folder: Path) -> None:
        source = folder / "source"
        source.mkdir()
        for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
            shutil.copy2(root / name, source)
        for name in ("src", "native"):
            shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        installation.make_environment(folder, str(source))

    installation.forget("headrace")
    return installation.packages_bytes(installation.install("headrace", steps, minutes=3) / "venv")


PARTS = (
    Part("decode", "greedy decode of 1, 4, 16 and 64 sequences", 2.5, decode),
    Part("prefill", "prompts of 512 and 2048 tokens", 0.5, prefill),
    Part("prefix", "32 requests that share 1024 tokens", 1.5, shared_prefix),
    Part("larger", "random numbers in Qwen3-0.6B's shape, 4 bits", 2.0, larger),
    Part("online", "one request a second over HTTP", 2.5, online),
    Part("rate", "the highest rate that keeps the promises", 5.0, highest_rate),
    Part("start", "from the start of the process to the first token", 0.3, start),
    Part("memory", "what a server holds", 0.7, memory),
    Part("size", "what is installed; ours is built for it", 3.0, size),
)
