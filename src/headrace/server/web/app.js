/**
 * The chat page: puts the parts together and decides what a click or a key does. It knows every other module; none of them
 * knows it. The state is one Conversation, one Settings, the models, and the AbortController of a running answer.
 */

import { runAnswer } from "./answering.js";
import { apiKey, listModels, setApiKey } from "./api.js";
import { fillApiSheet } from "./api_sheet.js";
import { copyFrom } from "./clipboard.js";
import { Conversation } from "./conversation.js";
import { el } from "./dom.js";
import { Following } from "./following.js";
import { watchHealth } from "./health.js";
import { buildSettingsForm, Settings } from "./settings.js";
import { startTheme } from "./theme.js";
import { TurnView, whole } from "./turn_view.js";

/** Short tasks that a model of a hundred million parameters still does well. */
const EXAMPLES = [
  "What does a water wheel do?",
  "Write a haiku about rain.",
  "Write a Python function that adds two numbers.",
];

const byId = (id) => document.getElementById(id);
const question = byId("question");
const turnsNode = byId("turns");
const settingsDrawer = byId("settings");
const isWide = matchMedia("(min-width: 70rem)");
const isTouch = matchMedia("(pointer: coarse)");

const conversation = new Conversation();
const settings = new Settings();
const following = new Following(byId("to-latest"));
const views = new Map(); // turn -> TurnView
let models = [];
let model = null; // {id, maxModelLen}
let running = null; // AbortController of the answer that is coming

// ---------------------------------------------------------------------------------------------------- conversation

function ask(text) {
  const turn = conversation.ask(text);
  const view = show(turn);
  following.resume();
  answer(turn, view);
}

async function answer(turn, view) {
  const controller = new AbortController();
  running = controller;
  showRunning();
  view.start();
  announce("Answering.");
  if (!model) await loadModels();
  const body = { model: model?.id, messages: conversation.messages(settings.systemPrompt), ...settings.forRequest() };
  const onText = (piece) => {
    turn.text += piece;
    view.append(piece, () => following.keepUp());
  };
  const outcome = await runAnswer(body, controller.signal, onText, undefined, () => view.think());
  turn.outcome = { ...outcome, maxModelLen: model?.maxModelLen ?? null };
  if (!views.has(turn)) return; // asked again, or cleared, meanwhile
  view.finish();
  running = null;
  conversation.save();
  showRunning();
  showContextUse();
  following.keepUp();
  announce({ done: "The answer is complete.", stopped: "Stopped.", failed: "" }[outcome.status]); // a failure is an alert itself
  if (outcome.status === "failed") checkHealth();
}

/** The last question once more, perhaps in other words. */
function askAgain(text = conversation.last.question) {
  stop();
  dropView(conversation.last);
  conversation.dropLast();
  ask(text);
}

function startAnew() {
  stop();
  running = null;
  for (const turn of [...conversation.turns]) dropView(turn);
  conversation.clear();
  conversation.save();
  showRunning();
  showContextUse();
  question.focus();
}

function stop() {
  running?.abort();
}

function show(turn) {
  const view = new TurnView(turn);
  views.set(turn, view);
  turnsNode.append(view.node);
  byId("welcome").hidden = true;
  return view;
}

function dropView(turn) {
  views.get(turn).remove();
  views.delete(turn);
  byId("welcome").hidden = views.size > 0;
}

turnsNode.addEventListener("click", (event) => {
  const button = event.target.closest("[data-action]");
  if (!button) return;
  const turn = conversation.turns.find((candidate) => views.get(candidate).node.contains(button));
  const acts = {
    "copy-code": () => copyCode(button),
    "copy-answer": () => copyFrom(button, turn.text),
    settings: () => openSettings(button.dataset.field),
    again: () => askAgain(),
    edit: () => views.get(turn).edit(askAgain),
  };
  acts[button.dataset.action]();
});

function copyCode(button) {
  copyFrom(button, button.closest("figure").querySelector("code").textContent);
}

// -------------------------------------------------------------------------------------------------------- composer

function fitQuestion() {
  question.style.height = "auto";
  question.style.height = `${question.scrollHeight}px`; // its max-height is in frame.css
  byId("send").disabled = question.value.trim() === "";
}

function submit() {
  const text = question.value.trim();
  if (!text || running) return;
  question.value = "";
  fitQuestion();
  ask(text);
}

function showRunning() {
  const isRunning = running !== null;
  const hadFocus = [byId("stop"), byId("send")].includes(document.activeElement);
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  document.body.classList.toggle("is-running", isRunning);
  if (hadFocus) (isRunning ? byId("stop") : question).focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
byId("stop").addEventListener("click", stop);
question.addEventListener("input", fitQuestion);
question.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey && !isTouch.matches) {
    event.preventDefault();
    submit();
  } else if (event.key === "ArrowUp" && question.value === "" && conversation.last && !running) {
    event.preventDefault();
    views.get(conversation.last).edit(askAgain);
  }
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (event.key === "Escape" && settingsDrawer.contains(event.target)) closeSettings();
  else if (event.key === "Escape" && running && !event.target.closest("dialog")) stop();
  else if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    question.focus();
  }
});

