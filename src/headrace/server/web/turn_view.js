/**
 * One turn on the page: the question, the answer as it comes, what went wrong, and the figures below. Knows the DOM of a turn;
 * sends nothing and decides nothing. Buttons carry `data-action`, which app.js listens for on the whole conversation.
 */

import { el, icon } from "./dom.js";
import { MarkdownView } from "./markdown_view.js";
import { isSetting } from "./settings.js";

const WAITING_TICK_MS = 100;
const WAITING_SHOWN_AFTER_MS = 400; // a quick answer needs no clock

export class TurnView {
  #turn;
  #prose = el("div", { class: "prose" });
  #status = el("div", { class: "waiting", hidden: true });
  #notices = el("div", { class: "notices" });
  #below = el("div", { class: "below" });
  #answer;
  #question;
  #markdown = new MarkdownView(this.#prose);
  #pending = "";
  #isDrawingDue = false;
  #drawMs = 0; // what the last drawing took
  #ticking = 0;
  #waitingFor = "Waiting for the first token";

  constructor(turn) {
    this.#turn = turn;
    this.#question = el("div", { class: "question" });
    this.#answer = el(
      "div",
      { class: "answer" },
      el("h2", { class: "visually-hidden" }, "Answer"),
      this.#prose,
      this.#status,
      this.#notices,
      this.#below,
    );
    this.node = el("article", { class: "turn" }, this.#question, this.#answer);
    this.#showQuestion();
    if (turn.text) this.#markdown.append(turn.text);
  }

  /** The request is on its way. */
  start() {
    const sentAt = performance.now();
    this.#answer.setAttribute("aria-busy", "true");
    this.node.classList.add("is-running");
    this.#status.hidden = false;
    const clock = el("span");
    this.#status.replaceChildren(el("span", { class: "dots" }, el("i"), el("i"), el("i")), clock);
    const tick = () => {
      const ms = performance.now() - sentAt;
      if (ms >= WAITING_SHOWN_AFTER_MS) clock.textContent = `${this.#waitingFor} · ${(ms / 1000).toFixed(1)} s`;
    };
    this.#ticking = setInterval(tick, WAITING_TICK_MS);
  }

  /** Tokens come, but none yet that the reader is to see. */
  think() {
    this.#waitingFor = "Thinking";
  }

