/**
 * The replay page: shows one frame of a fleet at a time, and lets it run. The data are a FleetFrames, deflated and in base64
 * (sim/fleet_frames.py says what each field is). Everything that is shown follows from one number, the frame.
 */
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const SPEEDS = [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
const WHOLE_RUN_S = 30; // what the first speed makes of it
const FEW_REPLICAS = 12;
const SOME_REPLICAS = 60;
const MANY_REPLICAS = 128;
const STATES = {
  crash: { name: "down", sign: "✕", style: "is-down", color: "--alarm" },
  "node-loss": { name: "down", sign: "✕", style: "is-down", color: "--alarm" },
  starting: { name: "starting", sign: "…", style: "is-starting", color: "--c2" },
  partition: { name: "cut off", sign: "≠", style: "is-cut", color: "--c5" },
  "link-loss": { name: "no KV", sign: "∦", style: "is-cut", color: "--c5" },
  drain: { name: "draining", sign: "↓", style: "is-draining", color: "--c3" },
  slow: { name: "slow", sign: "~", style: "is-slow", color: "--warn" },
  "stale-reports": { name: "stale", sign: "◷", style: "is-stale", color: "--faint" },
  storm: { name: "storm", sign: "⁂", style: "", color: "--c4" },
}; // a replica shows the first that applies

const byId = (id) => document.getElementById(id);

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
const most = (values) => values.reduce((top, value) => Math.max(top, value ?? 0), 0);
const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
const clock = (s) =>
  `${Math.floor(s / 60)}:${(s % 60).toFixed(1).padStart(4, "0")}`; // minutes may be many

function figure(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1) : value.toPrecision(2);
}

const duration = (ms) => (ms === null || ms === undefined ? "–" : ms >= 10_000 ? `${figure(ms / 1e3)} s` : `${figure(ms)} ms`);

