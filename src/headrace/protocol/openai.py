"""The OpenAI-shaped API as types: what clients send and what they get back, field by field.

Knows names, JSON types and meanings; the OpenAPI document is generated from here. Does not know ranges (they live in
`SamplingParams`), defaults that depend on a model, or how anything is answered. Where OpenAI has no field, the name is
vLLM's. A field set to null counts as absent. What clients may send without effect, and what is refused by name, is a
table of its own: `server/refusals.py`.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

# Requests

Unread = msgspec.Raw
"""A JSON value as it was sent, not looked into: schemas of 100 kB come with every request, and are read where they are new.
Its bytes are JSON but for strings that may be no UTF-8; none where the field is absent, `null` where it is null."""
ABSENT: Any = msgspec.field(default_factory=msgspec.Raw)


class StreamOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """What a stream carries beside the text."""

    include_usage: Annotated[
        bool | None, Meta(description="Send a last chunk with `usage` and no choices, before `[DONE]`.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, Meta(description="With `include_usage`: put the usage so far into every chunk.")
    ] = None


class TextPart(Struct, forbid_unknown_fields=True, frozen=True):
    """A piece of a message's content."""

    type: Annotated[Literal["text"], Meta(description="`text`; parts of other types are refused.")]
    text: Annotated[str, Meta(description="The text of the part.")]


class FunctionCall(Struct, forbid_unknown_fields=True, frozen=True):
    """What is called, and with what."""

    name: Annotated[str, Meta(description="The tool's name.")]
    arguments: Annotated[str, Meta(description="A JSON object, as text. What the model wrote may be invalid: check it.")]


class ToolCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A call of one tool."""

    id: Annotated[str, Meta(description="Names the call; the tool's answer refers to it.")]
    function: Annotated[FunctionCall, Meta(description="What is called.")]
    type: Annotated[Literal["function"], Meta(description="Always `function`.")] = "function"


class ChatMessage(Struct, forbid_unknown_fields=True, frozen=True):
    """One turn of the conversation."""

    role: Annotated[
        Literal["system", "developer", "user", "assistant", "tool"],
        Meta(description="Who speaks. `developer` is rendered as `system`, which is what chat templates know."),
    ]
    content: Annotated[
        str | list[TextPart] | None,
        Meta(description="What is said: a string, or text parts. An assistant that calls tools may say nothing."),
    ] = None
    name: Annotated[str | None, Meta(description="A name for the speaker, for templates that use it.")] = None
    tool_call_id: Annotated[
        str | None, Meta(description="For role `tool`: the call that this answers, for templates that use it.")
    ] = None
    tool_calls: Annotated[list[ToolCall] | None, Meta(description="For role `assistant`: the tools that it called.")] = None
    reasoning: Annotated[
        str | None, Meta(description="For role `assistant`: the reasoning of an earlier answer, for templates that use it.")
    ] = None
    reasoning_content: Annotated[str | None, Meta(description="The older name of `reasoning`.")] = None


class FunctionDefinition(Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(description="Up to 128 letters, digits and `_ . - : /`.")]
    description: Annotated[str | None, Meta(description="What it does, for the model to read.")] = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="A JSON Schema of type `object`; absent: it takes no arguments.")
    ] = None
    strict: Annotated[
        bool | None,
        Meta(description="Hold calls to the schema. `required` and named choices always are; with `auto` those that ask."),
    ] = None


class ToolDefinition(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool that the model may call."""

    type: Annotated[Literal["function"], Meta(description="`function`; there are no other tools here.")]
    function: Annotated[FunctionDefinition, Meta(description="The function.")]


class NamedFunction(Struct, forbid_unknown_fields=True, frozen=True):
    """One of the request's tools, by name."""

    name: Annotated[str, Meta(description="The tool's name.")]


class NamedToolChoice(Struct, forbid_unknown_fields=True, frozen=True):
    """The one tool that must be called."""

    function: Annotated[NamedFunction, Meta(description="Which.")]
    type: Annotated[Literal["function"], Meta(description="Always `function`.")] = "function"


