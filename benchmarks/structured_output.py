"""What a form of the answer costs: the delay of the first token, and throughput at 16 streams, beside free text and beside
XGrammar where it is installed.

A form that is new delays a request by its compilation, which comes before admission and off the engine's loop; one that is
cached by looking it up. What the libraries take for it is measured here, in this process. The first token's delay by a new
form is that of an engine process, each request with a form beside one without, all prompts different. That by a known form
is what a client of `headrace serve` waits longer for the first text of a stream, from the first byte of its request, if
there are 100 kB of schema in it. Throughput is taken with greedy answers of the same length with and without a form,
interleaved, prefix cache off.

Two schemas are made here. A third is one that people have: a custom resource of Kubernetes, as its project publishes it,
without descriptions; from a folder of public data that not everyone has.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import random
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness import Figure, Result, Target, interleave, ratios
from benchmarks.local_engine import LocalEngine, timed_tokens_per_second
from benchmarks.models import smollm2_path
from benchmarks.served import MODEL, Served, serve
from benchmarks.texts import prompts

from headrace.base.errors import ConfigurationError, InvalidRequestError
from headrace.base.ids import RequestId
from headrace.engine.grammar.cache import FormCache
from headrace.engine.grammar.protocol import GrammarBackend, Vocabulary
from headrace.engine.grammar.registry import BACKENDS, DEFAULT_BACKEND, check_installed, make_backend
from headrace.engine.host.client import EngineClient
from headrace.engine.host.config import ClientConfig, EngineConfig
from headrace.engine.host.generation import GenerationRequest
from headrace.engine.host.grammar import vocabulary_of
from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.mind.sampling_params import SamplingParams
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput
from headrace.engine.worker.constraint import Masks

SCHEMA_BYTES = 100_000
PROMPT_LENGTH = 32
KNOWN_PROMPT_LENGTH = 4
"""The shorter, the less it hides a delay of less than a millisecond."""
_DESCRIPTION = "What the mill's keeper writes down at the end of the day, in the words that the valley has for it. "


def described_record(number: int) -> dict[str, Any]:
    """As people write schemas: fields with descriptions."""
    return {
        "type": "object",
        "description": _DESCRIPTION * 3,
        "properties": {
            "name": {"type": "string", "minLength": 1, "description": _DESCRIPTION},
            "kind": {"enum": [f"wheel {number}", "weir", "sluice"], "description": _DESCRIPTION},
            "count": {"type": "integer", "minimum": 0, "description": _DESCRIPTION},
            "notes": {"type": "array", "items": {"type": "string"}, "description": _DESCRIPTION},
        },
        "required": ["name", "kind"],
        "additionalProperties": False,
    }


def bare_record(number: int) -> dict[str, Any]:
    """Nothing but assertions, each record with its own numbers."""
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 40},
            "kind": {"enum": [f"a{number}", f"b{number}", "c"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 1000 + number},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["name", "kind"],
        "additionalProperties": False,
    }


def large_schema(record: Callable[[int], dict[str, Any]], first: int = 0) -> str:
    """One of at least SCHEMA_BYTES, of so many records, numbered from `first`."""
    properties: dict[str, Any] = {}
    size = 0
    while size < SCHEMA_BYTES:
        name = f"record_{len(properties)}"
        properties[name] = record(first + len(properties))
        size += len(json.dumps({name: properties[name]}))
    return json.dumps({"type": "object", "properties": properties, "additionalProperties": False})


PODS = Path(__file__).resolve().parents[2] / "shared/data/crds/aibrix/orchestration.aibrix.ai_rayclusterfleets.yaml"
"""Clusters of pods: its containers, init containers and ephemeral containers, for two kinds of node, are mostly the same."""


def pods_schema() -> str | None:
    """None where the folder is absent."""
    if not PODS.is_file():
        return None
    import yaml  # comes with what tests need

    versions = yaml.safe_load(PODS.read_text())["spec"]["versions"]
    return json.dumps(versions[0]["schema"]["openAPIV3Schema"])


def schemas_by_kind() -> dict[str, str]:
    made = {"described": large_schema(described_record), "bare": large_schema(bare_record)}
    pods = pods_schema()
    return made if pods is None else made | {f"of pods ({len(pods) // 1000} kB, as published)": pods}


ENDLESS = json.dumps(
    {
        "type": "array",
        "minItems": 1000,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "is_open": {"type": "boolean"}},
            "required": ["name", "age", "is_open"],
            "additionalProperties": False,
        },
    }
)
"""A form that no answer of a benchmark comes to the end of."""


def schema_form(text: str) -> StructuredOutput:
    return StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=text)


def first_mask_ms(cache: FormCache, form: StructuredOutput, vocabulary: Vocabulary) -> float:
    """From the request to its first mask."""
    began = time.perf_counter()
    matcher = cache.get(form).matcher()
    matcher.fill(np.zeros(vocabulary.num_mask_words, dtype=np.int32))
    return (time.perf_counter() - began) * 1e3


def backends(vocabulary: Vocabulary) -> dict[str, GrammarBackend]:
    known: dict[str, GrammarBackend] = {}
    for name in BACKENDS:
        with contextlib.suppress(ConfigurationError):
            check_installed(name)
            known[name] = make_backend(name, vocabulary)
    return known


def measure_delays(result: Result, known: dict[str, GrammarBackend], vocabulary: Vocabulary, num_runs: int) -> None:
    for kind, schema in schemas_by_kind().items():
        form = schema_form(schema)
        new: dict[str, list[float]] = {name: [] for name in known}
        cached: dict[str, list[float]] = {name: [] for name in known}
        for _ in range(num_runs + 1):
            for name, backend in known.items():
                cache = FormCache(backend)
                with contextlib.suppress(InvalidRequestError):
                    new[name].append(first_mask_ms(cache, form, vocabulary))
                    cached[name].append(first_mask_ms(cache, form, vocabulary))
        for name in known:
            if not new[name]:
                result.notes.append(f"{name} refuses the schema, {kind}")
                continue
            figures = (
                Figure(f"{name}: the first mask of a new schema of 100 kB, {kind}", "ms", tuple(new[name][1:])),
                Figure(f"{name}: the first mask of the same schema, cached, {kind}", "ms", tuple(cached[name][1:])),
            )
            result.figures += figures
            if name == DEFAULT_BACKEND:
                figure = figures[1]
                result.targets.append(Target(f"{figure.name}: under 1 ms", figure.median, "ms", figure.median < 1))


class _Engines:
    """An engine process for each grammar library, asked in turns."""

    def __init__(self, path: Path, names: Collection[str]) -> None:
        client_config = ClientConfig(served_model_names=("model",))
        self._clients = {
            name: EngineClient(
                EngineConfig(model_path=str(path), structured_output_backend=name),
                client_config,
                load_tokenizer=load_tokenizer,
            )
            for name in names
        }
        self._drawn = random.Random(1)
        self._num_requests = 0

    async def start(self) -> None:
        for name, client in self._clients.items():
            await client.start()
            await self.first_token_ms(name, schema_form("{}"))  # by then the vocabulary is loaded

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def first_token_ms(self, name: str, form: StructuredOutput | None) -> float:
        self._num_requests += 1
        request = GenerationRequest(
            request_id=RequestId(f"r{self._num_requests}"),
            prompt_token_ids=[self._drawn.randrange(1000, 40_000) for _ in range(PROMPT_LENGTH)],
            sampling=SamplingParams(max_tokens=1, temperature=0.0),
            structured_output=form,
        )
        began = time.perf_counter()
        async for _ in self._clients[name].generate(request):
            break
        return (time.perf_counter() - began) * 1e3

    async def delays_ms(self, form: StructuredOutput, names: Collection[str] = ()) -> dict[str, float]:
        """By library, all or these, beside a request without a form."""
        return {
            name: await self.first_token_ms(name, form) - await self.first_token_ms(name, None)
            for name in names or self._clients
        }


async def measure_first_tokens(result: Result, path: Path, names: Collection[str], num_runs: int) -> None:
    engines = _Engines(path, names)
    await engines.start()
    try:
        for kind, record in (("described", described_record), ("bare", bare_record)):
            forms = [schema_form(large_schema(record, first=1_000 * (1 + run))) for run in range(num_runs + 1)]
            runs = [await engines.delays_ms(form) for form in forms][1:]
            for name in names:
                delays = tuple(run[name] for run in runs)
                _report_new(result, name, f"a new schema of 100 kB, {kind}", delays)
        if (pods := pods_schema()) is None:
            result.notes.append("no schema that people have was measured: ../shared/data is not here")
            return
        # One name makes it another schema.
        forms = [schema_form(pods.replace('"spec"', f'"spec{run}"', 1)) for run in range(num_runs + 1)]
        delays = tuple([(await engines.delays_ms(form, [DEFAULT_BACKEND]))[DEFAULT_BACKEND] for form in forms][1:])
        _report_new(result, DEFAULT_BACKEND, f"a new schema of pods of {len(pods) // 1000} kB, as published", delays)
    finally:
        await engines.close()


def _report_new(result: Result, name: str, what: str, delays: tuple[float, ...]) -> None:
    figure = Figure(f"{name}: the first token's delay by {what}", "ms", delays)
    result.figures.append(figure)
    if name == DEFAULT_BACKEND:
        target = Target(f"{figure.name}: under 50 ms", figure.median, "ms", figure.median < 50)
        result.targets.append(target)


class _Asker:
    """One client of a real server, on one connection."""

    def __init__(self, served: Served) -> None:
        host, _, port = served.url.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port))
        self._drawn = random.Random(2)

    def first_token_ms(self, schema: str | None) -> float:
        """From the first byte of the request to the first text of the answer, which is one token long."""
        form = "" if schema is None else f',"response_format":{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}'
        prompt = [self._drawn.randrange(1000, 40_000) for _ in range(KNOWN_PROMPT_LENGTH)]
        body = f'{{"model":"{MODEL}","prompt":{prompt},"max_tokens":1,"temperature":0,"stream":true{form}}}'.encode()
        headers = {"content-type": "application/json"}
        began = time.perf_counter()
        self._connection.request("POST", "/v1/completions", body, headers)
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        response.readline()
        took = time.perf_counter() - began
        response.read()
        return took * 1e3

    def close(self) -> None:
        self._connection.close()


def measure_known(result: Result, num_pairs: int) -> None:
    """In pairs, each beginning with the other kind of request than the one before."""
    with serve() as served:
        for kind, schema in schemas_by_kind().items():
            asker = _Asker(served)
            for _ in range(3):
                asker.first_token_ms(schema), asker.first_token_ms(None)
            delays = []
            for pair in range(num_pairs):
                took = {one: asker.first_token_ms(one) for one in ((schema, None) if pair % 2 else (None, schema))}
                delays.append(took[schema] - took[None])
            asker.close()
            size = f"{len(schema) // 1000} kB"
            figure = Figure(f"over HTTP: the first token's delay by a known schema of {size}, {kind}", "ms", tuple(delays))
            low, _, high = statistics.quantiles(delays, n=4)
            result.figures.append(figure)
            result.notes.append(f"{figure.name}: the middle half of the pairs lies between {low:.2f} and {high:.2f} ms")
            target = Target(f"{figure.name}: under 1 ms", figure.median, "ms", figure.median < 1)
            result.targets.append(target)


def measure_throughput(
    result: Result, path: Path, known: dict[str, GrammarBackend], vocabulary: Vocabulary, options: argparse.Namespace
) -> None:
    engine = LocalEngine(path, enable_prefix_caching=False)
    batch = prompts(load_tokenizer(path), [32] * options.num_streams)
    form = schema_form(ENDLESS)
    forms = {name: FormCache(backend) for name, backend in known.items()}
    for cache in forms.values():
        cache.get(form)
    masks = {name: Masks(cache, vocabulary) for name, cache in forms.items()}

    steps_ms: dict[str, list[float]] = {name: [] for name in ("free", *known)}

    def generated(name: str, form: StructuredOutput | None) -> float:
        rate = timed_tokens_per_second(engine, batch, max_tokens=options.max_tokens, form=form)
        steps_ms[name].append(statistics.median(engine.decode_steps_ms))
        return rate

    def formed(name: str) -> float:
        engine.worker.enforce_forms(masks[name])
        return generated(name, form)

    def free() -> float:
        return generated("free", None)

    contenders: dict[str, Callable[[], float]] = {"free": free}
    contenders |= {name: (lambda name=name: formed(name)) for name in known}  # type: ignore[misc]
    runs = interleave(contenders, num_runs=options.num_runs)
    result.figures.append(Figure(f"{options.num_streams} streams, free text", "tokens/s", tuple(runs["free"])))
    for name in known:
        result.figures.append(Figure(f"{options.num_streams} streams, {name}", "tokens/s", tuple(runs[name])))
        costs = tuple((1 - ratio) * 100 for ratio in ratios(runs[name], runs["free"]))
        cost = Figure(f"{name} costs, run by run", "%", costs)
        step_costs = tuple((ratio - 1) * 100 for ratio in ratios(steps_ms[name][1:], steps_ms["free"][1:]))
        step_cost = Figure(f"{name} costs a decode step, by the median step of each run", "%", step_costs)
        result.figures += (cost, step_cost)
        if name == DEFAULT_BACKEND:
            target = f"a form costs under 3 % of throughput at {options.num_streams} streams"
            result.targets.append(Target(target, cost.median, "%", cost.median < 3))
    for one in masks.values():
        one.close()
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-runs", type=int, default=7)
    parser.add_argument("--num-pairs", type=int, default=200)
    parser.add_argument("--num-streams", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    path = smollm2_path()
    tokenizer = load_tokenizer(path)
    vocabulary = vocabulary_of(tokenizer, num_logits=tokenizer.vocab_size, eos_token_ids=tokenizer.eos_token_ids)
    known = backends(vocabulary)
    result = Result(
        "structured_output",
        "SmolLM2-135M Q4_1: the first token's delay by a JSON schema of 100 kB; throughput under a schema beside free text",
    )
    measure_delays(result, known, vocabulary, options.num_runs)
    asyncio.run(measure_first_tokens(result, path, list(known), options.num_runs))
    measure_known(result, options.num_pairs)
    measure_throughput(result, path, known, vocabulary, options)
    result.save()


if __name__ == "__main__":
    main()