async function readData() {
  const bytes = Uint8Array.from(atob(byId("data").textContent), (char) => char.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(inflated).json();
}

/** What the page knows of the fleet, beside what it was given. */
class Fleet {
  constructor(data) {
    Object.assign(this, data);
    this.numFrames = this.at_s.length;
    this.end_s = Math.max(this.duration_s, 1e-3);
    const total = (name) => this.at_s.map((_, frame) => sum(this.columns.map((one) => one[name][frame])));
    this.totals = Object.fromEntries(
      ["is_up", "num_running", "num_waiting", "kv_permille", "hit_tokens", "query_tokens", "received_mb"].map((name) => [name, total(name)]),
    );
    this.handsKvOver = this.roles.some((role) => role !== "both");
    let failed = 0;
    this.failedUntil = this.curves.failures_per_s.map((rate) => (failed += rate * this.curves.bin_s));
    this.outagesOf = this.replicas.map((_, replica) => this.outages.filter((outage) => outage.replica === replica));
  }

  /** The last frame that is not after the moment; the first where all are. */
  frameAt(at_s) {
    let low = 0;
    let high = this.numFrames - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.at_s[middle] <= at_s + 1e-9) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Kinds of STATES that hold of a replica, the gravest first. */
  statesOf(replica, frame) {
    const at = this.at_s[frame];
    const kinds = new Set(
      this.outagesOf[replica].filter((o) => o.from_s <= at && at < (o.to_s ?? Infinity)).map((outage) => outage.kind),
    );
    const isUp = this.columns[replica].is_up[frame];
    if (!isUp && !kinds.has("crash") && !kinds.has("node-loss")) kinds.add("starting");
    if (isUp) for (const kind of ["crash", "node-loss"]) kinds.delete(kind); // it was back before its restart was due
    if (!isUp) for (const kind of ["drain", "slow", "stale-reports"]) kinds.delete(kind);
    return Object.keys(STATES).filter((kind) => kinds.has(kind));
  }

  binAt(frame) {
    return Math.min(this.curves.arrivals_per_s.length - 1, Math.floor(this.at_s[frame] / this.curves.bin_s));
  }
}

/** The tiles of all replicas, pool after pool. */
class Tiles {
  constructor(fleet, onSelect) {
    this.fleet = fleet;
    const count = fleet.replicas.length;
    this.size = count <= FEW_REPLICAS ? "large" : count <= SOME_REPLICAS ? "medium" : "small";
    this.tiles = fleet.replicas.map((name, replica) => this.#make(name, replica, onSelect));
    const pools = Map.groupBy
      ? Map.groupBy(fleet.replicas.keys(), (replica) => poolOf(fleet.replicas[replica]))
      : grouped(fleet.replicas);
    this.pools = [...pools].map(([name, members]) => {
      const note = element("small");
      const roomy = this.size === "small" && count <= MANY_REPLICAS ? " roomy" : "";
      const grid = element("div", `pool size-${this.size}${roomy}`);
      grid.append(...members.map((replica) => this.tiles[replica].root));
      byId("pools").append(element("section", "", element("h2", "", `${name} `, note), grid));
      return { members, note };
    });
    byId("pools").removeAttribute("aria-busy");
  }

  #make(name, replica, onSelect) {
    const number = (className, title) => {
      const value = element("b");
      return { value, root: element("span", className, value, element("i", "", title)) };
    };
    const [running, waiting, hits] = [number("running", "running"), number("waiting", "queued"), number("hits", "cache hits")];
    const state = element("span", "state");
    const shown = this.size === "small" ? name.slice(poolOf(name).length + 1) : name;
    const root = element(
      "button",
      "tile",
      element("span", "head", element("span", "name", shown), state),
      element("span", "numbers", running.root, waiting.root, hits.root),
      element("span", "kv"),
    );
    root.type = "button";
    root.dataset.replica = name;
    root.setAttribute("aria-pressed", "false");
    root.addEventListener("click", () => onSelect(replica));
    if (this.size === "large") root.append(this.#spark(replica));
    return { root, state, running: running.value, waiting: waiting.value, hits: hits.value, waitingRoot: waiting.root };
  }

  /** What runs, and on top of it what waits, over the whole run; all tiles have one scale. */
  #spark(replica) {
    const { columns, at_s, end_s } = this.fleet;
    this.peak ??= Math.max(1, ...columns.map((one) => most(one.num_running.map((n, frame) => n + one.num_waiting[frame]))));
    const one = columns[replica];
    const both = one.num_running.map((running, frame) => running + one.num_waiting[frame]);
    const drawing = svg("svg", { class: "spark", viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    drawing.append(
      svg("path", { d: area(at_s, both, end_s, this.peak), fill: "var(--c1)" }),
      svg("path", { d: area(at_s, one.num_running, end_s, this.peak), fill: "color-mix(in srgb, var(--c2) 75%, var(--card))" }),
      svg("path", { class: "now", d: "", style: "stroke: var(--ink); stroke-width: 1.5; vector-effect: non-scaling-stroke" }),
    );
    return drawing;
  }

  show(frame) {
    const { fleet } = this;
    this.tiles.forEach((tile, replica) => {
      const one = fleet.columns[replica];
      const states = fleet.statesOf(replica, frame);
      const [used, cached] = [one.kv_permille[frame], one.cached_permille[frame]];
      const waits = one.num_waiting[frame];
      tile.running.textContent = one.num_running[frame].toLocaleString("en");
      tile.waiting.textContent = waits.toLocaleString("en");
      tile.waitingRoot.classList.toggle("some", waits > 0);
      tile.hits.textContent = percent(one.hit_tokens[frame], one.query_tokens[frame]);
      const state = states.length ? STATES[states[0]] : null;
      const more = states.length > 1 && this.size === "large" ? ` +${states.length - 1}` : "";
      tile.state.textContent = state ? (this.size === "small" ? state.sign : state.name + more) : "";
      const away = states.length && !one.is_up[frame] ? " is-away" : "";
      tile.root.className = `tile${state ? ` is-troubled ${state.style}${away}` : ""}`;
      tile.root.style.setProperty("--used", used / 1000);
      tile.root.style.setProperty("--cached", cached / 1000);
      tile.root.title = [
        fleet.replicas[replica],
        states.map((kind) => STATES[kind].name).join(", ") || "serving",
        `${one.num_running[frame]} running, ${waits} queued`,
        `KV in use ${(used / 10).toFixed(1)} %, cached beside it ${(cached / 10).toFixed(1)} %`,
        `${one.hit_tokens[frame]} of ${one.query_tokens[frame]} prompt tokens found in the cache`,
        `${one.num_preemptions[frame]} preempted`,
        ...(fleet.handsKvOver ? transfers(one, frame) : []),
      ].join("\n");
      const x = fleet.at_s[frame] / fleet.end_s;
      tile.root.querySelector(".now")?.setAttribute("d", `M${x} 0V1`);
    });
    for (const { members, note } of this.pools) {
      const up = sum(members.map((replica) => fleet.columns[replica].is_up[frame]));
      const role = fleet.roles[members[0]];
      note.textContent = `${up} of ${members.length} up${role === "both" ? "" : `, ${role}`}`;
    }
  }

  select(replica) {
    this.tiles.forEach((tile, index) => tile.root.setAttribute("aria-pressed", String(index === replica)));
  }
}

/** What a replica of a fleet that hands KV over waits for and keeps. */
function transfers(one, frame) {
  return [
    `${one.num_loading[frame]} loading, ${one.received_mb[frame].toLocaleString("en")} MB of KV came`,
    `kept for others ${(one.leased_permille[frame] / 10).toFixed(1)} %`,
  ];
}

const poolOf = (name) => name.slice(0, name.lastIndexOf("-"));

function grouped(names) {
  const pools = new Map();
  names.forEach((name, index) => pools.set(poolOf(name), [...(pools.get(poolOf(name)) ?? []), index]));
  return pools;
}

/** A filled step curve in a square of one, from values that hold since the moment before. */
function area(ends_s, values, whole_s, top) {
  let path = "M0 1";
  ends_s.forEach((end, index) => {
    const y = (1 - values[index] / top).toFixed(4);
    path += `V${y}H${(end / whole_s).toFixed(5)}`;
  });
  return `${path}V1Z`;
}

/** A line through the middles of bins, with a gap where there is no value and a dash where neighbours have none. */
function line(values, bin_s, whole_s, top) {
  let path = "";
  let isOpen = false;
  values.forEach((value, index) => {
    if (value === null) {
      isOpen = false;
      return;
    }
    const x = Math.min(1, ((index + 0.5) * bin_s) / whole_s);
    const y = (1 - value / top).toFixed(4);
    path += `${isOpen ? "L" : "M"}${x.toFixed(5)} ${y}`;
    const isAlone = !isOpen && (values[index + 1] ?? null) === null;
    if (isAlone) path += `h${((0.5 * bin_s) / whole_s).toFixed(5)}`;
    isOpen = true;
  });
  return path;
}

/** Curves over the whole run, one below another, with one cursor through all. */
class Timeline {
  constructor(fleet, onSeek) {
    this.fleet = fleet;
    this.root = byId("timeline");
    this.cursor = element("div", "cursor");
    this.plots = element("div", "plots", this.cursor);
    const seek = (event) => {
      const box = this.plots.getBoundingClientRect();
      if (event.clientX < box.left - 8) return;
      onSeek(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * fleet.end_s);
    };
    this.root.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      seek(event);
      this.root.setPointerCapture(event.pointerId);
    });
    this.root.addEventListener("pointermove", (event) => {
      if (this.root.hasPointerCapture(event.pointerId)) seek(event);
    });
    this.#build(null);
  }

  #build(selected) {
    const { fleet } = this;
    const { curves, at_s, end_s } = fleet;
    this.root.replaceChildren();
    this.lanes = [];
    const ends = curves.arrivals_per_s.map((_, index) => (index + 1) * curves.bin_s);
    const filled = (moments, values, top, color) => ["path", { d: area(moments, values, end_s, top), fill: color }];
    const arrivals = most(curves.arrivals_per_s);
    this.#lane("arrivals", "req/s", arrivals, 34, (frame) => figure(curves.arrivals_per_s[fleet.binAt(frame)]), (top) => [
      filled(ends, curves.arrivals_per_s, top, "color-mix(in srgb, var(--c0) 55%, var(--card))"),
      filled(ends, curves.failures_per_s, top, "var(--alarm)"),
    ]);
    const inFlight = Math.max(most(curves.in_flight), most(fleet.totals.num_waiting));
    this.#lane("in flight", "", inFlight, 34, (frame) => figure(Math.round(curves.in_flight[fleet.binAt(frame)])), (top) => [
      filled(ends, curves.in_flight, top, "color-mix(in srgb, var(--c2) 55%, var(--card))"),
      filled(at_s, fleet.totals.num_waiting, top, "var(--c1)"),
    ]);
    const ttft = curves.ttft_p95_ms;
    this.#lane("TTFT p95", "", most(ttft), 34, (frame) => duration(ttft[fleet.binAt(frame)]), (top) => [
      ["path", { d: line(ttft, curves.bin_s, end_s, top), fill: "none", stroke: "var(--c3)" }],
    ], duration);
    if (fleet.handsKvOver) {
      const moved = selected === null ? fleet.totals.received_mb : fleet.columns[selected].received_mb;
      const name = selected === null ? "KV handed over" : "KV that came to it";
      this.#lane(name, "MB a frame", most(moved), 34, (frame) => figure(moved[frame]), (top) => [
        filled(at_s, moved, top, "color-mix(in srgb, var(--c4) 60%, var(--card))"),
      ]);
    }
    if (selected !== null) {
      const one = fleet.columns[selected];
      const both = one.num_running.map((running, frame) => running + one.num_waiting[frame]);
      const shown = (frame) => `${one.num_running[frame]} + ${one.num_waiting[frame]}`;
      this.#lane(fleet.replicas[selected], "running + queued", most(both), 34, shown, (top) => [
        filled(at_s, both, top, "var(--c1)"),
        filled(at_s, one.num_running, top, "color-mix(in srgb, var(--c2) 75%, var(--card))"),
      ]);
      const used = (frame) => `${(one.kv_permille[frame] / 10).toFixed(0)} %`;
      this.#lane("its KV in use", "", 1000, 28, used, (top) => [
        filled(at_s, one.kv_permille.map((value, i) => value + one.cached_permille[i]), top,
          "color-mix(in srgb, var(--c0) 18%, var(--card))"),
        filled(at_s, one.kv_permille, top, "color-mix(in srgb, var(--c0) 70%, var(--card))"),
      ], () => "100 %");
    }
    const kinds = new Set(fleet.outages.map((outage) => outage.kind));
    for (const kind of Object.keys(STATES)) if (kinds.has(kind)) this.#faults(kind, selected);
    this.#axis();
    this.root.append(this.plots);
  }

  #lane(name, unit, top, height, value, paths, scale = figure) {
    const now = element("b");
    const note = element("small", "", `${unit} ≤ ${scale(top)}`.trim());
    const lane = element("div", "lane");
    lane.style.setProperty("--height", `${height}px`);
    const drawing = svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", role: "img", "aria-label": `${name} over time` });
    for (const [tag, attributes] of paths(top || 1)) drawing.append(svg(tag, attributes));
    lane.append(drawing);
    this.root.append(element("div", "lane-label", element("span", "", name), now, note), lane);
    this.lanes.push({ now, value });
  }

  /** Faults of one kind as bars from begin to end; beside a selected replica's, the others' are faint. */
  #faults(kind, selected) {
    const { outages, replicas, end_s } = this.fleet;
    const swatch = element("i");
    swatch.style.background = `var(${STATES[kind].color})`;
    const count = element("b");
    const lane = element("div", "lane thin");
    lane.style.setProperty("--height", "14px");
    const own = outages.filter((outage) => outage.kind === kind);
    for (const outage of own) {
      const mark = element("div", "mark");
      const end = outage.to_s ?? end_s;
      mark.style.left = `${(100 * outage.from_s) / end_s}%`;
      mark.style.width = `${(100 * (end - outage.from_s)) / end_s}%`;
      mark.style.background = `var(${STATES[kind].color})`;
      if (selected !== null && outage.replica !== selected && outage.replica !== null) mark.style.opacity = 0.25;
      const where = outage.replica === null ? "" : ` of ${replicas[outage.replica]}`;
      mark.title = `${kind}${where}, from ${clock(outage.from_s)} to ${outage.to_s === null ? "the end" : clock(end)}`;
      lane.append(mark);
    }
    this.root.append(element("div", "lane-label", element("span", "", swatch, kind), count), lane);
    const value = (frame) => {
      const at = this.fleet.at_s[frame];
      return String(own.filter((o) => o.from_s <= at && at < (o.to_s ?? Infinity)).length || "");
    };
    this.lanes.push({ now: count, value });
  }

  #axis() {
    const axis = element("div", "axis");
    const rough = this.fleet.end_s / Math.max(3, Math.min(10, this.root.clientWidth / 130));
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200].find((s) => s >= rough);
    for (let at = 0; at <= this.fleet.end_s; at += step ?? rough) {
      const isFine = step < 1;
      const tick = element("span", "", isFine ? `${at.toFixed(1)} s` : clock(at).replace(/\.0$/, ""));
      tick.style.left = `${(100 * at) / this.fleet.end_s}%`;
      axis.append(tick);
    }
    this.root.append(element("div"), axis);
  }

  show(frame) {
    this.cursor.style.left = `${(100 * this.fleet.at_s[frame]) / this.fleet.end_s}%`;
    for (const { now, value } of this.lanes) now.textContent = value(frame);
  }

  select(replica) {
    this.#build(replica);
  }
}

