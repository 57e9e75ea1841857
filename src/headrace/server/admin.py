"""The doors beside generation: which models, how it fares, the metrics, and the tokenizer.

Knows what operators, routers and dashboards ask. Changes nothing but the prefix cache.
"""

import functools

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import headrace
from headrace.base.errors import InvalidRequestError
from headrace.engine.host.generation import EngineFacts, Tokenizer
from headrace.protocol.openai import (
    DetokenizeResponse,
    Health,
    Load,
    ModelCard,
    ModelList,
    TokenizeRequest,
    TokenizeResponse,
    TokenPiece,
    Version,
)
from headrace.server import decoding
from headrace.server.door import Call, Reply
from headrace.server.prompts import Prompt, chat_prompt, chat_template, check_token_ids
from headrace.server.services import Services
from headrace.server.tools.request import template_tools
from headrace.server.validation import check_model


def json_response(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


async def list_models(request: Request) -> Response:
    facts = services_of(request).engine.facts
    return json_response(ModelList([_card(name, facts) for name in facts.served_model_names]))


async def show_model(request: Request) -> Response:
    facts = services_of(request).engine.facts
    name = request.path_params["model"]
    check_model(name, facts)
    return json_response(_card(name, facts))


def _card(name: str, facts: EngineFacts) -> ModelCard:
    return ModelCard(name, facts.started_unix_s, facts.model_path, facts.max_model_len)


async def health(request: Request) -> Response:
    await services_of(request).engine.check_health()
    return json_response(Health())


async def version(request: Request) -> Response:
    return json_response(Version(headrace.__version__))


async def load(request: Request) -> Response:
    return json_response(Load(services_of(request).in_flight.count))


async def metrics(request: Request) -> Response:
    text, content_type = services_of(request).metrics.exposition()
    return Response(text, headers={"content-type": content_type})


async def reset_prefix_cache(request: Request) -> Response:
    await services_of(request).engine.reset_prefix_cache()
    return Response()


async def answer_tokenize(call: Call, reply: Reply) -> None:
    request = decoding.TOKENIZE.decode(call.body)
    facts, tokenizer = call.services.engine.facts, call.services.engine.tokenizer
    check_model(request.model, facts)
    token_ids = (await _tokenize(call.services, request)).token_ids
    tokens: list[int | TokenPiece] = [*token_ids]
    if request.with_pieces:
        tokens = [TokenPiece(token, _piece(tokenizer, token)) for token in token_ids]
    response = TokenizeResponse(len(token_ids), facts.max_model_len, tokens)
    if request.return_token_strs:
        response.token_strs = [tokenizer.token_text(token) for token in token_ids]
    await reply.whole(msgspec.json.encode(response))


async def answer_detokenize(call: Call, reply: Reply) -> None:
    request = decoding.DETOKENIZE.decode(call.body)
    engine = call.services.engine
    check_model(request.model, engine.facts)
    check_token_ids(request.tokens, engine.facts.vocab_size, "tokens")
    decode = functools.partial(engine.tokenizer.decode, request.tokens, skip_special_tokens=False)
    text = await call.services.text_pool.run(len(request.tokens), decode)
    await reply.whole(msgspec.json.encode(DetokenizeResponse(text, text)))


async def _tokenize(services: Services, request: TokenizeRequest) -> Prompt:
    given = [name for name in ("prompt", "messages", "content") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError(
            f"give exactly one of prompt, messages and content, not {' and '.join(given) or 'none'}",
            param=given[1] if given else "prompt",
        )
    if request.messages is not None:
        template = chat_template(services, request.chat_template)
        return await chat_prompt(services, request, template, template_tools(request.tools))
    if request.tools:
        raise InvalidRequestError("tools belong to messages: a text is not rendered", param="tools")
    if request.prompt is not None:
        text, special = request.prompt, request.add_special_tokens is not False
    else:
        assert request.content is not None, "one of three, and not the others"
        text, special = request.content, bool(request.add_special)
    encode = functools.partial(
        services.engine.tokenizer.encode,
        text,
        add_special_tokens=special,
        parse_special=request.parse_special is not False,
    )
    return Prompt(await services.text_pool.run(len(text), encode), text)


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    raw = tokenizer.token_bytes(token)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)
