"""Fleet files are read strictly, and say what is wrong where."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sim.planted_bugs import PLANTED_BUGS

from headrace.base.errors import ConfigurationError
from headrace.cli.fleet_file import read_fleet
from headrace.cli.main import main
from headrace.measure.workload.request import Segment, TokenPrompt, Workload, WorkloadRequest
from headrace.measure.workload.workload_file import write_workload
from headrace.sim.fleet_spec import (
    ClientSpec,
    FaultSpec,
    LinearCostSpec,
    NetworkSpec,
    PoolSpec,
    RouterSpec,
    StartSpec,
    TransferSpec,
)

FLEET = """
model = "small"

[pools.main]
num_replicas = 2
[pools.main.scheduler]
max_model_len = 2048
num_blocks = 512

[router]
policy = "prefix-affinity"

[[faults]]
kind = "crash"
at_s = 1.0
replica = "main-1"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(text)
    return path


def test_a_fleet_is_what_its_file_says(tmp_path: Path) -> None:
    spec = read_fleet(written(tmp_path, FLEET))
    assert spec.pools["main"].num_replicas == 2
    assert spec.router.policy == "prefix-affinity"
    assert spec.faults[0].replica == "main-1"


@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        ("polcy", "policy", r"there is no key 'polcy' in \[router\]; did you mean 'policy'"),
        ("num_block ", "num_blocks ", r"'num_block' in \[pools.main.scheduler\]; did you mean 'num_blocks'"),
        ("[routr]", "[router]", "there is no key 'routr' at the top; did you mean 'router'"),
        (
            "scheduler]\nblock_size = 16",
            "scheduler]\nmax_model_len = 2048\nnum_blocks = 512",
            r"\[pools.main.scheduler\] needs max_model_len and num_blocks",
        ),
        ("# ", "[pools.main.scheduler]\nmax_model_len = 2048\nnum_blocks = 512", r"\[pools.main\] needs scheduler"),
        ("# ", "at_s = 1.0", r"\[faults\] needs at_s"),
        ("replca =", "replica =", r"there is no key 'replca' in \[faults\]; did you mean 'replica'"),
        ("main-7", "main-1", "there is no such replica"),
        ('"prefix-afinity"', '"prefix-affinity"', "did you mean 'prefix-affinity'"),
        ("main-01", "main-1", "there are main-0 to main-1"),
        ("num_replicas = 0", "num_replicas = 2", "num_replicas must be at least 1"),
        ("num_replicas = 2.5", "num_replicas = 2", r"num_replicas in \[pools.main\] must be a whole number, not 2.5"),
        ("[client]\ntimeout_s = '5s'\n[router]", "[router]", r"timeout_s in \[client\] must be a number, not '5s'"),
        (
            "num_replicas = 2\nrole = 'prefil'",
            "num_replicas = 2",
            r"role in .* must be one of both, prefill, decode, not 'prefil'",
        ),
        ("num_replicas = 2\ncost = 5", "num_replicas = 2", r"cost in \[pools.main\] must be a table, not 5"),
        (
            'policy = "prefix-affinity"\nqueue_timeout_s = -1.0',
            'policy = "prefix-affinity"',
            "queue_timeout_s must be above 0, not -1",
        ),
        (
            'policy = "prefix-affinity"\nmax_attempts = 0',
            'policy = "prefix-affinity"',
            "fleet.toml: max_attempts must be at least 1",
        ),
        (
            "num_replicas = 2\ngpu = {device = 'h100', model = 'qwen3-8b'}",
            "num_replicas = 2",
            r"fleet.toml: \[pools.main\]: no device .*did you mean 'h100_sxm'",
        ),
        ("num_replicas = 2\ngpu = {device = 'h100_sxm'}", "num_replicas = 2", r"\[pools.main\]: gpu needs a model"),
        ("num_replicas = 100_001", "num_replicas = 2", "has 100,001 replicas; at most 100,000"),
        ("num_blocks = 999_999_999", "num_blocks = 512", "has 1,999,999,998 KV blocks.* at most 500,000,000"),
        ("[network]\nlatency_us = nan\n[router]", "[router]", r"latency_us in \[network\] must be a finite number, not nan"),
        ("at_s = inf", "at_s = 1.0", r"at_s in \[faults\] must be a finite number, not inf"),
        ("num_blocks = 2", "num_blocks = 512", "cannot hold one sequence"),
        ('kind = "crush"', 'kind = "crash"', "kind"),
        ("[[faults", "[[faults]]", "is no TOML"),
        ("[pools.main.gpu]\ndevic = 'l40s'\n[router]", "[router]", "did you mean 'device'"),
        (
            "[pools.main.gpu]\ndevice = 'l40s'\nmodel = 'qwen3-8b'\n[pools.main.cost]\nfixed_ns = 5\n[router]",
            "[router]",
            "not cost and gpu",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_was_probably_meant(wrong: str, right: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=told):
        read_fleet(written(tmp_path, FLEET.replace(right, wrong)))


ENGINE = """{
 "scheduler": {"max_model_len": 4096, "num_blocks": 999, "max_num_seqs": 7},
 "steps": {"knots": [1, 64], "knot_us": [5000.0, 20000.0], "decode_context_us": 0.5, "chunk_pairs_us": 0.01,
  "num_decodes_us": 20.0, "num_chunks_us": 50.0},
 "front_end": {"request_us": 300.0}, "speed_spread": 0.03
}"""
POOL = """
[pools.main]
num_replicas = 2
engine = "engine.json"
"""


def test_a_pool_takes_a_calibrated_engine_from_a_file_beside_the_fleets(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text(ENGINE)
    pool = read_fleet(written(tmp_path, POOL)).pools["main"]
    assert pool.scheduler.num_blocks == 999 and pool.scheduler.max_num_seqs == 7
    assert pool.replica.has_interval and pool.replica.front_end.request_us == 300.0
    assert pool.replica.steps is not None and pool.replica.steps.knot_us == (5000.0, 20000.0)


def test_what_a_pool_says_of_its_scheduler_goes_before_what_the_engine_file_says(tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text(ENGINE)
    pool = read_fleet(written(tmp_path, POOL + "[pools.main.scheduler]\nmax_num_seqs = 3\n")).pools["main"]
    assert (pool.scheduler.max_num_seqs, pool.scheduler.num_blocks) == (3, 999)
    assert pool.replica.scheduler == pool.scheduler


@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        ('engine = "engin.json"', 'engine = "engine.json"', "engine file .*engin.json cannot be read: No such file"),
        ("engine = 5", 'engine = "engine.json"', r"engine in \[pools.main\] is the name of a file"),
        ('engine = "fleet.toml"', 'engine = "engine.json"', r"fleet.toml: there is no key 'pools' at the top"),
        (
            "num_replicas = 2\ngpu = {device = 'l40s', model = 'qwen3-8b'}",
            "num_replicas = 2",
            "one cost, not gpu and engine",
        ),
        ("num_replicas = 2\nscheduler = {num_blcks = 5}", "num_replicas = 2", "did you mean 'num_blocks'"),
    ],
)
def test_what_is_wrong_with_an_engine_of_a_pool_is_named(wrong: str, right: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "engine.json").write_text(ENGINE)
    with pytest.raises(ConfigurationError, match=told):
        read_fleet(written(tmp_path, POOL.replace(right, wrong)))


def test_a_fleet_without_a_workload_and_a_case_that_is_none_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(written(tmp_path, FLEET))]) == 2
    assert "add --workload" in capsys.readouterr().err
    assert main(["simulate", "--case", "cralm"]) == 2
    assert "did you mean 'calm'" in capsys.readouterr().err


