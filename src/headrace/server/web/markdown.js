/**
 * Markdown to a tree: text in, plain objects out. Knows the dialect that chat models write (CommonMark's core, tables,
 * strikethrough) and which links are safe; it does not know the DOM. HTML is not part of the dialect: tags are text.
 *
 *   Block:  {type: "paragraph", text} {type: "heading", level, text} {type: "rule"} {type: "code", language, text}
 *           {type: "quote", blocks} {type: "list", ordered, first, loose, items: Block[][]}
 *           {type: "table", align: (""|"left"|"center"|"right")[], head: string[], rows: string[][]}
 *   Inline: {type: "text", text} {type: "code", text} {type: "break"} {type: "em"|"strong"|"del", children}
 *           {type: "link", href, children}
 *
 * `text` of paragraphs, headings and cells is still marked up: `parseInline` reads it. Top-level blocks carry `start`, the
 * offset where their source begins. A model may repeat any character thousands of times, and a page parses while it
 * streams, so every pass is linear in the text and nesting is bounded.
 */

const MAX_BLOCK_DEPTH = 12; // quotes and lists inside one another; deeper is shown as text
const MAX_INLINE_DEPTH = 16;
const SAFE_PROTOCOLS = new Set(["http:", "https:", "mailto:"]);

/** Blocks of a whole text. Line ends are "\n". */
export function parseBlocks(text) {
  const lines = text.split("\n");
  const offsets = [];
  let offset = 0;
  for (const line of lines) {
    offsets.push(offset);
    offset += line.length + 1;
  }
  const blocks = parseLines(lines, 0);
  for (const block of blocks) {
    block.start = offsets[block.line];
    delete block.line;
  }
  return blocks;
}

/** `href` as a browser reads it if the scheme is one of http, https, mailto; otherwise null. */
export function safeHref(href) {
  let url;
  try {
    url = new URL(href);
  } catch {
    return null; // relative or malformed: a model's relative link would point into this server
  }
  return SAFE_PROTOCOLS.has(url.protocol) ? url.href : null;
}

// ---------------------------------------------------------------------------------------------------------- blocks

function parseLines(lines, depth) {
  if (depth > MAX_BLOCK_DEPTH) return [{ type: "paragraph", text: lines.join("\n").trim(), line: 0 }];
  const blocks = [];
  let i = 0;
  while (i < lines.length) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    const [block, next] = parseBlock(lines, i, depth);
    block.line = i;
    blocks.push(block);
    i = next;
  }
  return blocks;
}

/** The block that begins at line i, and the line after it. */
function parseBlock(lines, i, depth) {
  const line = lines[i];
  const fence = matchFence(line);
  if (fence) return parseFence(lines, i, fence);
  const heading = matchHeading(line);
  if (heading) return [heading, i + 1];
  if (isRule(line)) return [{ type: "rule" }, i + 1];
  if (isQuote(line)) return parseQuote(lines, i, depth);
  if (matchMarker(line)) return parseList(lines, i, depth);
  if (indentOf(line) >= 4) return parseIndentedCode(lines, i);
  if (startsTable(lines, i)) return parseTable(lines, i);
  return parseParagraph(lines, i);
}

function parseFence(lines, i, fence) {
  const body = [];
  for (i++; i < lines.length; i++) {
    if (closesFence(lines[i], fence)) return [codeBlock(fence.language, body), i + 1];
    body.push(dedent(lines[i], fence.indent));
  }
  return [codeBlock(fence.language, body), i]; // never closed: still streaming, or the model forgot
}

function parseIndentedCode(lines, i) {
  const body = [];
  while (i < lines.length && (isBlank(lines[i]) || indentOf(lines[i]) >= 4)) body.push(dedent(lines[i++], 4));
  while (isBlank(body[body.length - 1])) body.pop();
  return [codeBlock("", body), i];
}

function codeBlock(language, body) {
  return { type: "code", language, text: body.join("\n") };
}