/** The figures of the whole fleet at the frame. */
class Readings {
  constructor(fleet) {
    this.fleet = fleet;
    const { totals, curves, replicas } = fleet;
    const hasFailures = fleet.failedUntil.at(-1) > 0;
    const all = [
      ["up", (frame) => `${totals.is_up[frame]} of ${replicas.length}`, (frame) => totals.is_up[frame] < replicas.length],
      ["running", (frame) => figure(totals.num_running[frame])],
      ["queued", (frame) => figure(totals.num_waiting[frame])],
      ["KV in use", (frame) => percent(totals.kv_permille[frame] / 1000, totals.is_up[frame])],
      ["cache hits", (frame) => percent(totals.hit_tokens[frame], totals.query_tokens[frame])],
      ["req/s arriving", (frame) => figure(curves.arrivals_per_s[fleet.binAt(frame)])],
      ["TTFT p95", (frame) => duration(curves.ttft_p95_ms[fleet.binAt(frame)])],
      ...(hasFailures ? [["failed so far", (frame) => figure(Math.round(fleet.failedUntil[fleet.binAt(frame)]))]] : []),
    ];
    this.shown = all.map(([name, value, isAlarming]) => {
      const figureOf = element("dd");
      const root = element("div", "", element("dt", "", name), figureOf);
      byId("readings").append(root);
      return { root, figureOf, value, isAlarming };
    });
  }

