"""The JSON-Schema-Test-Suite (draft 2020-12) against forms on a real tokenizer: each instance is written as tokens, and the
form says for each token whether it may come.

    right       a valid instance's tokens are accepted to the end, an invalid one's are not
    reordered   a valid instance is accepted once its properties stand in the schema's order, in which forms write them
    narrower    a valid instance is not accepted: the form writes it otherwise, or not at all; nothing invalid comes of it
    refused     the schema is refused by name, so that no answer is generated under it
    MISSED      an invalid instance is accepted: there must be none
"""

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Result, Target
from benchmarks.models import smollm2_path

from headrace.base.errors import InvalidRequestError
from headrace.engine.grammar.protocol import CompiledForm, GrammarBackend
from headrace.engine.grammar.registry import make_backend
from headrace.engine.host.generation import Tokenizer
from headrace.engine.host.grammar import vocabulary_of
from headrace.engine.host.tokenizer import load_tokenizer
from headrace.engine.mind.structured_output import OutputKind, StructuredOutput

SUITES = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "suites"
DRAFT = "JSON-Schema-Test-Suite/json/tests/draft2020-12"

_MAX_ORDERS = 500
OUTCOMES = ("right", "reordered", "narrower", "refused", "MISSED")


@dataclass(frozen=True, slots=True)
class Case:
    """One schema of the suite with its instances."""

    file: str
    description: str
    schema: Any
    tests: list[dict[str, Any]]

    @property
    def part(self) -> str:
        """Of the suite: `format` asserts what is only annotated by default."""
        if "format" in self.file:
            return "format"
        return "optional" if self.file.startswith("optional") else "required"


@dataclass(frozen=True, slots=True)
class Judgement:
    case: Case
    test: dict[str, Any]
    outcome: str
    reason: str = ""


def read_cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.rglob("*.json")):
        for group in json.loads(path.read_text()):
            yield Case(str(path.relative_to(folder)), group["description"], group["schema"], group["tests"])


def judge(case: Case, backend: GrammarBackend, tokenizer: Tokenizer) -> Iterator[Judgement]:
    wanted = StructuredOutput(kind=OutputKind.JSON_SCHEMA, text=json.dumps(case.schema, ensure_ascii=False))
    try:
        form = backend.compile(wanted)
    except InvalidRequestError as error:
        yield from (Judgement(case, test, "refused", str(error)) for test in case.tests)
        return
    for test in case.tests:
        yield Judgement(case, test, _outcome(form, test, tokenizer))


def accepts(form: CompiledForm, text: str, tokenizer: Tokenizer) -> bool:
    matcher = form.matcher()
    tokens = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    return all(matcher.accept(token) for token in tokens) and matcher.may_end()


def _outcome(form: CompiledForm, test: dict[str, Any], tokenizer: Tokenizer) -> str:
    is_accepted = accepts(form, _json(test["data"]), tokenizer)
    if is_accepted == test["valid"]:
        return "right"
    if is_accepted:
        return "MISSED"
    others = itertools.islice(_orders(test["data"]), _MAX_ORDERS)
    return "reordered" if any(accepts(form, _json(other), tokenizer) for other in others) else "narrower"


def _orders(value: Any) -> Iterator[Any]:
    """The value with its objects' properties in every order."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for values in itertools.product(*([*itertools.islice(_orders(value[name]), 24)] for name in names)):
                yield dict(zip(names, values, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*([*itertools.islice(_orders(one), 24)] for one in value)))
    else:
        yield value


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def published(path: Path) -> Counter[str]:
    """llguidance's own record of the same draft: outcome -> instances."""
    draft = json.loads(path.read_text())["draft2020-12"]
    return Counter(outcome for file in draft.values() for group in file.values() for outcome in group.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="llguidance")
    options = parser.parse_args()
    tokenizer = load_tokenizer(smollm2_path())
    vocabulary = vocabulary_of(tokenizer, num_logits=tokenizer.vocab_size, eos_token_ids=tokenizer.eos_token_ids)
    backend = make_backend(options.backend, vocabulary)
    judgements = [one for case in read_cases(SUITES / DRAFT) for one in judge(case, backend, tokenizer)]

    suffix = "" if options.backend == "llguidance" else f"_{options.backend}"
    result = Result(
        f"json_schema_suite{suffix}",
        f"JSON-Schema-Test-Suite, draft 2020-12, on SmolLM2's tokenizer, by {options.backend}: {len(judgements)} instances",
    )
    for part in ("required", "optional", "format"):
        counts = Counter(one.outcome for one in judgements if one.case.part == part)
        result.figures += [Figure(f"{part}: {outcome}", "instances", (counts[outcome],)) for outcome in OUTCOMES]
    if options.backend == "llguidance":
        for outcome, count in sorted(published(SUITES / "llguidance/expected_json_schema_test_suite.json").items()):
            result.figures.append(Figure(f"llguidance's own record: {outcome}", "instances", (count,)))
    num_missed = sum(one.outcome == "MISSED" for one in judgements)
    result.targets.append(Target("no invalid instance is accepted", num_missed, "instances", num_missed == 0))
    for one in judgements:
        if one.outcome in ("narrower", "MISSED"):
            place = f"{one.case.file}: {one.case.description}: {one.test['description']}"
            result.notes.append(f"{one.outcome}: {place}: {_json(one.test['data'])[:80]}")
    reasons = Counter(_keyword(one.reason) for one in judgements if one.outcome == "refused")
    result.notes += [f"refused, {count} instances: {reason}" for reason, count in reasons.most_common()]
    result.save()


def _keyword(reason: str) -> str:
    return reason.removeprefix("structured_outputs cannot be enforced: ").split("\n")[0][:100]


if __name__ == "__main__":
    main()