ToolDefinitions = Annotated[
    list[ToolDefinition] | None,
    Meta(
        description="What the model may call, written into the prompt by its chat template.",
        examples=[
            [
                {
                    "type": "function",
                    "function": {
                        "name": "turn_wheel",
                        "description": "Turns the mill's wheel.",
                        "parameters": {"type": "object", "properties": {"rpm": {"type": "number"}}, "required": ["rpm"]},
                    },
                }
            ]
        ],
    ),
]


class JsonSchemaFormat(Struct, forbid_unknown_fields=True, frozen=True):
    """A JSON Schema, as OpenAI wraps it."""

    name: Annotated[str | None, Meta(description="Your name for it. Accepted; has no effect here.")] = None
    description: Annotated[str | None, Meta(description="What it is for. Accepted; has no effect here.")] = None
    schema: Annotated[
        Unread, Meta(description="The JSON Schema, draft 2020-12. A keyword that cannot be enforced is refused by name.")
    ] = ABSENT
    strict: Annotated[bool | None, Meta(description="Accepted; the schema is enforced whatever it says.")] = None


class ResponseFormat(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the answer, as OpenAI asks for it."""

    type: Annotated[
        Literal["text", "json_object", "json_schema", "structural_tag"],
        Meta(description="`text`: free; `json_object`: any JSON object; `json_schema`: what the schema describes; "
             "`structural_tag`: free text in which some tags have a form."),
    ]  # fmt: skip
    json_schema: Annotated[JsonSchemaFormat | None, Meta(description="For type `json_schema`.")] = None
    schema: Annotated[Unread, Meta(description="For type `json_object`, as llama.cpp has it: a JSON Schema.")] = ABSENT
    structures: Annotated[
        list[Any] | None, Meta(description="For type `structural_tag`: objects of `begin`, `schema` and `end`.")
    ] = None
    triggers: Annotated[
        list[str] | None, Meta(description="For type `structural_tag`: texts after which a tag must follow.")
    ] = None
    format: Annotated[Any, Meta(description="For type `structural_tag`: the format, as XGrammar has it.")] = None


class StructuredOutputs(Struct, forbid_unknown_fields=True, frozen=True):
    """The form of the answer: exactly one of the first six."""

    json: Annotated[Unread, Meta(description="A JSON Schema, as an object or as text.")] = ABSENT
    regex: Annotated[str | None, Meta(description="A regular expression that the whole answer matches.")] = None
    choice: Annotated[list[str] | None, Meta(description="Texts, one of which is the answer.")] = None
    grammar: Annotated[str | None, Meta(description="A grammar in GBNF (llama.cpp's) or in Lark's notation.")] = None
    json_object: Annotated[bool | None, Meta(description="True: any JSON object.")] = None
    structural_tag: Annotated[
        Unread, Meta(description="Free text in which some tags have a form: an object or its JSON text.")
    ] = ABSENT
    disable_any_whitespace: Annotated[bool | None, Meta(description="Write JSON without spaces and line breaks.")] = None
    disable_additional_properties: Annotated[
        bool | None, Meta(description="Objects have no properties but those that the schema names.")
    ] = None
    whitespace_pattern: Annotated[
        str | None, Meta(description="A regular expression for each run of whitespace in JSON.")
    ] = None


class RepetitionDetectionOptions(Struct, forbid_unknown_fields=True, frozen=True):
    """When an answer counts as stuck."""

    max_pattern_size: Annotated[int, Meta(description="Tokens of the longest pattern that is looked for, 1 to 1024.")]
    min_pattern_size: Annotated[int | None, Meta(description="Tokens of the shortest pattern. Default 1.")] = None
    min_count: Annotated[
        int | None, Meta(description="How often in a row the pattern must end the answer. Default 2, the least.")
    ] = None


class GenerationFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """What chat and text completions have in common."""

    model: Annotated[
        str | None, Meta(description="A served model's name, as `/v1/models` lists them; absent: the first of them.")
    ] = None
    stream: Annotated[bool | None, Meta(description="Answer with server-sent events as the text comes.")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="Only together with `stream`.")] = None
    max_tokens: Annotated[
        int | None,
        Meta(
            description="Most tokens to generate. Absent: 16 for completions, what the model's length leaves for chat.",
            examples=[128],
        ),
    ] = None
    min_tokens: Annotated[int | None, Meta(description="The answer cannot end by itself before this many tokens.")] = None
    n: Annotated[int | None, Meta(description="How many answers to give to each prompt; default 1.")] = None
    temperature: Annotated[
        float | None,
        Meta(description="0 takes the most probable token; higher draws more freely. Default: the model's own, else 1."),
    ] = None
    top_p: Annotated[
        float | None,
        Meta(
            description="Draw from the smallest set of tokens whose probability reaches this. Default: the model's, else 1."
        ),
    ] = None
    top_k: Annotated[
        int | None,
        Meta(description="Draw from this many most probable tokens; 0 or -1 for all. Default: the model's, else 0."),
    ] = None
    min_p: Annotated[
        float | None,
        Meta(description="Drop tokens less probable than this fraction of the most probable one. Default 0."),
    ] = None
    seed: Annotated[
        int | None,
        Meta(description="The same request with the same seed gives the same tokens. Absent: a new one each time."),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Meta(description="Above 1 makes tokens of prompt and answer less likely. Default: the model's, else 1."),
    ] = None
    presence_penalty: Annotated[
        float | None, Meta(description="Subtracted once from the logits of tokens already in the answer.")
    ] = None
    frequency_penalty: Annotated[
        float | None, Meta(description="Subtracted for each occurrence of a token in the answer.")
    ] = None
    logit_bias: Annotated[
        dict[int, float] | None, Meta(description="Added to the logits of these token ids; from -100 to 100.")
    ] = None
    stop: Annotated[
        str | list[str] | None,
        Meta(description="The answer ends where this text, or any of these, appears.", examples=["\n\n"]),
    ] = None
    stop_token_ids: Annotated[list[int] | None, Meta(description="The answer ends after any of these tokens.")] = None
    include_stop_str_in_output: Annotated[
        bool | None, Meta(description="Keep the stop string that ended the answer in its text. Default false.")
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="Do not end at the model's end-of-text tokens. Default false.")] = (
        None
    )
    skip_special_tokens: Annotated[bool | None, Meta(description="Leave control tokens out of the text. Default true.")] = (
        None
    )
    add_special_tokens: Annotated[
        bool | None,
        Meta(
            description="Let the tokenizer add its own special tokens to the prompt. Default: true for completions; false "
            "for chat, whose template writes them."
        ),
    ] = None
    allowed_token_ids: Annotated[list[int] | None, Meta(description="Only these tokens can be chosen.")] = None
    bad_words: Annotated[
        list[str] | None,
        Meta(
            description="Words that the answer does not hold, as the tokenizer spells them at a text's beginning and after "
            "a space."
        ),
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        Meta(description="Report log-probabilities of the prompt, with this many alternatives, 0 to 20. Not for streams."),
    ] = None
    logprob_token_ids: Annotated[
        list[int] | None,
        Meta(description="With `logprobs`: report these tokens as the alternatives in place of the most probable ones."),
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(description="Keep at most so many tokens of the prompt; -1: so many that the answer fits beside it."),
    ] = None
    truncation_side: Annotated[
        Literal["left", "right"] | None, Meta(description="Where a prompt is cut that is too long. Default `left`.")
    ] = None
    repetition_detection: Annotated[
        RepetitionDetectionOptions | None,
        Meta(description="End an answer that repeats itself, with `finish_reason` `repetition`."),
    ] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="The form that the answer must have, as OpenAI asks for it.")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, Meta(description="The form that the answer must have, as vLLM asks for it.")
    ] = None
    use_beam_search: Annotated[
        bool | None,
        Meta(
            description="Search for the most probable answers, `n` beams wide (completions: `best_of`), not drawn ones: "
            "temperature, top_p, top_k, min_p and seed then play no part. Answers come when the search is over, best first."
        ),
    ] = None
    length_penalty: Annotated[
        float | None,
        Meta(
            description="With `use_beam_search`: an answer's score is the sum of its log-probabilities over its number of "
            "tokens to this power. Default 1; more favours long answers."
        ),
    ] = None
    early_stopping: Annotated[
        bool | Literal["never"] | None,
        Meta(
            description="With `use_beam_search`. True: end with the first `n` answers; false, the default: when no beam "
            "would be among the best, were it to end now; `never`: when none can become so."
        ),
    ] = None
    thinking_token_budget: Annotated[
        int | None,
        Meta(
            description="Most tokens of reasoning: then the mark that ends it is written, and the answer follows. -1: no "
            "limit. Only for models that put marks around their reasoning."
        ),
    ] = None
    priority: Annotated[
        int | None,
        Meta(description="Lower runs earlier. Anything but 0 needs an engine that schedules by priority."),
    ] = None
    cache_salt: Annotated[
        str | None,
        Meta(description="1 to 1024 characters: cached prompt beginnings are shared only among requests of the same salt."),
    ] = None
    return_token_ids: Annotated[
        bool | None, Meta(description="Give the token ids of prompt and answer beside the text. Default false.")
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None,
        Meta(description="In log-probabilities, write tokens as `token_id:17` in place of their texts. Default false."),
    ] = None
    stream_interval: Annotated[
        int | None,
        Meta(description="Tokens to a chunk of a stream, at least 1; the first and the last come at once. Default 1."),
    ] = None
    session_id: Annotated[
        str | None,
        Meta(description="Names a conversation for routers. Accepted; one engine finds cached prompts without it."),
    ] = None
    request_id: Annotated[
        str | None,
        Meta(description="Becomes part of the answer's `id`. Absent: the `X-Request-Id` header, else a new one."),
    ] = None
    user: Annotated[str | None, Meta(description="Your name for the end user. Accepted; has no effect here.")] = None
    metadata: Annotated[
        dict[str, str] | None, Meta(description="Your own notes on the request. Accepted; has no effect here.")
    ] = None
    safety_identifier: Annotated[
        str | None, Meta(description="Your identifier of the end user. Accepted; has no effect here.")
    ] = None
    prompt_cache_key: Annotated[
        str | None,
        Meta(description="A hint that helps a fleet find cached prompts. Accepted; one engine finds them without it."),
    ] = None


# How a conversation becomes a prompt: the same fields wherever one is rendered. (Structs cannot inherit from two others.)
AddGenerationPrompt = Annotated[
    bool | None,
    Meta(description="End the prompt where the assistant's turn begins. Default: true unless `continue_final_message`."),
]
ContinueFinalMessage = Annotated[
    bool | None, Meta(description="Leave the last message open, so that the answer continues it. Default false.")
]
RequestChatTemplate = Annotated[
    str | None,
    Meta(description="A Jinja template in place of the model's own; only where the server trusts its clients' templates."),
]
ChatTemplateKwargs = Annotated[
    dict[str, Any] | None, Meta(description="Further variables for the chat template, for example `enable_thinking`.")
]


class ChatCompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """Continue a conversation."""

    messages: Annotated[
        list[ChatMessage],
        Meta(
            description="The conversation so far, at least one message.",
            examples=[[{"role": "user", "content": "Say hello."}]],
        ),
    ]
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    chat_template: RequestChatTemplate = None
    chat_template_kwargs: ChatTemplateKwargs = None
    documents: Annotated[
        list[dict[str, Any]] | None,
        Meta(description="Documents for the chat template, objects of `title` and `text`; refused where it takes none."),
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Meta(
            description="How much the model is to reason, given to the chat template as `reasoning_effort`, and as "
            "`enable_thinking`: false for `none`, else true. Refused where the template knows neither."
        ),
    ] = None
    tools: ToolDefinitions = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedToolChoice | None,
        Meta(
            description="`auto`, the default with tools: the model decides. `none`: it is not told of them. `required`, or "
            "a named tool: constrained decoding makes it call."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, Meta(description="False: the answer ends with its first call. Default true.")
    ] = None
    include_reasoning: Annotated[
        bool | None, Meta(description="False leaves `reasoning` out of the answer. Default true.")
    ] = None
    echo: Annotated[
        bool | None,
        Meta(description="Begin the answer with the last message, if that is the assistant's. Default false."),
    ] = None
    return_prompt_text: Annotated[
        bool | None, Meta(description="Give the prompt as the chat template wrote it, as `prompt_text`. Default false.")
    ] = None
    max_completion_tokens: Annotated[
        int | None, Meta(description="OpenAI's newer name of `max_tokens`; where both are given they must agree.")
    ] = None
    logprobs: Annotated[
        bool | None, Meta(description="Report the log-probability of every token of the answer. Default false.")
    ] = None
    top_logprobs: Annotated[
        int | None, Meta(description="With `logprobs`: how many alternatives to report at each position, 0 to 20.")
    ] = None


class CompletionRequest(GenerationFields, forbid_unknown_fields=True, kw_only=True):
    """Continue a text."""

    prompt: Annotated[
        str | list[str | int | list[int]],
        Meta(
            description="A text, a list of texts, a list of token ids, or a list of such lists.",
            examples=["Once upon a time"],
        ),
    ]
    logprobs: Annotated[
        int | bool | None,
        Meta(description="Report log-probabilities, with this many alternatives at each position, 0 to 20."),
    ] = None
    echo: Annotated[
        bool | None,
        Meta(
            description="Begin the answer's text with the prompt, and its log-probabilities with the prompt's. Default "
            "false. With it `max_tokens` may be 0: nothing is generated."
        ),
    ] = None
    best_of: Annotated[
        int | None,
        Meta(
            description="Generate so many answers and give the `n` most probable per token; not for streams. With "
            "`use_beam_search`: how wide the search is."
        ),
    ] = None


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Turn a text or a conversation into token ids. Give exactly one of `prompt`, `messages` and `content`."""

    model: Annotated[str | None, Meta(description="A served model's name; absent: the first.")] = None
    prompt: Annotated[str | None, Meta(description="A text.", examples=["Hello, world"])] = None
    messages: Annotated[list[ChatMessage] | None, Meta(description="A conversation, rendered by the chat template.")] = None
    tools: ToolDefinitions = None
    content: Annotated[str | None, Meta(description="A text, as llama.cpp calls it.")] = None
    add_generation_prompt: AddGenerationPrompt = None
    continue_final_message: ContinueFinalMessage = None
    chat_template: RequestChatTemplate = None
    chat_template_kwargs: ChatTemplateKwargs = None
    add_special_tokens: Annotated[
        bool | None,
        Meta(description="Let the tokenizer add its special tokens. Default: true for `prompt`, false for `messages`."),
    ] = None
    return_token_strs: Annotated[
        bool | None, Meta(description="Give each token's text beside its id, as `token_strs`. Default false.")
    ] = None
    add_special: Annotated[
        bool | None, Meta(description="llama.cpp's `add_special_tokens`, for `content`. Default false.")
    ] = None
    parse_special: Annotated[
        bool | None, Meta(description="Read control tokens that are written out in the text. Default true.")
    ] = None
    with_pieces: Annotated[
        bool | None, Meta(description="llama.cpp: make `tokens` a list of objects with `id` and `piece`. Default false.")
    ] = None


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Turn token ids into text."""

    tokens: Annotated[list[int], Meta(description="Token ids.", examples=[[1, 2, 3]])]
    model: Annotated[str | None, Meta(description="A served model's name; absent: the first.")] = None


# Answers


class PromptTokensDetails(Struct):
    """Where the prompt's tokens came from."""

    cached_tokens: Annotated[int, Meta(description="Prompt tokens that were found in the prefix cache.")]


class Usage(Struct):
    """Tokens counted."""

    prompt_tokens: Annotated[int, Meta(description="Tokens of the prompts.")]
    completion_tokens: Annotated[int, Meta(description="Tokens of all answers, end-of-text tokens included.")]
    total_tokens: Annotated[int, Meta(description="Their sum.")]
    prompt_tokens_details: Annotated[PromptTokensDetails, Meta(description="Where the prompt's tokens came from.")]


class TopLogprob(Struct):
    """An alternative at one position."""

    token: Annotated[str, Meta(description="The token's text.")]
    logprob: Annotated[float, Meta(description="Natural logarithm of its probability.")]
    bytes: Annotated[list[int], Meta(description="Its UTF-8 bytes, which may be part of a character.")]


class ChatTokenLogprob(Struct):
    """A token of the answer with its log-probability."""

    token: Annotated[str, Meta(description="The token's text.")]
    logprob: Annotated[float, Meta(description="Natural logarithm of its probability.")]
    bytes: Annotated[list[int], Meta(description="Its UTF-8 bytes, which may be part of a character.")]
    top_logprobs: Annotated[list[TopLogprob], Meta(description="The alternatives asked for, most probable first.")]


class ChatLogprobs(Struct):
    """Log-probabilities of an answer's tokens."""

    content: Annotated[list[ChatTokenLogprob], Meta(description="One entry for each token.")]
    refusal: Annotated[None, Meta(description="Always null: models here do not refuse in a channel of its own.")] = None


FINISH_REASON = Meta(
    description="`stop`: the model or a stop string ended it; `length`: `max_tokens` or the model's length; `tool_calls`: "
    "it ended and calls tools; `repetition`: `repetition_detection`."
)
FinishReasonWord = Literal["stop", "length", "repetition", "tool_calls"]


class PromptLogprob(Struct):
    """A token at one position of the prompt."""

    logprob: Annotated[float, Meta(description="Natural logarithm of its probability.")]
    rank: Annotated[int, Meta(description="1 for the most probable token.")]
    decoded_token: Annotated[str, Meta(description="The token's text.")]


PromptLogprobsList = Annotated[
    list[dict[str, PromptLogprob] | None] | UnsetType,
    Meta(
        description="With `prompt_logprobs`: at each position of the prompt its token and the alternatives, by token id; "
        "null for the first."
    ),
]

STOP_REASON = Meta(description="The stop token's id or the stop string that ended it; null for end-of-text.")


class AssistantMessage(Struct):
    """The answer."""

    role: Annotated[Literal["assistant"], Meta(description="Always `assistant`.")]
    content: Annotated[str | None, Meta(description="The text of the answer; null where there are only calls or reasoning.")]
    refusal: Annotated[None, Meta(description="Always null.")] = None
    tool_calls: Annotated[list[ToolCall] | UnsetType, Meta(description="The tools that it calls.")] = UNSET
    reasoning: Annotated[str | UnsetType, Meta(description="What the model thought first, where it marks that as such.")] = (
        UNSET
    )


class ChatChoice(Struct):
    """One of the answers."""

    index: Annotated[int, Meta(description="Which of the `n` answers this is.")]
    message: Annotated[AssistantMessage, Meta(description="The answer.")]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="Present where asked for.")]
    finish_reason: Annotated[FinishReasonWord, FINISH_REASON]
    stop_reason: Annotated[int | str | None, STOP_REASON]
    token_ids: Annotated[list[int] | UnsetType, Meta(description="With `return_token_ids`: the answer's tokens.")] = UNSET


