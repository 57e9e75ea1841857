/**
 * The server's HTTP API as functions. Knows URLs, JSON and what can go wrong on the way; knows no DOM. Every failure is an
 * ApiError in plain words, except an abort, which stays the AbortError that the caller caused.
 */

import { SseParser } from "./sse.js";
import { forThisTab } from "./storage.js";

const API_KEY = "headrace.api_key";

export const baseUrl = () => `${location.origin}/v1`;

/** The key that this server was started with, if it was; "" is none. */
export const apiKey = () => forThisTab.recall(API_KEY) ?? "";
export const setApiKey = (key) => forThisTab.remember(API_KEY, key || null);

/** `title` says what happened, `advice` what to do about it, `param` the field at fault where the server named one. */
export class ApiError extends Error {
  constructor(title, { advice = "", param = null, code = null } = {}) {
    super(title);
    this.title = title;
    this.advice = advice;
    this.param = param;
    this.code = code; // "invalid_api_key" and the like
  }
}

/** The models served here: [{id, root, maxModelLen}], the first being the one to use unless told otherwise. */
export async function listModels() {
  const response = await reach("/v1/models");
  if (!response.ok) throw await refusal(response);
  const { data } = await response.json();
  return data.map((model) => ({
    id: model.id,
    root: model.root ?? model.id,
    maxModelLen: model.max_model_len ?? null,
  }));
}

/** null if the engine serves, otherwise a sentence about why it does not. */
export async function findTrouble() {
  let response;
  try {
    response = await fetch("/health", { cache: "no-store", signal: AbortSignal.timeout(10_000) });
  } catch {
    return "The server cannot be reached.";
  }
  if (response.ok) return null;
  const said = await messageIn(response);
  return said ? `The engine is not running: ${sentence(said.message)}` : "The engine is not running.";
}

/**
 * POST /v1/chat/completions, streamed: yields the parsed chunks. Returning early or aborting the signal closes the
 * connection, which frees the request on the server.
 */
export async function* streamChat(body, signal) {
  const response = await reach("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  for await (const data of eventsOf(response, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw explain(null, chunk.error);
    yield chunk;
  }
  throw new ApiError("The connection ended before the answer did.", { advice: "What arrived is kept. Try again." });
}

async function* eventsOf(response, signal) {
  const reader = response.body.getReader();
  const parser = new SseParser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      for (const event of done ? parser.end() : parser.push(value)) yield event.data;
      if (done) return;
    }
  } catch (error) {
    if (signal?.aborted || !(error instanceof TypeError)) throw error;
    throw new ApiError("The connection broke while the answer was coming.", {
      advice: "What arrived is kept. Try again.",
    });
  } finally {
    reader.cancel().catch(() => {}); // a reader that failed cannot be cancelled, and need not be
  }
}

async function reach(path, options = {}) {
  const access = apiKey() ? { authorization: `Bearer ${apiKey()}` } : {};
  try {
    return await fetch(path, { ...options, headers: { ...options.headers, ...access } });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError("The server cannot be reached.", { advice: "Is it still running? Then try again." });
  }
}

async function refusal(response) {
  return explain(response.status, await messageIn(response));
}

/** The `error` object of an answer, as OpenAI shapes it; null if there is none. */
async function messageIn(response) {
  try {
    const { error } = await response.json();
    return typeof error === "string" ? { message: error } : (error ?? null);
  } catch {
    return null;
  }
}

/** An ApiError from a status (null inside a stream) and an OpenAI-shaped error (null where the server sent none). */
export function explain(status, error) {
  const param = error?.param ?? null;
  const message = capitalised(sentence(error?.message ?? `The server answered with status ${status}.`), param);
  const code = error?.code ?? null;
  const fail = (advice) => new ApiError(message, { advice, param, code });
  if (code === "context_length_exceeded") {
    return fail("The conversation is longer than the model can read. Start a new one, or ask for fewer tokens.");
  }
  if (status === 401 || status === 403)
    return fail("This server was started with an API key; enter it in the settings.");
  if (status === 413) return fail("The conversation is too large for the server. Start a new one.");
  if (status !== null && status >= 400 && status < 429)
    return fail(param ? `The server did not accept the value of “${param}”.` : "");
  if (status === 429 || code === "overloaded") return fail("Nothing is lost. Try again in a moment.");
  if (status === 503 || code === "engine_unavailable")
    return fail("The server cannot answer now. Try again in a moment.");
  return fail("Something went wrong on the server. Trying again may help; its log says more.");
}

function sentence(text) {
  const trimmed = String(text).trim();
  return /[.!?]$/.test(trimmed) ? trimmed : `${trimmed}.`;
}

/** With a capital, unless it begins with the name of a field. */
function capitalised(text, param) {
  const beginsWithName = (param && text.startsWith(param)) || !/^[a-z]+ /.test(text);
  return beginsWithName ? text : text[0].toUpperCase() + text.slice(1);
}
