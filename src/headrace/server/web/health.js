/**
 * Watches /health and says so at the top of the page when the engine is down. Gentle: rarely while all is well, a little
 * more often while not, never while the page is hidden.
 */

import { findTrouble } from "./api.js";
import { icon } from "./dom.js";

const WELL_MS = 20_000;
const DOWN_MS = 4_000;

/** Returns `checkNow()`, for when something else failed. */
export function watchHealth(banner, onRecovered) {
  let timer = 0;
  let isDown = false;

  async function check() {
    clearTimeout(timer);
    const trouble = await findTrouble();
    if (trouble) banner.replaceChildren(icon("warning"), `${trouble} This page keeps looking for it.`);
    banner.hidden = !trouble;
    if (isDown && !trouble) onRecovered();
    isDown = Boolean(trouble);
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(check, isDown ? DOWN_MS : WELL_MS);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(timer);
    else check();
  });
  check();
  return check;
}