function parseQuote(lines, i, depth) {
  const inner = [];
  let fence = null;
  for (; i < lines.length; i++) {
    if (isQuote(lines[i])) inner.push(lines[i].replace(/^ {0,3}> ?/, ""));
    else if (!fence && isLazyContinuation(lines, i, inner)) inner.push(lines[i].trim());
    else break;
    fence = fenceAfter(fence, inner[inner.length - 1]);
  }
  return [{ type: "quote", blocks: parseLines(inner, depth + 1) }, i];
}

/** A line without the container's own prefix goes on with its paragraph, unless it opens something itself. */
function isLazyContinuation(lines, i, inner) {
  const previous = inner[inner.length - 1];
  const isParagraphOpen = !isBlank(previous) && !matchHeading(previous) && !isRule(previous) && !matchFence(previous);
  return isParagraphOpen && !isBlank(lines[i]) && !opensBlock(lines, i) && !matchMarker(lines[i]);
}

function parseList(lines, i, depth) {
  const first = matchMarker(lines[i]);
  const list = { type: "list", ordered: first.ordered, first: first.number, loose: false, items: [] };
  while (i < lines.length) {
    const marker = matchMarker(lines[i]);
    if (!marker || marker.kind !== first.kind || isRule(lines[i])) break;
    const [content, next, hasGap] = takeItem(lines, i, marker);
    list.items.push(parseLines(content, depth + 1));
    if (hasGap) list.loose = true;
    i = next;
    const following = skipBlank(lines, i);
    const sibling = following > i && following < lines.length && matchMarker(lines[following]);
    if (sibling && sibling.kind === first.kind && !isRule(lines[following])) {
      list.loose = true;
      i = following;
    }
  }
  return [list, i];
}

/**
 * The lines of one item without its indentation, the line after it, and whether a blank line divides it. Two columns
 * more than the marker are enough to belong to it: models indent nested lists by two, three or four, whatever the width
 * of the marker. An open fence holds its lines however they are indented, for models forget that too.
 */
function takeItem(lines, i, marker) {
  const inside = marker.indent + 2;
  const content = [marker.rest];
  let fence = fenceAfter(null, marker.rest);
  let hasGap = false;
  for (i++; i < lines.length; i++) {
    const line = lines[i];
    if (fence) {
      content.push(dedent(line, marker.width));
    } else if (isBlank(line)) {
      const following = skipBlank(lines, i);
      if (following === lines.length || indentOf(lines[following]) < inside) break;
      content.push("");
      hasGap = true;
      i = following - 1;
    } else if (indentOf(line) >= inside) {
      content.push(dedent(line, marker.width));
    } else if (isLazyContinuation(lines, i, content)) {
      content.push(line.trim());
    } else {
      break;
    }
    fence = fenceAfter(fence, content[content.length - 1]);
  }
  return [content, i, hasGap];
}

function startsTable(lines, i) {
  if (i + 1 >= lines.length || !lines[i].includes("|")) return false;
  const align = matchDelimiterRow(lines[i + 1]);
  return align !== null && align.length === splitRow(lines[i]).length;
}

function parseTable(lines, i) {
  const align = matchDelimiterRow(lines[i + 1]);
  const head = splitRow(lines[i]);
  const rows = [];
  for (i += 2; i < lines.length && !isBlank(lines[i]) && !opensBlock(lines, i) && !matchMarker(lines[i]); i++) {
    const cells = splitRow(lines[i]).slice(0, align.length);
    while (cells.length < align.length) cells.push("");
    rows.push(cells);
  }
  return [{ type: "table", align, head, rows }, i];
}

function parseParagraph(lines, i) {
  const text = [lines[i++].trimStart()]; // spaces at the end may be a hard break
  while (i < lines.length && !isBlank(lines[i])) {
    const underline = /^ {0,3}(=+|-+)[ \t]*$/.exec(lines[i]);
    if (underline)
      return [{ type: "heading", level: underline[1][0] === "=" ? 1 : 2, text: text.join("\n").trimEnd() }, i + 1];
    if (opensBlock(lines, i) || interruptsParagraph(matchMarker(lines[i])) || startsTable(lines, i)) break;
    text.push(lines[i++].trimStart());
  }
  return [{ type: "paragraph", text: text.join("\n").trimEnd() }, i];
}

