/**
 * Keeps the newest text in sight while an answer grows, unless the reader has scrolled up to read. Knows the window's scroll
 * position and the button that leads back down.
 */

const NEAR_PX = 48;

export class Following {
  #isOn = true;
  #button;
  #lastTop = 0;

  constructor(button) {
    this.#button = button;
    button.addEventListener("click", () => this.resume());
    addEventListener("scroll", () => this.#scrolled(), { passive: true });
    addEventListener("resize", () => this.keepUp());
  }

  /** The content grew. */
  keepUp() {
    if (this.#isOn) this.#toEnd();
    else this.#button.hidden = this.#distance() < NEAR_PX;
  }

  /** The reader did something that belongs at the end. */
  resume() {
    this.#isOn = true;
    this.#button.hidden = true;
    this.#toEnd();
  }

  #scrolled() {
    const top = scrollY;
    if (top < this.#lastTop - 2) this.#isOn = false; // only a reader scrolls up
    if (this.#distance() < NEAR_PX) this.#isOn = true;
    this.#lastTop = top;
    this.#button.hidden = this.#isOn || this.#distance() < NEAR_PX;
  }

  #distance() {
    return document.documentElement.scrollHeight - innerHeight - scrollY;
  }

  #toEnd() {
    scrollTo({ top: document.documentElement.scrollHeight, behavior: "instant" });
    this.#lastTop = scrollY;
  }
}
