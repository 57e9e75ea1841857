"""What every request passes, and the doors beside generation."""

import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route
from tests.fakes import FakeEngine
from tests.unit.server.asgi import QUIET, call, chat, complete, error_of, make_app

import headrace
from headrace.base.errors import ConfigurationError
from headrace.obs.metrics import METRICS, ServingMetrics
from headrace.server import openapi
from headrace.server.app import create_app
from headrace.server.config import ServerConfig

MESSAGES = [{"role": "user", "content": "hello"}]


# Paths


def test_an_unknown_path_is_404_with_the_nearest() -> None:
    error = error_of(call(make_app(), "POST", "/v1/chat/completion", {}), 404)
    assert "'/v1/chat/completions'" in error["message"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    assert "'/v1/models'" in error_of(call(make_app(), "GET", "/v1/model"), 404)["message"]
    assert "did you mean" not in error_of(call(make_app(), "GET", "/zzz"), 404)["message"]
    assert len(error_of(call(make_app(), "GET", "/" + "x" * 10_000), 404)["message"]) < 500


def test_a_path_of_other_servers_is_404_and_says_what_there_is_instead() -> None:
    assert "/v1/chat/completions" in error_of(call(make_app(), "POST", "/v1/messages", {}), 404)["message"]
    assert "no embeddings" in error_of(call(make_app(), "POST", "/v1/embeddings", {}), 404)["message"]


def test_a_wrong_method_is_405_and_names_the_right_one() -> None:
    response = call(make_app(), "GET", "/v1/chat/completions")
    assert "POST" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST"
    assert "GET" in error_of(call(make_app(), "DELETE", "/v1/models"), 405)["message"]


def test_models_are_listed_and_described() -> None:
    app = make_app()
    body = call(app, "GET", "/v1/models").json()
    assert [card["id"] for card in body["data"]] == ["fake-model", "fake-alias"]
    card = call(app, "GET", "/v1/models/fake-alias").json()
    assert card == body["data"][1]
    assert card == {
        "id": "fake-alias",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "headrace",
        "root": "models/fake",
        "parent": None,
        "max_model_len": 4096,
    }
    assert error_of(call(app, "GET", "/v1/models/nobody"), 404)["code"] == "model_not_found"


def test_a_models_name_may_hold_slashes() -> None:
    app = make_app(FakeEngine(served_model_names=("mills/wheel",)))
    assert call(app, "GET", "/v1/models/mills/wheel").json()["id"] == "mills/wheel"


def test_health_follows_the_engine() -> None:
    engine = FakeEngine()
    app = make_app(engine)
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/health")):
        assert call(app, method, path).status_code == 200
    engine.dead = "the engine process ended with code 9"
    for method, path in (("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")):
        assert error_of(call(app, method, path), 503)["message"] == engine.dead


def test_version_and_load_are_told() -> None:
    assert call(make_app(), "GET", "/version").json() == {"version": headrace.__version__}
    assert call(make_app(), "GET", "/load").json() == {"server_load": 0}


def test_the_prefix_cache_can_be_reset() -> None:
    engine = FakeEngine()
    app = make_app(engine)
    response = call(app, "POST", "/reset_prefix_cache")
    assert (response.status_code, response.content, engine.num_cache_resets) == (200, b"", 1)
    engine.dead = "gone"
    error_of(call(app, "POST", "/reset_prefix_cache"), 503)


def test_a_model_without_a_chat_template_refuses_conversations_and_says_what_to_use() -> None:
    metrics = ServingMetrics(model_name="fake-model", max_model_len=4096)
    app = create_app(FakeEngine(), QUIET, metrics)
    assert "/v1/completions" in error_of(chat(app), 400)["message"]
    assert complete(app).status_code == 200


# Pages


def test_the_root_and_the_docs_are_pages_that_fetch_nothing_from_elsewhere() -> None:
    app = make_app()
    docs = call(app, "GET", "/docs")
    assert docs.headers["content-type"].startswith("text/html")
    assert "://" not in docs.text.replace("http://www.w3.org/", "")
    root = call(app, "GET", "/")
    page = Path(openapi.__file__).parent / "web" / "index.html"
    assert root.content == page.read_bytes()
    assert error_of(call(app, "GET", "/web/none.js"), 404)


def test_pages_are_asked_for_anew_and_cannot_be_framed() -> None:
    app = make_app()
    for path in ("/", "/docs", "/web/app.js"):
        headers = call(app, "GET", path).headers
        assert (headers["cache-control"], headers["x-frame-options"]) == ("no-cache", "DENY")


def test_assets_of_the_page_cannot_be_left() -> None:
    app = make_app()
    for path in ("/web/../app.py", "/web/%2e%2e/app.py", "/web/..%2fapp.py"):
        assert call(app, "GET", path).status_code in (404, 405)


# OpenAPI


def test_every_route_is_documented_and_nothing_else() -> None:
    undocumented = {"/", "/docs", "/openapi.json"}
    routes = {
        (method, route.path.replace(":path", ""))
        for route in make_app().routes
        if isinstance(route, Route) and route.path not in undocumented
        for method in (route.methods or set()) - {"HEAD"}
    }
    documented = {(operation.method.upper(), operation.path) for operation in openapi.OPERATIONS}
    assert routes == documented | {("POST", "/ping")}


def test_the_document_is_served_and_every_reference_in_it_leads_somewhere() -> None:
    document = call(make_app(), "GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    references: list[str] = []

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            references.extend([node["$ref"]] if "$ref" in node else [])
            for value in node.values():
                collect(value)
        elif isinstance(node, list):
            for value in node:
                collect(value)

    collect(document)
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references) <= names
    assert {"#/components/schemas/ChatMessage", "#/components/schemas/ErrorResponse"} <= set(references)


@pytest.mark.parametrize("name", openapi.document()["components"]["schemas"])
def test_every_schema_is_valid_and_every_field_is_described(name: str) -> None:
    schema = openapi.document()["components"]["schemas"][name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"].endswith(".")
    for field, described in schema["properties"].items():
        assert described.get("description", "").endswith("."), f"{name}.{field}"


@pytest.mark.parametrize("operation", [o for o in openapi.OPERATIONS if o.example], ids=lambda o: o.path)
def test_every_example_works(operation: openapi.Operation) -> None:
    response = call(make_app(), operation.method.upper(), operation.path, operation.example)
    assert response.status_code == 200, response.text


# Keys, ids, origins


def test_without_the_key_only_health_checks_and_pages_open() -> None:
    app = make_app(config=ServerConfig(api_key="sesame", access_log=False))
    for path in ("/health", "/ping", "/docs", "/openapi.json", "/"):
        assert call(app, "GET", path).status_code in (200, 307), path
    for path in ("/v1/models", "/metrics", "/version", "/load", "/healthy", "/docs/x"):
        response = call(app, "GET", path)
        assert error_of(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "x-request-id" in response.headers


@pytest.mark.parametrize("value", ["Bearer sesame", "bearer sesame", "BEARER  sesame "])
def test_the_key_opens(value: str) -> None:
    app = make_app(config=ServerConfig(api_key="sesame", access_log=False))
    assert call(app, "GET", "/v1/models", headers={"authorization": value}).status_code == 200


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "Bearer sesam", "Bearer sesamee", "Basic sesame", "sesame"])
def test_another_key_does_not_open(value: str) -> None:
    app = make_app(config=ServerConfig(api_key="sesame", access_log=False))
    error_of(call(app, "GET", "/v1/models", headers={"authorization": value}), 401)


def test_a_key_does_not_appear_where_the_configuration_is_printed() -> None:
    assert "sesame" not in repr(ServerConfig(api_key="sesame"))


@pytest.mark.parametrize("field", ["max_body_bytes", "max_n", "max_prompts", "max_stops"])
def test_limits_below_one_are_refused_by_name(field: str) -> None:
    options: dict[str, Any] = {field: 0}
    with pytest.raises(ConfigurationError, match=field):
        ServerConfig(**options)
    with pytest.raises(ConfigurationError, match="api_key"):
        ServerConfig(api_key="")


def test_every_response_names_its_request() -> None:
    app = make_app()
    mine = {"x-request-id": "mine-1"}
    response = call(app, "POST", "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}, headers=mine)
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "chatcmpl-mine-1"
    assert call(app, "GET", "/nowhere", headers=mine).headers["x-request-id"] == "mine-1"
    first, second = (call(app, "GET", "/health").headers["x-request-id"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize("value", ["two words", "x" * 129, ""])
def test_an_unusable_request_id_is_replaced(value: str) -> None:
    response = call(make_app(), "GET", "/health", headers={"x-request-id": value})
    assert response.headers["x-request-id"] != value


def test_other_origins_are_let_in_only_where_they_are_named() -> None:
    asked = {"origin": "https://page.test", "access-control-request-method": "POST"}
    closed = call(make_app(), "OPTIONS", "/v1/chat/completions", headers=asked)
    assert "access-control-allow-origin" not in closed.headers
    config = ServerConfig(cors_origins=("https://page.test",), api_key="sesame", access_log=False)
    opened = call(make_app(config=config), "OPTIONS", "/v1/chat/completions", headers=asked)
    assert opened.status_code == 200
    assert opened.headers["access-control-allow-origin"] == "https://page.test"
    refused = call(make_app(config=config), "GET", "/v1/models", headers={"origin": "https://page.test"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://page.test"  # so that the page may read why


def test_requests_are_logged_once_with_id_status_and_path(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(config=ServerConfig())
    with caplog.at_level(logging.INFO, "headrace.access"):
        call(app, "GET", "/v1/models%0ainjected", headers={"x-request-id": "mine"})
        call(app, "GET", "/health")
    (record,) = caplog.records
    assert record.getMessage() == "GET /v1/models%0ainjected 404"
    assert vars(record)["request_id"] == "mine"


def test_a_bug_in_a_door_is_a_500_that_hides_its_details_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Buggy(FakeEngine):
        async def check_health(self) -> None:
            raise KeyError("secret")

    error = error_of(call(make_app(Buggy()), "GET", "/health"), 500)
    assert (error["type"], error["code"]) == ("server_error", "bug")
    assert "secret" not in error["message"]
    assert "secret" in caplog.text


# Metrics


def scrape(app: Any) -> dict[str, float]:
    text = call(app, "GET", "/metrics").text
    return {
        sample.name + "".join(f"|{k}={v}" for k, v in sorted(sample.labels.items()) if k in ("le", "finished_reason")): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_after_one_request_every_metric_is_there_and_those_of_requests_have_moved() -> None:
    app = make_app()
    assert chat(app, max_tokens=5, n=2).status_code == 200
    text = call(app, "GET", "/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {metric.name for metric in METRICS} <= set(families)
    found = scrape(app)
    assert found["vllm:generation_tokens_total"] == 10
    assert found["vllm:prompt_tokens_total"] == found["vllm:request_prompt_tokens_sum"] > 0
    assert found["vllm:request_success_total|finished_reason=length"] == 2
    assert found["vllm:request_params_n_sum"] == 2
    assert found["vllm:request_params_max_tokens_sum"] == 5
    assert found["vllm:request_max_num_generation_tokens_sum"] == 5
    for name in (
        "time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
        "request_inference_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
        "request_time_per_output_token_seconds", "request_generation_tokens",
    ):  # fmt: skip
        assert found[f"vllm:{name}_count"] == 2, name
    assert found["vllm:inter_token_latency_seconds_count"] == 8
    assert found["vllm:request_params_n_count"] == 1
    assert found["headrace:startup_seconds"] > 0
    assert found["vllm:cache_config_info"] == 1


def test_cached_prompt_tokens_are_counted_once_for_each_request() -> None:
    app = make_app()
    chat(app)
    chat(app, n=3)
    assert scrape(app)["vllm:prompt_tokens_cached_total"] == 16


def test_refused_requests_move_nothing_and_failed_ones_count_as_errors() -> None:
    engine = FakeEngine()
    app = make_app(engine)
    engine.refusal = RuntimeError("no")
    chat(app)
    chat(app, max_tokens=0)
    found = scrape(app)
    assert sum(value for name, value in found.items() if name.startswith("vllm:request_success_total")) == 0
    assert found["vllm:request_params_n_count"] == 0
    engine.refusal = None
    engine.fail_after = (2, RuntimeError("no"))
    chat(app)
    found = scrape(app)
    assert found["vllm:request_success_total|finished_reason=error"] == 1
    assert found["vllm:generation_tokens_total"] == 2
