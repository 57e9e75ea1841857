/**
 * One answer from question to figures: sends, times, counts. Knows the shape of chat chunks; the DOM and the conversation's
 * history belong to others.
 *
 *   Outcome: {status: "done"|"stopped"|"failed", finishReason, error, figures}
 *   Figures: {ttftMs, tokensPerS, numTokens, isEstimate, numPromptTokens, numCachedTokens, numContextTokens}; unknown is null
 */

import { ApiError, streamChat } from "./api.js";

const MIN_MEASURED_MS = 10; // an answer that came in one burst has no rate that means anything

/** Runs one request. `onText(piece)` gets the answer as it comes, `onReasoning()` hears that the model thinks; never throws. */
export async function runAnswer(body, signal, onText, now = () => performance.now(), onReasoning = () => {}) {
  const count = { sentAt: now(), firstAt: null, lastAt: null, numPieces: 0, usage: null };
  const outcome = { status: "done", finishReason: null, error: null };
  try {
    for await (const chunk of streamChat(body, signal)) {
      if (chunk.usage) count.usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (choice?.finish_reason) outcome.finishReason = choice.finish_reason;
      const { content, reasoning } = choice?.delta ?? {};
      if (content || reasoning) {
        count.lastAt = now();
        count.firstAt ??= count.lastAt;
        count.numPieces++;
      }
      if (reasoning) onReasoning();
      if (content) onText(content);
    }
  } catch (error) {
    if (signal.aborted) {
      outcome.status = "stopped";
    } else {
      outcome.status = "failed";
      outcome.error =
        error instanceof ApiError
          ? error
          : new ApiError("This page did not understand the answer.", { advice: String(error) });
    }
  }
  return { ...outcome, figures: figuresOf(count) };
}

/**
 * TTFT is from the click to the first text. The rate is of the tokens after the first over the time since it, which is the
 * reciprocal of the mean ITL as this page saw it. Without the server's `usage` (the answer was stopped) pieces are counted
 * instead, and the number is marked as an estimate: a piece may hold more than one token.
 */
export function figuresOf({ sentAt, firstAt, lastAt, numPieces, usage }) {
  const numTokens = usage?.completion_tokens ?? numPieces;
  const decodeMs = firstAt === null ? 0 : lastAt - firstAt;
  return {
    ttftMs: firstAt === null ? null : firstAt - sentAt,
    tokensPerS: numTokens > 1 && decodeMs >= MIN_MEASURED_MS ? ((numTokens - 1) / decodeMs) * 1000 : null,
    numTokens,
    isEstimate: !usage,
    numPromptTokens: usage?.prompt_tokens ?? null,
    numCachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? null,
    numContextTokens: usage ? usage.prompt_tokens + usage.completion_tokens : null,
  };
}