// ---------------------------------------------------------------------------------------------------------- around

async function loadModels() {
  try {
    models = distinct(await listModels());
  } catch (error) {
    if (error.code === "invalid_api_key") askForKey(); // anything else the banner or the answer's own error says
    return;
  }
  const chosen = models.find((candidate) => candidate.id === model?.id);
  chooseModel(chosen ?? models[0] ?? null);
}

/** One name for each model: a server may list several for the same files. */
function distinct(cards) {
  return cards.filter((card, i) => cards.findIndex((other) => other.root === card.root) === i);
}

function askForKey() {
  byId("model").replaceChildren(
    el("button", { type: "button", class: "link", onclick: () => openSettings("api-key") }, "Enter the API key"),
  );
}

function chooseModel(chosen) {
  model = chosen;
  if (!model) return;
  const choices = models.map((candidate) =>
    el("option", { value: candidate.id, selected: candidate === model }, candidate.id),
  );
  const select = el(
    "select",
    { "aria-label": "Model", onchange: () => chooseModel(models[select.selectedIndex]) },
    ...choices,
  );
  const name = models.length > 1 ? select : el("span", { class: "model-name", title: model.id }, model.id);
  const length =
    model.maxModelLen === null
      ? null
      : el("span", { class: "model-length" }, `${whole(model.maxModelLen)}-token context`);
  byId("model").replaceChildren(name, ...(length ? [length] : []));
  question.placeholder = `Ask ${model.id}`;
  fillApiSheet(model.id, apiKey() !== "");
  showContextUse();
}

function showContextUse() {
  const used = conversation.last?.outcome?.figures?.numContextTokens ?? null;
  const of = model?.maxModelLen ? ` of ${whole(model.maxModelLen)}` : "";
  byId("context-use").textContent = used === null ? "" : `${whole(used)}${of} tokens used`;
  byId("context-use").title = "Question, history and answer together, of the model's context";
}

function openSettings(focusId = null) {
  if (!settingsDrawer.open) {
    if (isWide.matches) settingsDrawer.show();
    else settingsDrawer.showModal();
  }
  showSettingsState();
  if (focusId) byId(focusId).focus();
}

function closeSettings() {
  settingsDrawer.close();
}

function showSettingsState() {
  const isOpen = settingsDrawer.open;
  byId("settings-toggle").setAttribute("aria-expanded", String(isOpen));
  document.body.classList.toggle("has-drawer", isOpen && isWide.matches);
  byId("settings-count").hidden = settings.numChanged === 0;
  byId("settings-count").textContent = String(settings.numChanged);
  byId("settings-count").title = `${settings.numChanged} changed`;
}

function announce(text) {
  byId("announcer").textContent = text;
}

function closeOnOutsideClick(dialog) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // the backdrop is the dialog itself; its padding belongs to a child
  });
}

const resetSettings = buildSettingsForm(byId("settings-form"), settings, showSettingsState);
byId("settings-toggle").addEventListener("click", () => (settingsDrawer.open ? closeSettings() : openSettings()));
byId("settings-close").addEventListener("click", closeSettings);
byId("settings-reset").addEventListener("click", resetSettings);
byId("api-key").value = apiKey();
byId("access-form").addEventListener("submit", (event) => event.preventDefault()); // Enter fires "change" all the same
byId("api-key").addEventListener("change", () => {
  setApiKey(byId("api-key").value.trim());
  loadModels();
});
settingsDrawer.addEventListener("close", showSettingsState);
isWide.addEventListener("change", () => settingsDrawer.open && closeSettings());
byId("new-conversation").addEventListener("click", startAnew);
byId("api-toggle").addEventListener("click", () => byId("api").showModal());
byId("api-close").addEventListener("click", () => byId("api").close());
byId("api").addEventListener("click", (event) => {
  const button = event.target.closest("[data-action=copy-code]");
  if (button) copyCode(button);
});
closeOnOutsideClick(byId("api"));
closeOnOutsideClick(settingsDrawer);
addEventListener("pagehide", () => {
  stop(); // the browser would break the connection, and that would look like a failure
  conversation.save();
});

byId("examples").append(
  ...EXAMPLES.map((text) =>
    el("li", {}, el("button", { type: "button", class: "example", onclick: () => !running && ask(text) }, text)),
  ),
);

startTheme(byId("theme-toggle"));
fillApiSheet("default", false);
conversation.restore();
for (const turn of conversation.turns) show(turn).finish();
showSettingsState();
fitQuestion();
following.resume();
if (!isTouch.matches) question.focus();
const checkHealth = watchHealth(byId("banner"), loadModels);
loadModels();
