/**
 * Markdown on the page: the tree of markdown.js as DOM nodes, and a view that grows with a stream. Knows no network and no
 * chat. Every leaf is a text node and every href has passed `safeHref`.
 */

import { el, icon, reconcile } from "./dom.js";
import { parseBlocks, parseInline } from "./markdown.js";

/** One answer. While it streams only its last block is parsed and drawn again; what came before stays as it is. */
export class MarkdownView {
  #container;
  #source = "";
  #tail = ""; // the source from the last block on
  #numSettled = 0; // children of the container that no later text can change
  #held = ""; // a "\r" whose "\n" may be in the next piece

  constructor(container) {
    this.#container = container;
  }

  /** Everything appended so far, as the model wrote it. */
  get source() {
    return this.#source;
  }

  append(piece) {
    this.#source += piece;
    const text = this.#held + piece;
    this.#held = text.endsWith("\r") ? "\r" : "";
    const added = text.slice(0, text.length - this.#held.length).replace(/\r\n?/g, "\n");
    this.#tail += added;
    reconcile(this.#container, parseBlocks(this.#tail).map(renderBlock), this.#numSettled);
    if (added.includes("\n")) this.#settle();
  }

  /** The line that is still coming may yet join what stands above it, so only whole lines decide what is settled. */
  #settle() {
    const blocks = parseBlocks(this.#tail.slice(0, this.#tail.lastIndexOf("\n") + 1));
    if (blocks.length < 2) return;
    this.#numSettled += blocks.length - 1;
    this.#tail = this.#tail.slice(blocks[blocks.length - 1].start);
  }
}

/** Exactly one element per block: MarkdownView counts on it. */
function renderBlock(block) {
  switch (block.type) {
    case "paragraph":
      return el("p", {}, ...renderInline(block.text));
    case "heading": // the page has its own h1 and h2
      return el(`h${Math.min(block.level + 2, 6)}`, {}, ...renderInline(block.text));
    case "rule":
      return el("hr");
    case "code":
      return renderCode(block.text, block.language);
    case "quote":
      return el("blockquote", {}, ...block.blocks.map(renderBlock));
    case "list":
      return renderList(block);
    case "table":
      return renderTable(block);
  }
  throw new Error(`no such block: ${block.type}`);
}

/** A block of code with its language and a copy button, which the page handles by its `data-action`. */
export function renderCode(text, language) {
  const label = language || "code";
  return el(
    "figure",
    { class: "code" },
    el(
      "figcaption",
      {},
      el("span", {}, label),
      el("button", { type: "button", class: "button-quiet", "data-action": "copy-code" }, icon("copy"), "Copy"),
    ),
    el("pre", { tabindex: "0", "aria-label": label }, el("code", {}, text)),
  );
}

function renderList(list) {
  const items = list.items.map((blocks) =>
    el(
      "li",
      {},
      ...blocks.flatMap((block) =>
        block.type === "paragraph" && !list.loose ? renderInline(block.text) : [renderBlock(block)],
      ),
    ),
  );
  const first = list.ordered && list.first !== 1 ? String(list.first) : null;
  return el(list.ordered ? "ol" : "ul", { start: first }, ...items);
}

function renderTable(table) {
  const row = (tag, cells) =>
    el(
      "tr",
      {},
      ...cells.map((cell, i) =>
        el(tag, { class: table.align[i] ? `align-${table.align[i]}` : null }, ...renderInline(cell)),
      ),
    );
  return el(
    "div",
    { class: "table-scroll", tabindex: "0", role: "group", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, row("th", table.head)),
      el("tbody", {}, ...table.rows.map((cells) => row("td", cells))),
    ),
  );
}

function renderInline(text) {
  return parseInline(text).map(renderNode);
}

function renderNode(node) {
  switch (node.type) {
    case "text":
      return document.createTextNode(node.text);
    case "code":
      return el("code", {}, node.text);
    case "break":
      return el("br");
    case "link":
      return el(
        "a",
        { href: node.href, rel: "noopener noreferrer nofollow", target: "_blank" },
        ...node.children.map(renderNode),
      );
    case "em":
    case "strong":
    case "del":
      return el(node.type, {}, ...node.children.map(renderNode));
  }
  throw new Error(`no such inline: ${node.type}`);
}