  /**
   * More of the answer. However fast pieces come, the page is drawn at most once a frame, and where drawing is slow (one
   * endless paragraph) at most a quarter of the time goes into it. `onDrawn` is called after each.
   */
  append(piece, onDrawn) {
    this.#pending += piece;
    if (this.#isDrawingDue) return;
    this.#isDrawingDue = true;
    const draw = () => {
      if (!this.#isDrawingDue) return; // finished or removed meanwhile
      this.#draw();
      onDrawn();
    };
    setTimeout(() => requestAnimationFrame(draw), 3 * this.#drawMs);
  }

  /** The outcome is known. */
  finish() {
    this.#draw(); // in a hidden tab frames do not come
    this.#endWaiting();
    this.#answer.removeAttribute("aria-busy");
    this.node.classList.remove("is-running");
    const notice = noticeFor(this.#turn);
    this.#notices.replaceChildren(...(notice ? [notice] : []));
    this.#below.replaceChildren(
      ...(this.#turn.text || this.#turn.outcome.figures?.ttftMs ? [figuresList(this.#turn.outcome), actions()] : []),
    );
  }

  /** The turn is no more; its answer may still be on its way, and is ignored. */
  remove() {
    this.#isDrawingDue = false;
    clearInterval(this.#ticking);
    this.node.remove();
  }

  /** Puts an editor in the question's place. `onSave(text)` gets a changed question. */
  edit(onSave) {
    const area = el("textarea", {
      "aria-label": "Your message",
      rows: String(Math.min(10, this.#turn.question.split("\n").length + 1)),
    });
    const close = () => {
      this.#showQuestion();
      this.#question.querySelector("[data-action=edit]")?.focus();
    };
    const save = () => {
      const text = area.value.trim();
      if (text) onSave(text);
    };
    area.value = this.#turn.question;
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        save();
      }
    });
    this.#question.replaceChildren(
      el(
        "div",
        { class: "editor" },
        area,
        el(
          "div",
          { class: "editor-actions" },
          el("button", { type: "button", class: "button", onclick: close }, "Cancel"),
          el("button", { type: "button", class: "button button-primary", onclick: save }, "Ask again"),
        ),
      ),
    );
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }

  #showQuestion() {
    const button = iconButton("edit", "Edit and ask again", { class: "last-only", "data-action": "edit" });
    this.#question.replaceChildren(
      el("h2", { class: "visually-hidden" }, "You"),
      button,
      el("div", { class: "question-text" }, this.#turn.question),
    );
  }

  #draw() {
    this.#isDrawingDue = false;
    if (!this.#pending) return;
    const begin = performance.now();
    this.#endWaiting();
    this.#markdown.append(this.#pending);
    this.#pending = "";
    this.#drawMs = performance.now() - begin;
  }

  #endWaiting() {
    clearInterval(this.#ticking);
    this.#status.hidden = true;
  }
}

// ------------------------------------------------------------------------------------------------- below the answer

function noticeFor(turn) {
  const { status, error, finishReason, figures, maxModelLen } = turn.outcome;
  if (status === "failed") return errorCard(error);
  if (finishReason === "length") return lengthNotice(figures, maxModelLen);
  if (status === "stopped" && !turn.text) return el("p", { class: "notice" }, "Stopped before the first token.");
  if (status === "done" && !turn.text)
    return el("p", { class: "notice" }, "The model ended its answer without saying anything.");
  return null;
}

function errorCard(error) {
  const field = error.code === "invalid_api_key" ? "api-key" : isSetting(error.param) ? `setting-${error.param}` : null;
  const buttons = el(
    "div",
    { class: "error-actions last-only" },
    el("button", { type: "button", class: "button", "data-action": "again" }, icon("again"), "Try again"),
  );
  if (field)
    buttons.append(
      el(
        "button",
        { type: "button", class: "button", "data-action": "settings", "data-field": field },
        icon("settings"),
        "Settings",
      ),
    );
  return el(
    "div",
    { class: "error", role: "alert" },
    icon("warning"),
    el(
      "div",
      {},
      el("p", { class: "error-title" }, error.title),
      error.advice ? el("p", {}, error.advice) : null,
      buttons,
    ),
  );
}

function lengthNotice(figures, maxModelLen) {
  const filled = maxModelLen !== null && figures.numContextTokens !== null && figures.numContextTokens >= maxModelLen;
  if (filled) {
    return el(
      "p",
      { class: "notice" },
      `Cut short: question, history and answer together fill the model's context of ${whole(maxModelLen)} tokens. Start a new conversation to go on.`,
    );
  }
  const settings = el(
    "button",
    { type: "button", class: "link", "data-action": "settings", "data-field": "setting-max_tokens" },
    "the settings",
  );
  return el(
    "p",
    { class: "notice" },
    `Cut short at the limit of ${whole(figures.numTokens)} tokens. Raise “Max tokens” in `,
    settings,
    " for longer answers.",
  );
}

const REASONS = {
  stop: ["finished: stop", "The model ended its answer, or a stop word appeared"],
  length: ["finished: length", "The answer reached the limit on tokens"],
};

function figuresList({ status, finishReason, figures }) {
  const items = [];
  const add = (number, words, title) =>
    items.push(
      el("li", { title }, number === null ? null : el("b", {}, number), number === null ? words : ` ${words}`),
    );
  if (figures) {
    const count = figures.isEstimate ? `≈ ${whole(figures.numTokens)}` : whole(figures.numTokens);
    const noun = figures.numTokens === 1 ? "token" : "tokens";
    add(
      count,
      noun,
      figures.isEstimate
        ? "Counted in pieces as they came, since the answer did not end by itself"
        : "Tokens in this answer",
    );
    if (figures.tokensPerS !== null)
      add(
        figures.tokensPerS.toFixed(figures.tokensPerS < 100 ? 1 : 0),
        "tokens/s",
        "Tokens after the first, over the time since the first",
      );
    if (figures.ttftMs !== null)
      add(duration(figures.ttftMs), "to first token", "TTFT: from sending to the first text, as this page saw it");
    if (figures.numCachedTokens !== null)
      add(
        `${whole(figures.numCachedTokens)} of ${whole(figures.numPromptTokens)}`,
        "prompt tokens cached",
        "Prompt tokens whose KV was found in the prefix cache and not computed again",
      );
  }
  const [words, title] =
    status === "stopped"
      ? ["stopped", "You stopped this answer"]
      : status === "failed"
        ? ["broken off", "The answer did not complete"]
        : (REASONS[finishReason] ?? [
            `finished: ${finishReason ?? "unknown"}`,
            "What the server gave as finish_reason",
          ]);
  add(null, words, title);
  return el("ul", { class: "figures", "aria-label": "Figures of this answer" }, ...items);
}

function actions() {
  return el(
    "div",
    { class: "actions" },
    iconButton("copy", "Copy the answer", { "data-action": "copy-answer" }),
    iconButton("again", "Regenerate the answer", { class: "last-only", "data-action": "again" }),
  );
}

function iconButton(name, words, { class: more = "", ...attributes }) {
  return el(
    "button",
    { type: "button", class: `button-quiet button-icon ${more}`, title: words, ...attributes },
    icon(name),
    el("span", { class: "visually-hidden" }, words),
  );
}

export function whole(number) {
  return new Intl.NumberFormat("en").format(number);
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
}
