// Markdown to a tree, under node's own test runner; started by ../test_page_modules.py.
import assert from "node:assert/strict";
import { test } from "node:test";

const { parseBlocks, parseInline, safeHref } = await import(`${process.env.HEADRACE_WEB}/markdown.js`);

/** A block tree as short text, so that expectations can be read. */
function outline(blocks) {
  return blocks
    .map((block) => {
      if (block.type === "paragraph") return `p(${block.text})`;
      if (block.type === "heading") return `h${block.level}(${block.text})`;
      if (block.type === "code") return `code:${block.language}(${block.text})`;
      if (block.type === "quote") return `quote[${outline(block.blocks)}]`;
      if (block.type === "list") {
        const kind = (block.ordered ? `ol@${block.first}` : "ul") + (block.loose ? "+" : "");
        return `${kind}[${block.items.map((item) => outline(item)).join(" | ")}]`;
      }
      if (block.type === "table")
        return `table<${block.align.map((a) => a || "-")}>[${[block.head, ...block.rows].map((row) => row.join("|")).join(" / ")}]`;
      return block.type;
    })
    .join(" ");
}

/** Inline markup as short text. */
function inline(text) {
  const show = (nodes) =>
    nodes
      .map((node) => {
        if (node.type === "text") return node.text;
        if (node.type === "code") return `‹${node.text}›`;
        if (node.type === "break") return "⏎";
        if (node.type === "link") return `link<${node.href}>(${show(node.children)})`;
        return `${node.type}(${show(node.children)})`;
      })
      .join("");
  return show(parseInline(text));
}

function check(cases, parse) {
  for (const [source, expected] of cases) assert.equal(parse(source), expected, JSON.stringify(source));
}

const blocksOf = (source) => outline(parseBlocks(source));

test("paragraphs, headings and rules", () => {
  check(
    [
      ["a\nb\n\nc", "p(a\nb) p(c)"],
      ["# One\n###### Six ##\n####### seven", "h1(One) h6(Six) p(####### seven)"],
      ["#hashtag", "p(#hashtag)"],
      ["# a #b", "h1(a #b)"],
      ["Title\n===\nSub\n---\nx", "h1(Title) h2(Sub) p(x)"],
      ["a\n\n---\n* * *\n___\nb", "p(a) rule rule rule p(b)"],
      ["", ""],
      ["\n \n", ""],
    ],
    blocksOf,
  );
});

test("fences keep their text as it is, with or without an end", () => {
  check(
    [
      ["```js\na < b\n\n# c\n```\nd", "code:js(a < b\n\n# c) p(d)"],
      ["```\nnever closed\n- x", "code:(never closed\n- x)"],
      ["~~~python title=x\n```\n~~~", "code:python(```)"],
      ["````\n```\n````", "code:(```)"],
      ["```a`b\nx", "p(```a`b\nx)"],
      ["  ```\n  a\n    b\n  ```", "code:(a\n  b)"],
      ["text\n```\ncode\n```", "p(text) code:(code)"],
      ["    indented\n\n      more\n\ntext", "code:(indented\n\n  more) p(text)"],
      ["```<img src=x onerror=alert(1)>\nx\n```", "code:(x)"],
    ],
    blocksOf,
  );
});

test("lists nest by two columns or more, whatever the marker's width", () => {
  check(
    [
      ["- a\n- b", "ul[p(a) | p(b)]"],
      ["3. a\n4. b", "ol@3[p(a) | p(b)]"],
      ["1. a\n  - b\n2. c", "ol@1[p(a) ul[p(b)] | p(c)]"],
      ["1. a\n   - b\n     - c\n2. d", "ol@1[p(a) ul[p(b) ul[p(c)]] | p(d)]"],
      ["- a\n    - b\n        - c", "ul[p(a) ul[p(b) ul[p(c)]]]"],
      ["- a\n\t- b", "ul[p(a) ul[p(b)]]"],
      ["- a\n\n- b", "ul+[p(a) | p(b)]"],
      ["- a\n\n  b\n- c", "ul+[p(a) p(b) | p(c)]"],
      ["- a\nlazy\n- b", "ul[p(a\nlazy) | p(b)]"],
      ["- a\n\nb", "ul[p(a)] p(b)"],
      ["- a\n* b", "ul[p(a)] ul[p(b)]"],
      ["- a\n---\nb", "ul[p(a)] rule p(b)"],
      ["It was\n1984. Cold.", "p(It was\n1984. Cold.)"],
      ["Steps:\n1. go", "p(Steps:) ol@1[p(go)]"],
      ["-", "ul[]"],
      ["-x", "p(-x)"],
    ],
    blocksOf,
  );
});

