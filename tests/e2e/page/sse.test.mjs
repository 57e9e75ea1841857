// The event-stream parser alone, under node's own test runner; started by ../test_page_modules.py.
import assert from "node:assert/strict";
import { test } from "node:test";

const { SseParser } = await import(`${process.env.HEADRACE_WEB}/sse.js`);

const encode = (text) => new TextEncoder().encode(text);

function parseInPieces(bytes, size) {
  const parser = new SseParser();
  const events = [];
  for (let i = 0; i < bytes.length; i += size) events.push(...parser.push(bytes.subarray(i, i + size)));
  return [...events, ...parser.end()];
}

test("an event is known when its blank line arrives, and not before", () => {
  const parser = new SseParser();
  assert.deepEqual(parser.push(encode("data: one\n")), []);
  assert.deepEqual(parser.push(encode("\ndata: tw")), [{ event: "message", data: "one" }]);
  assert.deepEqual(parser.push(encode("o\n\n")), [{ event: "message", data: "two" }]);
});

test("chunks of any size give the same events, through half characters and half line ends", () => {
  const stream =
    'data: {"text": "naïve 水車 🌊"}\r\n\r\n: keep-alive\n\nevent: error\rdata: a\rdata: b\r\rdata:no space\n\ndata: [DONE]\n\n';
  const expected = [
    { event: "message", data: '{"text": "naïve 水車 🌊"}' },
    { event: "error", data: "a\nb" },
    { event: "message", data: "no space" },
    { event: "message", data: "[DONE]" },
  ];
  const bytes = encode(stream);
  for (let size = 1; size <= bytes.length; size++)
    assert.deepEqual(parseInPieces(bytes, size), expected, `pieces of ${size} bytes`);
});

test("every single split of a stream gives the same events", () => {
  const bytes = encode("data: 🌊\r\n\r\ndata: é\n\n");
  const expected = [
    { event: "message", data: "🌊" },
    { event: "message", data: "é" },
  ];
  for (let at = 0; at <= bytes.length; at++) {
    const parser = new SseParser();
    const events = [...parser.push(bytes.subarray(0, at)), ...parser.push(bytes.subarray(at)), ...parser.end()];
    assert.deepEqual(events, expected, `split at ${at}`);
  }
});

test("comments, unknown fields and events without data say nothing", () => {
  assert.deepEqual(parseInPieces(encode(": ping\n\nid: 3\nretry: 10\n\nevent: lonely\n\nfoo\n\n"), 5), []);
});

test("the name of an event does not stick to the next one", () => {
  const events = parseInPieces(encode("event: error\n\ndata: x\n\n"), 100);
  assert.deepEqual(events, [{ event: "message", data: "x" }]);
});

test("a byte order mark is not part of the first field", () => {
  assert.deepEqual(parseInPieces(encode("\ufeffdata: x\n\n"), 1), [{ event: "message", data: "x" }]);
});

test("a stream that ends without its last blank line still gives its last event", () => {
  assert.deepEqual(parseInPieces(encode("data: last"), 3), [{ event: "message", data: "last" }]);
  assert.deepEqual(parseInPieces(encode("data: last\r"), 3), [{ event: "message", data: "last" }]);
});
