"""What a server says about itself beside a run: the model that it serves, and its counters. Plain blocking HTTP; not for
load."""

import re
import urllib.error
import urllib.request
from collections.abc import Mapping

import msgspec

from headrace.base.errors import ConfigurationError
from headrace.measure.bench.http_client import Target

_COUNTERS = (
    "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total", "vllm:num_preemptions_total", "vllm:request_queue_time_seconds_sum",
    "vllm:request_queue_time_seconds_count",
)  # fmt: skip
_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^\n]*\})?\s+(\S+)", re.MULTILINE)
_TIMEOUT_S = 10


def first_model(url: str, headers: Mapping[str, str]) -> str:
    """The first of `/v1/models`. Raises ConfigurationError where nothing answers there, or no model is named."""
    try:
        with urllib.request.urlopen(_request(url, "/v1/models", headers), timeout=_TIMEOUT_S) as answer:
            name = msgspec.json.decode(answer.read())["data"][0]["id"]
    except urllib.error.HTTPError as error:
        raise ConfigurationError(
            f"{url}/v1/models answers {error.code} {error.reason}: say which model with --model, and bench waits until the "
            "server is ready"
        ) from None
    except urllib.error.URLError as error:
        raise ConfigurationError(f"{url} cannot be reached: {error.reason}; check --base-url") from None
    except (OSError, msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        raise ConfigurationError(f"{url}/v1/models names no model ({error}); say which with --model") from None
    return str(name)


def counters(url: str, headers: Mapping[str, str]) -> dict[str, float]:
    """The counters of `/metrics` that a report uses, summed over labels; empty where there are none."""
    try:
        with urllib.request.urlopen(_request(url, "/metrics", headers), timeout=_TIMEOUT_S) as answer:
            return parse_counters(answer.read().decode(errors="replace"))
    except OSError:
        return {}


def parse_counters(text: str) -> dict[str, float]:
    """
    >>> parse_counters('vllm:prefix_cache_hits_total{engine="0"} 3.0\\nvllm:prefix_cache_hits_total{engine="1"} 4.0\\nx 1')
    {'vllm:prefix_cache_hits_total': 7.0}
    """
    found: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        if name in _COUNTERS:
            found[name] = found.get(name, 0.0) + float(value)
    return found


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def _request(url: str, path: str, headers: Mapping[str, str]) -> urllib.request.Request:
    return urllib.request.Request(Target.parse(url).url(path), headers=dict(headers))
