/**
 * Light or dark: follows the system until the reader chooses otherwise, and again once the choice agrees with it. Knows the
 * toggle button and one key of storage (theme_early.js reads it, too); the colours are in theme.css.
 */

import { forGood } from "./storage.js";

export function startTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const systems = () => (system.matches ? "dark" : "light");
  const current = () => root.dataset.theme ?? systems();
  const other = () => (current() === "dark" ? "light" : "dark");

  function label() {
    button.title = `Switch to the ${other()} theme`;
    button.querySelector(".visually-hidden").textContent = button.title;
    button.querySelector("use").setAttribute("href", other() === "dark" ? "#icon-moon" : "#icon-sun");
  }

  button.addEventListener("click", () => {
    const chosen = other();
    if (chosen === systems()) delete root.dataset.theme;
    else root.dataset.theme = chosen;
    forGood.remember("headrace.theme", root.dataset.theme ?? null);
    label();
  });
  system.addEventListener("change", label);
  label();
}