  show(frame) {
    for (const { root, figureOf, value, isAlarming } of this.shown) {
      figureOf.textContent = value(frame);
      root.classList.toggle("alarm", Boolean(isAlarming?.(frame)));
    }
  }
}

function showLegend(fleet, size) {
  const entry = (className, text) => element("span", "", element("i", className), text);
  const entries = [
    entry("used", size === "small" ? "KV in use, by height" : "KV in use"),
    entry("cached", "cached, in use by nobody"),
    entry("running", size === "large" ? "running" : "running (left)"),
    entry("queued", size === "large" ? "queued" : "queued (right)"),
  ];
  if (fleet.failedUntil.at(-1) > 0) entries.push(entry("failed", "failed"));
  if (size === "small") {
    const kinds = new Set(fleet.outages.map((outage) => outage.kind));
    if (fleet.totals.is_up.some((up) => up < fleet.replicas.length)) kinds.add("starting");
    const signs = new Map(
      Object.entries(STATES).filter(([kind]) => kinds.has(kind) && kind !== "storm").map(([, { name, sign }]) => [name, sign]),
    );
    entries.push(...[...signs].map(([name, sign]) => element("span", "", element("b", "", sign), ` ${name}`)));
  }
  byId("legend").append(...entries);
}

/** Which frame is shown, and whether it runs. */
class Player {
  constructor(fleet, views) {
    this.fleet = fleet;
    this.views = views;
    this.frame = 0;
    this.at = fleet.at_s[0];
    this.isPlaying = false;
    this.last = 0;
    const slider = byId("slider");
    slider.max = fleet.numFrames - 1;
    slider.addEventListener("input", () => this.seekFrame(Number(slider.value)));
    byId("play").addEventListener("click", () => this.toggle());
    const wanted = fleet.end_s / WHOLE_RUN_S;
    const first = SPEEDS.find((speed) => speed >= wanted) ?? SPEEDS.at(-1);
    const choice = byId("speed");
    choice.append(...SPEEDS.map((speed) => new Option(`${speed}×`, speed, false, speed === first)));
    document.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("hashchange", () => this.readAddress());
    this.readAddress() || this.seekFrame(0);
  }