function opensBlock(lines, i) {
  const line = lines[i];
  return Boolean(matchFence(line)) || Boolean(matchHeading(line)) || isRule(line) || isQuote(line);
}

/** A number at the start of a line is more often a number than a list, unless it is 1. */
function interruptsParagraph(marker) {
  return marker !== null && marker.rest !== "" && (!marker.ordered || marker.number === 1);
}

// ----------------------------------------------------------------------------------------------------- single lines

function isBlank(line) {
  return line.trim() === "";
}

function skipBlank(lines, i) {
  while (i < lines.length && isBlank(lines[i])) i++;
  return i;
}

/** Columns of white space at the start; a tab goes to the next multiple of four. */
function indentOf(line) {
  let column = 0;
  for (const char of line) {
    if (char === " ") column++;
    else if (char === "\t") column += 4 - (column % 4);
    else break;
  }
  return column;
}

/** The line without up to `columns` columns of leading white space; what is left of a tab becomes spaces. */
function dedent(line, columns) {
  let column = 0;
  let i = 0;
  while (column < columns && (line[i] === " " || line[i] === "\t")) {
    column += line[i] === " " ? 1 : 4 - (column % 4);
    i++;
  }
  return " ".repeat(Math.max(0, column - columns)) + line.slice(i);
}