class ChatCompletion(Struct):
    """The whole answer to a chat request."""

    id: Annotated[str, Meta(description="The answer's identifier.")]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    model: Annotated[str, Meta(description="The name of the model that answered.")]
    choices: Annotated[list[ChatChoice], Meta(description="The answers, by index.")]
    usage: Annotated[Usage, Meta(description="Tokens counted.")]
    system_fingerprint: Annotated[str, Meta(description="Names the weights, numerics and processor that answered.")]
    object: Annotated[Literal["chat.completion"], Meta(description="Always `chat.completion`.")] = "chat.completion"
    service_tier: Annotated[None, Meta(description="Always null.")] = None
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="With `return_token_ids`: the rendered prompt's tokens.")
    ] = UNSET
    prompt_text: Annotated[str | UnsetType, Meta(description="With `return_prompt_text`: the rendered prompt.")] = UNSET
    prompt_logprobs: PromptLogprobsList = UNSET


class FunctionCallDelta(Struct):
    """What a chunk adds to a call."""

    name: Annotated[str | UnsetType, Meta(description="The tool's name, in the call's first chunk.")] = UNSET
    arguments: Annotated[str, Meta(description="Text to append to the call's arguments.")] = ""


class ToolCallDelta(Struct):
    """A new call, or more of one."""

    index: Annotated[int, Meta(description="Which call.")]
    function: Annotated[FunctionCallDelta, Meta(description="What is new.")]
    id: Annotated[str | UnsetType, Meta(description="In the call's first chunk.")] = UNSET
    type: Annotated[Literal["function"] | UnsetType, Meta(description="In the call's first chunk.")] = UNSET