def test_cases_are_rehearsed_over_several_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--case", "calm", "--num-seeds", "10", "--num-requests", "3", "--num-jobs", "2"]) == 0
    assert "every invariant held" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("bug", "seed", "words", "told"),
    [
        ("drop a free", 0, ["--case", "calm"], ["main-0 takes r", "plans step", "AssertionError: "]),
        ("send to the gone", 2, ["--case", "crashes"], ["the router sends r", "of trouble ", "where it takes nothing"]),
        ("write into shared blocks", 3, [], ["it takes the requests r"]),
    ],
)
def test_a_failure_is_told_with_the_line_that_repeats_it_and_its_shortest_story(
    bug: str,
    seed: int,
    words: list[str],
    told: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of thirty requests few are left, and of faults only those that it takes."""
    next(one for one in PLANTED_BUGS if one.name == bug).plant(monkeypatch)
    arguments = ["simulate", "--seed", str(seed), *words, "--num-requests", "30"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert f"reproduce with: headrace {' '.join(arguments)}" in printed
    taken = re.search(r"it takes the requests ([^;]*)", printed)
    assert taken is not None and len(taken[1].split(",")) <= 5
    assert all(one in printed for one in told), printed


def test_a_fault_that_would_come_after_the_end_of_the_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "workload.jsonl"
    one = WorkloadRequest(request_id="a", prompt=TokenPrompt((Segment("x", 5),)), num_output_tokens=3)
    asked.write_bytes(b"".join(write_workload(Workload(name="one", requests=(one,)))))
    assert main(["simulate", str(written(tmp_path, FLEET)), "--workload", str(asked)]) == 0
    assert "the crash of main-1 at 1 s never came: the run ended at 0.0 s" in capsys.readouterr().out


APART = """
[pools.prefill]
num_replicas = 1
role = "prefill"
[pools.prefill.scheduler]
max_model_len = 2048
num_blocks = 512
policy = "fcfs"
[pools.prefill.gpu]
device = "h100_sxm"
model = "llama-3.1-8b"
backend = "vllm"
[pools.prefill.gpu.precision]
gemm = "fp8"
experts = "fp8"
latent_projections = "bfloat16"
kv = "fp8"
[pools.prefill.transfer]
overlap = "layers"
load_failure_policy = "recompute"

[pools.decode]
num_replicas = 1
role = "decode"
[pools.decode.scheduler]
max_model_len = 2048
num_blocks = 512

[router]
policy = "least-requests"
[router.disaggregation]
policy = "round-robin"

[[faults]]
kind = "crash"
at_s = 1.0
replica = "decode-0"
"""
NAMES = re.findall(r'^([a-z_]+ = )"([^"]+)"$', APART, flags=re.MULTILINE)


@pytest.mark.parametrize(("key", "value"), NAMES, ids=lambda one: one.strip(" ="))
def test_every_name_that_nobody_knows_is_refused_with_those_that_are_known(tmp_path: Path, key: str, value: str) -> None:
    """None of them is passed over: a misspelt backend, say, would have been the kernels alone."""
    assert read_fleet(written(tmp_path, APART)).is_disaggregated
    misspelt = value + "x"
    with pytest.raises(ConfigurationError) as refused:
        read_fleet(written(tmp_path, APART.replace(f'{key}"{value}"', f'{key}"{misspelt}"', 1)))
    told = str(refused.value)
    assert misspelt in told
    assert value in told.replace(misspelt, ""), "the right ones, too"


KINDS = (PoolSpec, TransferSpec, StartSpec, LinearCostSpec, ClientSpec, NetworkSpec, RouterSpec, FaultSpec)
NUMBERS = [
    (kind.__name__, field.encode_name)
    for kind in KINDS
    for field in msgspec.structs.fields(kind)
    if field.type in (int, float)
]
TABLES = {
    "PoolSpec": "pools.prefill", "TransferSpec": "pools.prefill.transfer", "StartSpec": "pools.decode.start",
    "LinearCostSpec": "pools.decode.cost", "ClientSpec": "client", "NetworkSpec": "network", "RouterSpec": "router",
    "FaultSpec": "faults",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "key"), NUMBERS)
def test_a_number_that_makes_no_sense_is_refused_by_its_name_and_never_breaks_the_reader(
    tmp_path: Path, kind: str, key: str
) -> None:
    for value in ("-1", "nan", "inf", "1e300", '"many"', "true"):
        raw: dict[str, Any] = tomllib.loads(APART)
        table = raw
        for name in TABLES[kind].split("."):
            found = table.setdefault(name, {})
            table = found[0] if isinstance(found, list) else found
        table[key] = tomllib.loads(f"x = {value}")["x"]
        path = written(tmp_path, _toml(raw))
        told = _refusal(path)
        assert key in told or (not told and value in ("-1", "1e300")), f"{key} = {value}: {told or 'was taken'}"


def _refusal(path: Path) -> str:
    """Empty where it is read."""
    try:
        read_fleet(path)
    except ConfigurationError as refused:
        return str(refused)
    return ""


def _toml(table: dict[str, Any], name: str = "") -> str:
    """Of what these tests need."""
    lines = [f"[{name}]"] if name else []
    rest = []
    for key, value in table.items():
        inner = f"{name}.{key}".lstrip(".")
        if isinstance(value, dict):
            rest.append(_toml(value, inner))
        elif isinstance(value, list):
            rest += [_toml(one, inner).replace(f"[{inner}]", f"[[{inner}]]", 1) for one in value]
        else:
            lines.append(f"{key} = {json.dumps(value) if isinstance(value, (str, bool)) else value}")
    return "\n".join([*lines, *rest]) + "\n"