function matchFence(line) {
  const match = /^( {0,3})(`{3,}|~{3,})(.*)$/.exec(line);
  if (!match) return null;
  const [, indent, marks, info] = match;
  if (marks[0] === "`" && info.includes("`")) return null; // inline code that happens to begin the line
  const language = (/^[\w+#.-]{1,24}/.exec(info.trim().replace(/^\{?\.?/, "")) ?? [""])[0];
  return { indent: indent.length, mark: marks[0], length: marks.length, language };
}

function closesFence(line, fence) {
  const trimmed = line.trim();
  return trimmed.length >= fence.length && trimmed === fence.mark.repeat(trimmed.length);
}

/** The fence that is open after a line of a container, where `fence` was open before it. */
function fenceAfter(fence, line) {
  if (fence) return closesFence(line, fence) ? null : fence;
  return matchFence(line.trimStart());
}

function matchHeading(line) {
  const match = /^ {0,3}(#{1,6})(?=[ \t]|$)/.exec(line);
  if (!match) return null;
  let text = line.slice(match[0].length).trim();
  const closed = text.replace(/#+$/, "");
  if (closed !== text && (closed === "" || /[ \t]$/.test(closed))) text = closed.trimEnd();
  return { type: "heading", level: match[1].length, text };
}

function isRule(line) {
  if (indentOf(line) >= 4) return false;
  const marks = line.replace(/[ \t]/g, "");
  return marks.length >= 3 && "-*_".includes(marks[0]) && marks === marks[0].repeat(marks.length);
}

function isQuote(line) {
  return /^ {0,3}>/.test(line);
}

/** `- x`, `* x`, `+ x`, `1. x`, `1) x`; width is how far the item's own text is indented. */
function matchMarker(line) {
  const match = /^[ \t]*([-+*]|\d{1,9}[.)])(?=[ \t]|$)/.exec(line);
  if (!match) return null;
  const mark = match[1];
  const indent = indentOf(line);
  const rest = line.slice(match[0].length);
  const space = indentOf(rest);
  const isEmpty = isBlank(rest);
  const width = indent + mark.length + (isEmpty || space > 4 ? 1 : space); // beyond four it is code inside the item
  return {
    kind: mark[mark.length - 1],
    ordered: mark.length > 1,
    number: mark.length > 1 ? Number.parseInt(mark, 10) : 1,
    indent,
    width,
    rest: isEmpty ? "" : dedent(rest, space > 4 ? 1 : space),
  };
}

function matchDelimiterRow(line) {
  if (!line.includes("-") || !/^[ \t|:-]+$/.test(line) || !line.includes("|")) return null;
  const align = [];
  for (const cell of splitRow(line)) {
    if (!/^:?-+:?$/.test(cell)) return null;
    const left = cell.startsWith(":");
    const right = cell.endsWith(":");
    align.push(left && right ? "center" : right ? "right" : left ? "left" : "");
  }
  return align;
}

/** Cells of a table row. A pipe after a backslash, or inside inline code, does not divide. */
function splitRow(line) {
  let row = line.trim();
  if (row.startsWith("|")) row = row.slice(1);
  const cells = [];
  let cell = "";
  let inCode = false;
  for (let i = 0; i < row.length; i++) {
    const char = row[i];
    if (char === "\\" && row[i + 1] === "|") {
      cell += "|";
      i++;
      continue;
    }
    if (char === "`") inCode = inCode ? false : row.includes("`", i + 1);
    if (char === "|" && !inCode) {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += char;
    }
  }
  if (cell.trim() !== "" || cells.length === 0) cells.push(cell.trim());
  return cells;
}

// ---------------------------------------------------------------------------------------------------------- inline

/** Inline markup of one paragraph, heading or cell. */
export function parseInline(text) {
  return new InlineParser(text).parse();
}

const PUNCTUATION = /[\p{P}\p{S}]/u;
const WHITE = /\s/u;
const DIGIT = /^\d/;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const PLAIN = /[^\\`*_~[\]!<\nhH]+/y; // characters that can begin nothing
const BARE_URL = /https?:\/\/[^\s<>`]+/iy;
const AUTOLINK = /<([a-z][a-z0-9+.-]{1,31}:[^\s<>]*|[\w.+-]{1,64}@[\w.-]{1,255})>/iy;

/**
 * One pass from left to right into a flat list of pieces; brackets become links as they close, and what is left of the
 * runs of * _ ~ is paired by `resolveEmphasis`, as CommonMark's appendix describes it.
 */
class InlineParser {
  constructor(text) {
    this.text = text;
    this.at = 0;
    this.pieces = [];
    this.brackets = []; // where each "[" that is still open stands in `pieces`
    this.ticks = ticksByLength(text);
  }

  parse() {
    while (this.at < this.text.length) this.#next();
    return resolveEmphasis(this.pieces);
  }

  #next() {
    const char = this.text[this.at];
    if (char === "\n") return this.#lineEnd();
    if (char === "\\") return this.#escape();
    if (char === "`") return this.#code();
    if (char === "*" || char === "_" || char === "~") return this.#delimiters(char);
    if (char === "!" && this.text[this.at + 1] === "[") return this.#open("!["); // an image is shown as a link: nothing is fetched
    if (char === "[") return this.#open("[");
    if (char === "]") return this.#close();
    if (char === "<" && this.#autolink()) return;
    if ((char === "h" || char === "H") && this.#bareUrl()) return;
    PLAIN.lastIndex = this.at;
    const plain = PLAIN.exec(this.text);
    this.#text(plain ? plain[0] : char);
  }

  #text(text) {
    this.at += text.length;
    this.pieces.push({ type: "text", text });
  }

  #lineEnd() {
    const previous = this.pieces[this.pieces.length - 1];
    const spaces = previous?.type === "text" ? /[ \t]*$/.exec(previous.text.slice(-8))[0] : "";
    if (spaces) previous.text = previous.text.slice(0, -spaces.length);
    this.pieces.push(spaces.length >= 2 ? { type: "break" } : { type: "text", text: "\n" });
    this.at++;
  }

  #escape() {
    const following = this.text[this.at + 1];
    if (following === "\n") {
      this.pieces.push({ type: "break" });
      this.at += 2;
    } else if (following !== undefined && ESCAPABLE.test(following)) {
      this.pieces.push({ type: "text", text: following });
      this.at += 2;
    } else {
      this.#text("\\");
    }
  }

  #code() {
    const length = runLength(this.text, this.at);
    const start = this.at + length;
    const end = this.ticks.nextAfter(length, start);
    if (end < 0) return this.#text("`".repeat(length));
    let code = this.text.slice(start, end).replace(/\n/g, " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") code = code.slice(1, -1);
    this.pieces.push({ type: "code", text: code });
    this.at = end + length;
  }

  #delimiters(char) {
    const count = runLength(this.text, this.at);
    const before = this.at === 0 ? " " : characterBefore(this.text, this.at);
    const after =
      this.at + count >= this.text.length ? " " : String.fromCodePoint(this.text.codePointAt(this.at + count));
    const leftFlanking =
      !WHITE.test(after) && (!PUNCTUATION.test(after) || WHITE.test(before) || PUNCTUATION.test(before));
    const rightFlanking =
      !WHITE.test(before) && (!PUNCTUATION.test(before) || WHITE.test(after) || PUNCTUATION.test(after));
    let canOpen = leftFlanking;
    let canClose = rightFlanking;
    if (char === "_") {
      // snake_case stays as it is
      canOpen = leftFlanking && (!rightFlanking || PUNCTUATION.test(before));
      canClose = rightFlanking && (!leftFlanking || PUNCTUATION.test(after));
    } else if (char === "*" && count >= 2) {
      // more than CommonMark allows: models write **Note:**text
      canOpen = !WHITE.test(after);
      canClose = !WHITE.test(before);
    }
    const isArithmetic = char === "*" && DIGIT.test(before) && DIGIT.test(after); // 2*3*4, 2**8
    if (isArithmetic || (char === "~" && count !== 2)) canOpen = canClose = false;
    this.pieces.push({ type: "delimiter", char, count, original: count, canOpen, canClose });
    this.at += count;
  }

  #open(mark) {
    this.brackets.push(this.pieces.length);
    this.#text(mark);
  }

  #close() {
    const bracket = this.brackets.pop();
    const target = bracket === undefined ? null : matchTarget(this.text, this.at + 1);
    const href = target && safeHref(target.href);
    if (!href) return this.#text("]"); // not a link, or one that we do not follow: shown as it was written
    const children = resolveEmphasis(this.pieces.splice(bracket).slice(1));
    if (children.length === 0) children.push({ type: "text", text: target.href });
    this.pieces.push({ type: "link", href, children, depth: depthOf(children) });
    this.brackets.length = 0; // links do not nest
    this.at = target.end;
  }

  #autolink() {
    AUTOLINK.lastIndex = this.at;
    const match = AUTOLINK.exec(this.text);
    if (!match) return false;
    const href = safeHref(/^[^:]+@/.test(match[1]) ? `mailto:${match[1]}` : match[1]);
    if (!href) return false;
    this.pieces.push({ type: "link", href, children: [{ type: "text", text: match[1] }] });
    this.at += match[0].length;
    return true;
  }

  #bareUrl() {
    if (this.brackets.length > 0) return false; // it is a link's label
    if (this.at > 0 && /[\p{L}\p{N}_]/u.test(this.text[this.at - 1])) return false;
    BARE_URL.lastIndex = this.at;
    const match = BARE_URL.exec(this.text);
    if (!match) return false;
    const url = trimUrl(match[0]);
    const href = safeHref(url);
    if (!href) return false;
    this.pieces.push({ type: "link", href, children: [{ type: "text", text: url }] });
    this.at += url.length;
    return true;
  }
}