class ChatDelta(Struct):
    """What a chunk adds to an answer."""

    role: Annotated[Literal["assistant"] | UnsetType, Meta(description="In the first chunk of each answer.")] = UNSET
    content: Annotated[str | UnsetType, Meta(description="Text to append.")] = UNSET
    reasoning: Annotated[str | UnsetType, Meta(description="Reasoning to append.")] = UNSET
    tool_calls: Annotated[list[ToolCallDelta] | UnsetType, Meta(description="Calls, or more of them.")] = UNSET


class ChatChunkChoice(Struct):
    """What a chunk says of one answer."""

    index: Annotated[int, Meta(description="Which of the `n` answers this is.")]
    delta: Annotated[ChatDelta, Meta(description="What is new.")]
    logprobs: Annotated[ChatLogprobs | None, Meta(description="Of the chunk's tokens, where asked for.")] = None
    finish_reason: Annotated[FinishReasonWord | None, FINISH_REASON] = None
    stop_reason: Annotated[int | str | UnsetType | None, STOP_REASON] = UNSET
    token_ids: Annotated[list[int] | UnsetType, Meta(description="With `return_token_ids`: the chunk's tokens.")] = UNSET


class ChatCompletionChunk(Struct):
    """One server-sent event of a streamed chat answer."""

    id: Annotated[str, Meta(description="The answer's identifier, the same in all its chunks.")]
    created: Annotated[int, Meta(description="Unix time in seconds, the same in all chunks.")]
    model: Annotated[str, Meta(description="The name of the model that answers.")]
    choices: Annotated[list[ChatChunkChoice], Meta(description="One entry; none in the chunk that carries the usage.")]
    system_fingerprint: Annotated[str, Meta(description="Names the weights, numerics and processor that answer.")]
    object: Annotated[Literal["chat.completion.chunk"], Meta(description="Always `chat.completion.chunk`.")] = (
        "chat.completion.chunk"
    )
    usage: Annotated[Usage | UnsetType | None, Meta(description="Where `stream_options` asks for it.")] = UNSET
    prompt_token_ids: Annotated[
        list[int] | UnsetType, Meta(description="With `return_token_ids`, in the first chunk: the prompt's tokens.")
    ] = UNSET
    prompt_text: Annotated[
        str | UnsetType, Meta(description="With `return_prompt_text`, in the first chunk: the rendered prompt.")
    ] = UNSET