  get speed() {
    return Number(byId("speed").value);
  }

  /** An address may end in a moment: #t=12.5 */
  readAddress() {
    const found = /^#t=([\d.]+)$/.exec(location.hash);
    if (found) this.seek(Number(found[1]));
    return Boolean(found);
  }

  seek(at_s) {
    this.at = at_s;
    this.#show(this.fleet.frameAt(at_s));
  }

  seekFrame(frame) {
    const bounded = Math.min(this.fleet.numFrames - 1, Math.max(0, frame));
    this.seek(this.fleet.at_s[bounded]);
  }

  toggle() {
    this.isPlaying = !this.isPlaying;
    document.body.classList.toggle("is-playing", this.isPlaying);
    byId("play").querySelector(".hidden").textContent = this.isPlaying ? "Pause" : "Play";
    if (this.isPlaying) {
      if (this.frame === this.fleet.numFrames - 1) this.seekFrame(0);
      this.last = performance.now();
      requestAnimationFrame((now) => this.#tick(now));
    }
  }

  #tick(now) {
    if (!this.isPlaying) return;
    const passed = Math.max(0, now - this.last) / 1e3;
    this.last = now;
    this.seek(this.at + passed * this.speed);
    if (this.frame === this.fleet.numFrames - 1) this.toggle();
    else requestAnimationFrame((next) => this.#tick(next));
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.tagName === "SELECT") return;
    const far = event.shiftKey ? 10 : 1;
    const actions = {
      " ": () => this.toggle(),
      ArrowLeft: () => this.seekFrame(this.frame - far),
      ArrowRight: () => this.seekFrame(this.frame + far),
      Home: () => this.seekFrame(0),
      End: () => this.seekFrame(this.fleet.numFrames - 1),
      "[": () => this.#changeSpeed(-1),
      "]": () => this.#changeSpeed(1),
    };
    const isOnButton = event.target.tagName === "BUTTON" && event.key === " ";
    if (!(event.key in actions) || isOnButton) return;
    event.preventDefault();
    actions[event.key]();
  }