/** A URL in running text, without the punctuation that belongs to the sentence. */
function trimUrl(url) {
  let end = url.length;
  let surplus = 0; // closing brackets that nothing opened
  for (const char of url) surplus += char === ")" ? 1 : char === "(" ? -1 : 0;
  for (; end > 0; end--) {
    const last = url[end - 1];
    if (last === ")" && surplus > 0) surplus--;
    else if (!"?!.,:;*_~'\"]".includes(last)) break;
  }
  return url.slice(0, end);
}

/** `(href)` or `(href "title")` at a position, with balanced brackets in href; null where there is none. */
function matchTarget(text, at) {
  if (text[at] !== "(") return null;
  const limit = Math.min(text.length, at + 2048); // an unclosed one must not cost a scan of all that follows
  let i = at + 1;
  while (i < limit && text[i] <= " ") i++;
  const start = i;
  let depth = 0;
  for (; i < limit && text[i] > " "; i++) {
    if (text[i] === "(") depth++;
    else if (text[i] === ")" && depth-- === 0) break;
  }
  let href = text.slice(start, i);
  if (href.startsWith("<") && href.endsWith(">")) href = href.slice(1, -1);
  TITLE.lastIndex = i;
  const rest = TITLE.exec(text.slice(0, limit));
  return href && rest ? { href, end: i + rest[0].length } : null;
}