class CompletionLogprobs(Struct):
    """Log-probabilities of an answer's tokens, as parallel lists."""

    text_offset: Annotated[list[int], Meta(description="Where in the choice's text each token begins, in characters.")]
    token_logprobs: Annotated[
        list[float | None],
        Meta(description="Natural logarithms of the tokens' probabilities; null for a prompt's first token."),
    ]
    tokens: Annotated[list[str], Meta(description="The tokens' texts.")]
    top_logprobs: Annotated[
        list[dict[str, float] | None],
        Meta(description="At each position the alternatives and the chosen token itself; null for a prompt's first token."),
    ]


class CompletionChoice(Struct):
    """One of the answers, or what a chunk adds to it."""

    index: Annotated[int, Meta(description="The prompt's place times `n`, plus which of its `n` answers this is.")]
    text: Annotated[str, Meta(description="The text of the answer; in a stream, text to append.")]
    logprobs: Annotated[CompletionLogprobs | None, Meta(description="Present where asked for.")] = None
    finish_reason: Annotated[FinishReasonWord | None, FINISH_REASON] = None
    stop_reason: Annotated[int | str | UnsetType | None, STOP_REASON] = UNSET
    token_ids: Annotated[list[int] | UnsetType, Meta(description="With `return_token_ids`: the answer's tokens.")] = UNSET
    prompt_token_ids: Annotated[list[int] | UnsetType, Meta(description="With `return_token_ids`: the prompt's tokens.")] = (
        UNSET
    )
    prompt_logprobs: PromptLogprobsList = UNSET


