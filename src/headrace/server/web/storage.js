/**
 * What the page remembers: JSON under a key, in localStorage (settings, for good) or sessionStorage (the conversation, for
 * this tab). Storage may be blocked, full, or hold what an older page wrote; the page works without it.
 */

export const forGood = open("localStorage");
export const forThisTab = open("sessionStorage");

function open(kind) {
  return {
    /** The remembered value, or null. */
    recall(key) {
      try {
        return JSON.parse(window[kind].getItem(key));
      } catch {
        return null;
      }
    },
    /** Keeps a value; null forgets it. */
    remember(key, value) {
      try {
        if (value === null) window[kind].removeItem(key);
        else window[kind].setItem(key, JSON.stringify(value));
      } catch {
        // blocked or full: nothing is remembered, everything else works
      }
    },
  };
}