const TITLE = /\s*(?:"[^"]*"\s*|'[^']*'\s*)?\)/y;

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

function characterBefore(text, at) {
  const low = text.charCodeAt(at - 1);
  const isPair = at >= 2 && low >= 0xdc00 && low <= 0xdfff;
  return text.slice(at - (isPair ? 2 : 1), at);
}

/** Where runs of backticks of each length begin, asked for from left to right only, so that each is passed once. */
function ticksByLength(text) {
  const positions = new Map(); // length -> {at: number[], next: number}
  for (const match of text.matchAll(/`+/g)) {
    const entry = positions.get(match[0].length) ?? { at: [], next: 0 };
    entry.at.push(match.index);
    positions.set(match[0].length, entry);
  }
  return {
    nextAfter(length, position) {
      const entry = positions.get(length);
      if (!entry) return -1; // an escaped backtick shortened the run
      while (entry.next < entry.at.length && entry.at[entry.next] < position) entry.next++;
      return entry.next < entry.at.length ? entry.at[entry.next] : -1;
    },
  };
}

/** Pairs delimiters into em, strong and del; what stays unpaired is text. */
function resolveEmphasis(pieces) {
  const out = [];
  const bottoms = new Map(); // kind of closer -> index in `out` below which it has no opener
  for (const piece of pieces) {
    if (piece.type !== "delimiter") {
      out.push(piece);
      continue;
    }
    if (piece.canClose) pairBackwards(out, piece, bottoms);
    if (piece.count > 0) out.push(piece);
  }
  return mergeText(out);
}

function pairBackwards(out, closer, bottoms) {
  const kind = `${closer.char}${closer.canOpen}${closer.original % 3}`;
  while (closer.count > 0) {
    const bottom = bottoms.get(kind) ?? 0;
    let i = out.length - 1;
    while (i >= bottom && !isOpenerFor(out[i], closer)) i--;
    if (i < bottom) {
      bottoms.set(kind, out.length);
      return;
    }
    const opener = out[i];
    const children = mergeText(out.splice(i + 1));
    const depth = 1 + depthOf(children);
    const used = closer.char === "~" ? 2 : Math.min(2, opener.count, closer.count);
    opener.count -= used;
    closer.count -= used;
    if (opener.count === 0) out.pop();
    const mark = closer.char.repeat(used);
    if (depth > MAX_INLINE_DEPTH) out.push({ type: "text", text: mark }, ...children, { type: "text", text: mark });
    else out.push({ type: closer.char === "~" ? "del" : used === 2 ? "strong" : "em", children, depth });
    for (const [key, value] of bottoms) bottoms.set(key, Math.min(value, out.length));
  }
}

function depthOf(nodes) {
  return nodes.reduce((depth, node) => Math.max(depth, node.depth ?? 0), 0);
}

function isOpenerFor(piece, closer) {
  if (piece.type !== "delimiter" || piece.char !== closer.char || !piece.canOpen || piece.count === 0) return false;
  const eitherIsBoth = piece.canClose || closer.canOpen;
  const sum = piece.original + closer.original;
  return !(eitherIsBoth && sum % 3 === 0 && (piece.original % 3 !== 0 || closer.original % 3 !== 0));
}

/** Delimiters to text, and neighbouring texts to one. */
function mergeText(pieces) {
  const merged = [];
  for (const piece of pieces) {
    const text =
      piece.type === "delimiter" ? piece.char.repeat(piece.count) : piece.type === "text" ? piece.text : null;
    const last = merged[merged.length - 1];
    if (text === null) merged.push(piece);
    else if (last?.type === "text") last.text += text;
    else merged.push({ type: "text", text });
  }
  return merged;
}
