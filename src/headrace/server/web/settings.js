/**
 * How answers are sampled, as the reader chose: which fields there are, their ranges and words, the form, and what of it a
 * request carries. A field that was left alone is not sent, so that the server's and the model's own defaults hold.
 * Ranges are those of the server's SamplingParams.
 */

import { el, icon } from "./dom.js";
import { forGood } from "./storage.js";

const KEY = "headrace.settings";

/** `usual` is where a slider rests while the field is left alone: the API's default. */
const FIELDS = [
  { name: "system_prompt", label: "System prompt", kind: "text", hint: "Said to the model before the conversation." },
  {
    name: "temperature",
    label: "Temperature",
    kind: "slider",
    min: 0,
    max: 2,
    step: 0.05,
    usual: 1,
    hint: "0 always takes the likeliest token; higher is more varied.",
  },
  {
    name: "top_p",
    label: "Top p",
    kind: "slider",
    min: 0.01,
    max: 1,
    step: 0.01,
    usual: 1,
    hint: "Only the likeliest tokens that together reach this probability.",
  },
  {
    name: "min_p",
    label: "Min p",
    kind: "slider",
    min: 0,
    max: 1,
    step: 0.01,
    usual: 0,
    hint: "Only tokens at least this fraction as likely as the best.",
  },
  {
    name: "top_k",
    label: "Top k",
    kind: "integer",
    min: 0,
    max: 2 ** 31 - 1,
    hint: "Only this many of the likeliest; 0 is all.",
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    kind: "slider",
    min: 0.5,
    max: 2,
    step: 0.05,
    usual: 1,
    hint: "Above 1 discourages what was already said.",
  },
  { name: "max_tokens", label: "Max tokens", kind: "integer", min: 1, max: 2 ** 31 - 1, hint: "Longest answer." },
  {
    name: "seed",
    label: "Seed",
    kind: "integer",
    min: 0,
    max: Number.MAX_SAFE_INTEGER,
    hint: "The same seed and question give the same answer.",
  },
];

/** Whether a field of the API is one that the form has. */
export const isSetting = (name) => FIELDS.some((field) => field.name === name);

/** The values that were changed: {name: value}. */
export class Settings {
  #values = {};

  constructor() {
    const remembered = forGood.recall(KEY) ?? {};
    for (const field of FIELDS) {
      if (problemWith(field, remembered[field.name]) === null) this.#values[field.name] = remembered[field.name];
    }
  }

  get numChanged() {
    return Object.keys(this.#values).length;
  }

  get systemPrompt() {
    return this.#values.system_prompt ?? "";
  }

  value(name) {
    return this.#values[name];
  }

  set(name, value) {
    if (value === undefined) delete this.#values[name];
    else this.#values[name] = value;
    forGood.remember(KEY, this.numChanged ? this.#values : null);
  }

  /** The fields of a request body. */
  forRequest() {
    const { system_prompt: _said, ...sampling } = this.#values;
    return sampling;
  }
}

/** null if the value may be sent, otherwise a sentence. Never null for undefined. */
export function problemWith(field, value) {
  if (field.kind === "text") return typeof value === "string" && value.trim() ? null : "Write something.";
  const isNumber = typeof value === "number" && Number.isFinite(value);
  if (isNumber && field.kind === "integer" && !Number.isInteger(value)) return "A whole number, please.";
  if (isNumber && value >= field.min && value <= field.max) return null;
  return field.max > 1e6 ? `A whole number from ${field.min} up.` : `A number from ${field.min} to ${field.max}.`;
}

/** Fills the form with a row for each field; `onChange()` is called after each change. Returns a function that resets all. */
export function buildSettingsForm(form, settings, onChange) {
  form.addEventListener("submit", (event) => event.preventDefault());
  const rows = FIELDS.map((field) => new Row(field, settings, onChange));
  form.append(...rows.map((row) => row.node));
  return () => {
    for (const row of rows) row.reset();
  };
}

class Row {
  constructor(field, settings, onChange) {
    this.field = field;
    this.settings = settings;
    this.onChange = onChange;
    const id = `setting-${field.name}`;
    const described = `${id}-hint`;
    this.hint = el("p", { class: "hint", id: described }, field.hint);
    this.clear = el(
      "button",
      { type: "button", class: "reset", title: "Back to the default", onclick: () => this.reset(true) },
      icon("close"),
      el("span", { class: "visually-hidden" }, `Reset ${field.label}`),
    );
    this.input =
      field.kind === "text"
        ? el("textarea", { id, rows: "3", placeholder: "None", "aria-describedby": described })
        : el("input", {
            id,
            type: "number",
            min: String(field.min),
            max: String(field.max),
            step: String(field.step ?? 1),
            placeholder: "default",
            inputmode: "decimal",
            autocomplete: "off",
            "aria-describedby": described,
          });
    this.slider =
      field.kind === "slider"
        ? el("input", {
            type: "range",
            min: String(field.min),
            max: String(field.max),
            step: String(field.step),
            "aria-label": field.label,
          })
        : null;
    this.input.addEventListener("input", () => this.#read(this.input.value, this.input.validity.badInput));
    this.slider?.addEventListener("input", () => {
      this.input.value = this.slider.value;
      this.#read(this.slider.value, false);
    });
    const head = el(
      "div",
      { class: "setting-head" },
      el("label", { for: id }, field.label),
      this.clear,
      field.kind === "text" ? null : this.input,
    );
    this.node = el(
      "div",
      { class: `setting setting-${field.kind}` },
      head,
      field.kind === "text" ? this.input : null,
      this.slider,
      this.hint,
    );
    this.input.value = String(settings.value(field.name) ?? "");
    this.#show(null);
  }

  reset(andFocus = false) {
    this.input.value = "";
    this.#read("", false);
    if (andFocus) this.input.focus();
  }

  #read(text, isUnreadable) {
    const isEmpty = text.trim() === "" && !isUnreadable;
    const value = this.field.kind === "text" ? text : isUnreadable ? NaN : Number(text);
    const problem = isEmpty ? null : problemWith(this.field, value);
    this.settings.set(this.field.name, isEmpty || problem ? undefined : value); // what cannot be sent counts as left alone
    this.#show(problem);
    this.onChange();
  }

  #show(problem) {
    const value = this.settings.value(this.field.name);
    const isChanged = value !== undefined;
    this.node.classList.toggle("is-changed", isChanged);
    this.clear.hidden = !isChanged && !problem;
    this.hint.textContent = problem ?? this.field.hint;
    this.hint.classList.toggle("is-problem", Boolean(problem));
    this.input.setAttribute("aria-invalid", String(Boolean(problem)));
    if (this.slider) this.slider.value = String(value ?? this.field.usual);
  }
}