  #changeSpeed(by) {
    const choice = byId("speed");
    choice.selectedIndex = Math.min(SPEEDS.length - 1, Math.max(0, choice.selectedIndex + by));
  }

  #show(frame) {
    this.frame = frame;
    const { fleet } = this;
    byId("slider").value = frame;
    byId("slider").setAttribute("aria-valuetext", `${fleet.at_s[frame].toFixed(1)} seconds`);
    byId("clock").replaceChildren(
      element("b", "", clock(fleet.at_s[frame])), element("span", "", ` of ${clock(fleet.end_s)}`),
    );
    document.body.dataset.frame = frame;
    for (const view of this.views) view.show(frame);
  }
}

async function begin() {
  const fleet = new Fleet(await readData());
  if (!fleet.numFrames) {
    byId("notice").textContent = "The run was over before its log had a moment: a shorter --log-interval takes more.";
    byId("notice").hidden = false;
    return;
  }
  const perFrame = Math.ceil(fleet.num_moments / fleet.numFrames);
  byId("sampled").textContent =
    perFrame > 1
      ? `${fleet.numFrames} frames of ${fleet.num_moments.toLocaleString("en")} moments, one of ${perFrame}: ` +
        `levels as they were at a frame, hits and preemptions since the one before.`
      : `A frame every ${figure(fleet.log_interval_s)} s, as the log took it down.`;
  let selected = null;
  const timeline = new Timeline(fleet, (at_s) => player.seek(at_s));
  const tiles = new Tiles(fleet, (replica) => {
    selected = selected === replica ? null : replica;
    tiles.select(selected);
    timeline.select(selected);
    timeline.show(player.frame);
  });
  showLegend(fleet, tiles.size);
  const player = new Player(fleet, [tiles, timeline, new Readings(fleet)]);
}

begin().catch((error) => {
  byId("notice").textContent = `The replay cannot be shown: ${error.message}`;
  byId("notice").hidden = false;
  throw error;
});