class Completion(Struct):
    """The answer to a completion request; in a stream, one server-sent event of it."""

    id: Annotated[str, Meta(description="The answer's identifier.")]
    created: Annotated[int, Meta(description="Unix time in seconds.")]
    model: Annotated[str, Meta(description="The name of the model that answered.")]
    choices: Annotated[list[CompletionChoice], Meta(description="The answers, by index; in a stream, one or none.")]
    system_fingerprint: Annotated[str, Meta(description="Names the weights, numerics and processor that answered.")]
    object: Annotated[Literal["text_completion"], Meta(description="Always `text_completion`.")] = "text_completion"
    usage: Annotated[
        Usage | UnsetType | None, Meta(description="Tokens counted; in a stream where `stream_options` asks for it.")
    ] = UNSET


class ModelCard(Struct):
    """A model that is served here."""

    id: Annotated[str, Meta(description="The name to put into a request's `model`.")]
    created: Annotated[int, Meta(description="Unix time in seconds when its engine started.")]
    root: Annotated[str, Meta(description="Where the model was loaded from.")]
    max_model_len: Annotated[int, Meta(description="Most tokens of prompt and answer together.")]
    object: Annotated[Literal["model"], Meta(description="Always `model`.")] = "model"
    owned_by: Annotated[str, Meta(description="Always `headrace`.")] = "headrace"
    parent: Annotated[None, Meta(description="Always null: no adapters are served.")] = None


