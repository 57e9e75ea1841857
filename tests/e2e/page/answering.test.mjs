// One answer from request to figures, over a pretended fetch; under node's own test runner, started by ../test_page_modules.py.
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";

globalThis.window = {}; // no storage: nothing is remembered
const { figuresOf, runAnswer } = await import(`${process.env.HEADRACE_WEB}/answering.js`);

const trueFetch = globalThis.fetch;
afterEach(() => {
  globalThis.fetch = trueFetch;
});

const delta = (content) => ({ choices: [{ index: 0, delta: { content }, finish_reason: null }], usage: null });
const finish = (reason) => ({ choices: [{ index: 0, delta: {}, finish_reason: reason }], usage: null });
const usage = {
  choices: [],
  usage: { prompt_tokens: 20, completion_tokens: 5, total_tokens: 25, prompt_tokens_details: { cached_tokens: 16 } },
};
const event = (value) => `data: ${typeof value === "string" ? value : JSON.stringify(value)}\n\n`;

/** Answers every fetch with these events; `sent` collects what was asked. */
function pretendServer(events, { status = 200, sent = [], failWith = null } = {}) {
  globalThis.fetch = async (path, options) => {
    sent.push({ path, ...options });
    const body = new ReadableStream({
      start(controller) {
        for (const one of events)
          controller.enqueue(
            new TextEncoder().encode(typeof one === "string" && !one.startsWith("[") ? one : event(one)),
          );
        if (failWith) controller.error(failWith);
        else controller.close();
      },
    });
    return new Response(body, { status });
  };
  return sent;
}

async function run(signal = new AbortController().signal) {
  let ms = 0;
  let text = "";
  const outcome = await runAnswer(
    { model: "m", messages: [] },
    signal,
    (piece) => (text += piece),
    () => (ms += 100),
  );
  return { ...outcome, text };
}

test("an answer is put together, timed and counted", async () => {
  const sent = pretendServer([delta("wa"), delta("ter"), finish("stop"), usage, "[DONE]"]);
  const outcome = await run();
  assert.equal(outcome.text, "water");
  assert.equal(outcome.status, "done");
  assert.equal(outcome.finishReason, "stop");
  assert.deepEqual(outcome.figures, {
    ttftMs: 100,
    tokensPerS: 40, // four tokens after the first in the 100 ms between the first text and the last
    numTokens: 5,
    isEstimate: false,
    numPromptTokens: 20,
    numCachedTokens: 16,
    numContextTokens: 25,
  });
  assert.deepEqual(JSON.parse(sent[0].body), {
    model: "m",
    messages: [],
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("the model's thinking is no text, and its tokens count", async () => {
  const thought = { choices: [{ index: 0, delta: { reasoning: "Hm." }, finish_reason: null }], usage: null };
  pretendServer([thought, thought, delta("water"), finish("stop"), "[DONE]"]);
  let ms = 0;
  let text = "";
  let numHeard = 0;
  const outcome = await runAnswer(
    { model: "m", messages: [] },
    new AbortController().signal,
    (piece) => (text += piece),
    () => (ms += 100),
    () => numHeard++,
  );
  assert.equal(text, "water");
  assert.equal(numHeard, 2);
  assert.equal(outcome.figures.ttftMs, 100);
  assert.equal(outcome.figures.numTokens, 3);
});

test("an answer that comes in one burst has no rate", () => {
  assert.equal(figuresOf({ sentAt: 0, firstAt: 50, lastAt: 50.2, numPieces: 5, usage: null }).tokensPerS, null);
});

test("one token has no rate, and no token has no time", () => {
  const one = figuresOf({ sentAt: 0, firstAt: 50, lastAt: 50, numPieces: 1, usage: null });
  assert.equal(one.tokensPerS, null);
  assert.equal(one.isEstimate, true);
  assert.equal(figuresOf({ sentAt: 0, firstAt: null, lastAt: null, numPieces: 0, usage: null }).ttftMs, null);
});

test("an error inside the stream keeps the text and says what happened", async () => {
  pretendServer([delta("wa"), { error: { message: "the engine process ended", code: "engine_unavailable" } }]);
  const outcome = await run();
  assert.equal(outcome.status, "failed");
  assert.equal(outcome.text, "wa");
  assert.equal(outcome.error.title, "The engine process ended.");
  assert.match(outcome.error.advice, /Try again/);
});

test("a refusal names the field", async () => {
  const message = "top_p must be in (0, 1], not 7";
  pretendServer([JSON.stringify({ error: { message, type: "invalid_request_error", param: "top_p", code: null } })], {
    status: 400,
  });
  const { status, error } = await run();
  assert.equal(status, "failed");
  assert.equal(error.title, "top_p must be in (0, 1], not 7.");
  assert.equal(error.param, "top_p");
});

test("an answer that is no JSON still gives a sentence", async () => {
  pretendServer(["<html>Bad gateway</html>"], { status: 502 });
  assert.equal((await run()).error.title, "The server answered with status 502.");
});

test("a stream that ends early is not taken for a complete answer", async () => {
  pretendServer([delta("wa")]);
  const outcome = await run();
  assert.equal(outcome.status, "failed");
  assert.match(outcome.error.title, /ended before/);
});

test("a connection that breaks is told from a server that cannot be reached", async () => {
  pretendServer([], { failWith: new TypeError("network error") });
  assert.match((await run()).error.title, /broke/);
  globalThis.fetch = async () => {
    throw new TypeError("Failed to fetch");
  };
  assert.match((await run()).error.title, /cannot be reached/);
});

test("an abort is a stop, not a failure", async () => {
  const controller = new AbortController();
  globalThis.fetch = async (_path, { signal }) => {
    const body = new ReadableStream({
      start(stream) {
        stream.enqueue(new TextEncoder().encode(event(delta("wa"))));
        signal.addEventListener("abort", () => stream.error(signal.reason));
      },
    });
    setTimeout(() => controller.abort(), 5);
    return new Response(body);
  };
  const outcome = await run(controller.signal);
  assert.equal(outcome.status, "stopped");
  assert.equal(outcome.text, "wa");
  assert.equal(outcome.error, null);
});

test("a chunk that is no JSON fails in words", async () => {
  pretendServer(["data: {oops\n\n"]);
  const outcome = await run();
  assert.equal(outcome.status, "failed");
  assert.match(outcome.error.title, /did not understand/);
});