test("code in a list item belongs to it, even where the model forgot to indent", () => {
  check(
    [
      ["1. a\n   ```sh\n   x\n\n   y\n   ```\n2. b", "ol@1[p(a) code:sh(x\n\ny) | p(b)]"],
      ["1. a\n   ```sh\nx\n   ```\n2. b", "ol@1[p(a) code:sh(x) | p(b)]"],
    ],
    blocksOf,
  );
});

test("quotes hold any block and end at a blank line", () => {
  check(
    [
      ["> a\n> b\n\nc", "quote[p(a\nb)] p(c)"],
      ["> a\nlazy", "quote[p(a\nlazy)]"],
      ["> - x\n>   - y\n> > z", "quote[ul[p(x) ul[p(y)]] quote[p(z)]]"],
      ["> ```\n> code\nafter", "quote[code:(code)] p(after)"],
    ],
    blocksOf,
  );
});

test("tables have as many cells in every row as in the head", () => {
  check(
    [
      ["| a | b |\n|---|:-:|\n| 1 | 2 |\n| 3 |\n| 4 | 5 | 6 |\n\nx", "table<-,center>[a|b / 1|2 / 3| / 4|5] p(x)"],
      ["a|b\n--|--:\n1|2", "table<-,right>[a|b / 1|2]"],
      ["| a \\| b | `c|d` |\n|---|---|", "table<-,->[a | b|`c|d`]"],
      ["text\n| a |\n|---|\n| 1 |", "p(text) table<->[a / 1]"],
      ["a | b\n--", "h2(a | b)"],
      ["a | b | c\n--|--", "p(a | b | c\n--|--)"],
    ],
    blocksOf,
  );
});

test("emphasis pairs as CommonMark says", () => {
  check(
    [
      ["*a* **b** ***c*** _d_ __e__", "em(a) strong(b) em(strong(c)) em(d) strong(e)"],
      ["**a *b* c**", "strong(a em(b) c)"],
      ["*a **b** c*", "em(a strong(b) c)"],
      ["snake_case_name and 2 * 3 * 4", "snake_case_name and 2 * 3 * 4"],
      ["**open", "**open"],
      ["a** b**", "a** b**"],
      ["~~gone~~ ~one~", "del(gone) ~one~"],
      ["*a _b* c_", "em(a _b) c_"],
    ],
    inline,
  );
});

test("emphasis is more lenient than CommonMark where models need it", () => {
  check(
    [
      ["**Note:**text", "strong(Note:)text"],
      ["2*3*4 and 2**8**2", "2*3*4 and 2**8**2"],
    ],
    inline,
  );
});

test("inline code, escapes and line breaks", () => {
  check(
    [
      ["`a*b*` ``c`d`` `open", "‹a*b*› ‹c`d› `open"],
      ["` x ` `  `", "‹x› ‹  ›"],
      ["\\*a\\* \\` \\q", "*a* ` \\q"],
      ["a  \nb\\\nc\nd", "a⏎b⏎c\nd"],
      ["`<script>`", "‹<script>›"],
    ],
    inline,
  );
});

test("links go to http, https and mailto, and to nothing else", () => {
  check(
    [
      ["[a](https://x.y/z?q=1#f)", "link<https://x.y/z?q=1#f>(a)"],
      ['[a](http://x.y "title") [b](<http://c.d/e>)', "link<http://x.y/>(a) link<http://c.d/e>(b)"],
      ["[a](https://en.wikipedia.org/wiki/Mill_(grinding))", "link<https://en.wikipedia.org/wiki/Mill_(grinding)>(a)"],
      ["[**b** `c`](https://x.y)", "link<https://x.y/>(strong(b) ‹c›)"],
      [
        "[m](mailto:a@b.c) <a@b.c> <https://x.y>",
        "link<mailto:a@b.c>(m) link<mailto:a@b.c>(a@b.c) link<https://x.y/>(https://x.y)",
      ],
      [
        "see https://x.y/a_b_c. (https://x.y/(z))",
        "see link<https://x.y/a_b_c>(https://x.y/a_b_c). (link<https://x.y/(z)>(https://x.y/(z)))",
      ],
      ["![alt](https://x.y/i.png)", "link<https://x.y/i.png>(alt)"],
      ["[x [y](http://a.b) z](http://c.d)", "[x link<http://a.b/>(y) z](link<http://c.d/>(http://c.d))"],
      ["[a] (b) [c]() [](https://x.y)", "[a] (b) [c]() link<https://x.y/>(https://x.y)"],
    ],
    inline,
  );
});

test("hostile links stay text", () => {
  const hostile = [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "&#106;avascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "//x.y",
    "/v1/models",
    "\u0001javascript:alert(1)",
    "tel:123",
  ];
  for (const href of hostile) {
    assert.equal(safeHref(href), null, href);
    assert.doesNotMatch(inline(`[a](${href}) <${href}> ![i](${href})`), /link</, href);
  }
});