class ModelList(Struct):
    """The models that are served here."""

    data: Annotated[list[ModelCard], Meta(description="One entry for each name.")]
    object: Annotated[Literal["list"], Meta(description="Always `list`.")] = "list"


class TokenPiece(Struct):
    """A token as llama.cpp writes it."""

    id: Annotated[int, Meta(description="The token's id.")]
    piece: Annotated[str | list[int], Meta(description="Its text, or its bytes where they are not whole characters.")]


class TokenizeResponse(Struct):
    """Token ids of a text."""

    count: Annotated[int, Meta(description="How many tokens.")]
    max_model_len: Annotated[int, Meta(description="Most tokens of prompt and answer together.")]
    tokens: Annotated[
        list[int | TokenPiece], Meta(description="The token ids; with `with_pieces`, objects of `id` and `piece`.")
    ]
    token_strs: Annotated[list[str] | None, Meta(description="With `return_token_strs`: each token's text.")] = None


class DetokenizeResponse(Struct):
    """The text of token ids, under the names that vLLM and llama.cpp give it."""

    prompt: Annotated[str, Meta(description="The text.")]
    content: Annotated[str, Meta(description="The same text.")]


class ErrorBody(Struct):
    """What went wrong."""

    message: Annotated[str, Meta(description="For people: what is wrong, and what would be right.")]
    type: Annotated[
        str, Meta(description="`invalid_request_error` where the request is at fault, `server_error` where the server is.")
    ]
    param: Annotated[str | None, Meta(description="The field at fault, as a path such as `messages[0].content`.")] = None
    code: Annotated[str | None, Meta(description="For programs, for example `context_length_exceeded`.")] = None


class ErrorResponse(Struct):
    """Every failure has this shape."""

    error: Annotated[ErrorBody, Meta(description="What went wrong.")]


class Health(Struct):
    """The engine serves."""

    status: Annotated[Literal["ok"], Meta(description="Always `ok`; an engine that cannot serve answers 503.")] = "ok"


class Version(Struct):
    """What answers."""

    version: Annotated[str, Meta(description="Headrace's version.")]


class Load(Struct):
    """How much is going on."""

    server_load: Annotated[int, Meta(description="Generation requests in progress.")]
