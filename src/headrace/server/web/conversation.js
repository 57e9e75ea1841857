/**
 * The conversation as data: turns, each a question and what became of it, and the messages that the API wants of them. Knows
 * no DOM and no network; remembered for this tab, so that a reload loses nothing.
 *
 *   Turn: {question, text, outcome}; text is the answer so far; outcome is null while it is coming, then what answering.js
 *   made of it, with the model's `maxModelLen` at the time
 */

import { forThisTab } from "./storage.js";

const KEY = "headrace.conversation";

export class Conversation {
  turns = [];

  /** Takes up what this tab remembers. An answer that a reload cut short counts as stopped. */
  restore() {
    const remembered = forThisTab.recall(KEY);
    if (!Array.isArray(remembered)) return;
    this.turns = remembered.filter((turn) => typeof turn?.question === "string" && typeof turn.text === "string");
    for (const turn of this.turns)
      turn.outcome ??= { status: "stopped", finishReason: null, error: null, figures: null, maxModelLen: null };
  }

  save() {
    forThisTab.remember(KEY, this.turns.length ? this.turns : null);
  }

  get last() {
    return this.turns[this.turns.length - 1];
  }

  /** A new turn at the end; the caller fills in its text and outcome. */
  ask(question) {
    const turn = { question, text: "", outcome: null };
    this.turns.push(turn);
    return turn;
  }

  dropLast() {
    this.turns.pop();
  }

  clear() {
    this.turns = [];
  }

  /** What to send. Earlier questions that got no answer are left out: two of the same role in a row confuse templates. */
  messages(systemPrompt) {
    const messages = systemPrompt ? [{ role: "system", content: systemPrompt }] : [];
    for (const turn of this.turns) {
      if (turn !== this.last && !turn.text) continue;
      messages.push({ role: "user", content: turn.question });
      if (turn.text) messages.push({ role: "assistant", content: turn.text });
    }
    return messages;
  }
}
