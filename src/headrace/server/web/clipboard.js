/** Copies text and says so on the button. Knows that the clipboard API exists only on https and localhost. */

import { el, icon } from "./dom.js";

const SHOWN_MS = 1600;

/** Copies, and shows on `button` for a moment whether it worked. */
export async function copyFrom(button, text) {
  const isCopied = await copy(text);
  const before = [...button.childNodes];
  if (button.dataset.copied) return; // still showing the last time
  button.dataset.copied = "yes";
  const words = isCopied ? "Copied" : "Not allowed";
  const isIcon = button.classList.contains("button-icon");
  button.replaceChildren(
    icon(isCopied ? "check" : "warning"),
    el("span", { class: isIcon ? "visually-hidden" : null, role: "status" }, words),
  );
  setTimeout(() => {
    delete button.dataset.copied;
    button.replaceChildren(...before);
  }, SHOWN_MS);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text); // over plain http on another host there is no navigator.clipboard
  }
}

function copyBySelection(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  const focused = document.activeElement;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus?.();
  return isCopied;
}