test("a scheme in front of a web address does not lend it its own", () => {
  for (const href of ["blob:https://x.y", "view-source:https://x.y", "javascript:https://x.y"]) {
    assert.equal(safeHref(href), null);
    assert.doesNotMatch(inline(`[a](${href})`), /link<(?!https:)/);
  }
});

test("a safe href keeps its scheme after the browser's own reading of it", () => {
  for (const href of ["https://x.y", " https://x.y", "ht\ntps://x.y"]) assert.equal(safeHref(href), "https://x.y/");
});

test("offsets of blocks cut the source where each begins", () => {
  const source = "# a\n\n\nb\nc\n- d\n\n```\ne\n```\n";
  const starts = parseBlocks(source).map((block) => block.start);
  assert.deepEqual(
    starts.map((start, i) => source.slice(start, starts[i + 1]).trim()),
    ["# a", "b\nc", "- d", "```\ne\n```"],
  );
});

// ------------------------------------------------------------------------------------------- any text, in any pieces

/** Numbers from a seed (mulberry32), so that a failure can be had again. */
function seeded(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

const SHARDS = [
  "\n",
  "\n",
  "\n\n",
  "  ",
  "    ",
  " ",
  "- ",
  "* ",
  "1. ",
  "2) ",
  "# ",
  "> ",
  "```",
  "```js",
  "~~~",
  "---",
  "===",
  "|",
  "|--|",
  "| a | b |",
  "*",
  "**",
  "_",
  "`",
  "[",
  "](",
  ")",
  "https://x.y ",
  "<b>",
  "\\",
  "word",
  "x",
  "水",
  "~~",
  ":",
  "\t",
];

function randomText(random, numShards) {
  return Array.from({ length: numShards }, () => SHARDS[Math.floor(random() * SHARDS.length)]).join("");
}

/** What MarkdownView does with a growing text: blocks before the last are settled as soon as whole lines show them. */
function parseIncrementally(pieces) {
  const settled = [];
  let tail = "";
  for (const piece of pieces) {
    tail += piece;
    if (!piece.includes("\n")) continue;
    const blocks = parseBlocks(tail.slice(0, tail.lastIndexOf("\n") + 1));
    if (blocks.length < 2) continue;
    settled.push(...blocks.slice(0, -1));
    tail = tail.slice(blocks[blocks.length - 1].start);
  }
  return [...settled, ...parseBlocks(tail)].map(({ start: _start, ...block }) => block);
}

test("a text parsed while it grows gives the same tree as parsed at once", () => {
  const random = seeded(1);
  for (let run = 0; run < 4000; run++) {
    const text = randomText(random, 1 + Math.floor(random() * 40));
    const whole = parseBlocks(text).map(({ start: _start, ...block }) => block);
    assert.deepEqual(parseIncrementally([...text]), whole, JSON.stringify(text));
  }
});

test("no text is lost: every word of a random text is in the tree", () => {
  const random = seeded(2);
  for (let run = 0; run < 1500; run++) {
    const text = randomText(random, 30).replace(/```|~~~|\|/g, ""); // what follows a language, and surplus cells, are not shown
    const shown = JSON.stringify(parseBlocks(text));
    assert.equal((shown.match(/word|水/g) ?? []).length, (text.match(/word|水/g) ?? []).length, JSON.stringify(text));
  }
});

test("inline parsing keeps every word, and only ever makes safe links", () => {
  const random = seeded(3);
  const leaves = (nodes) => nodes.map((node) => node.text ?? leaves(node.children ?? [])).join("");
  const visit = (node) => {
    if (node.type === "link") assert.match(node.href, /^(https?|mailto):/);
    (node.children ?? []).forEach(visit);
  };
  for (let run = 0; run < 4000; run++) {
    const text = randomText(random, 25);
    const nodes = parseInline(text);
    nodes.forEach(visit);
    const shown = leaves(nodes);
    assert.equal((shown.match(/word|水/g) ?? []).length, (text.match(/word|水/g) ?? []).length, JSON.stringify(text));
  }
});

test("a model that repeats itself thousands of times neither nests without bound nor overflows", () => {
  const shapes = [
    "[",
    "[a](",
    "![",
    "*a ",
    "*a_b ",
    "a** ",
    "> ",
    "- ",
    "1. ",
    "`",
    "``x`",
    "<a:",
    "http://",
    "|",
    "# ",
    "_",
    "\\",
    "- a\n\n",
    "> - ",
    "*a **b ",
  ];
  const depthOf = (node) =>
    1 + Math.max(0, ...[...(node.blocks ?? []), ...(node.items ?? []).flat(), ...(node.children ?? [])].map(depthOf));
  for (const shape of shapes) {
    const text = shape.repeat(3000);
    const trees = [...parseBlocks(text), ...parseInline(text)];
    assert.ok(
      trees.every((tree) => depthOf(tree) < 40),
      shape,
    );
  }
});
