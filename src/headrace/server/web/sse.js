/**
 * Server-sent events from raw bytes: knows the wire format (WHATWG HTML, "event stream interpretation") and nothing of
 * chats, fetch or JSON. Chunks may end anywhere, inside a line, a CRLF or a character.
 */

export class SseParser {
  #decoder = new TextDecoder("utf-8"); // drops a byte order mark, keeps half characters for the next chunk
  #rest = ""; // an incomplete line
  #data = [];
  #event = "";

  /** Takes bytes; returns the events they completed, each `{event, data}`. */
  push(bytes) {
    return this.#take(this.#decoder.decode(bytes, { stream: true }), false);
  }

  /** The stream is over: returns a last event whose closing blank line never came, since servers do forget it. */
  end() {
    const events = this.#take(this.#decoder.decode(), true);
    this.#dispatch(events);
    return events;
  }

  #take(text, atEnd) {
    const buffer = this.#rest + text;
    const events = [];
    let start = 0;
    for (let i = start; i < buffer.length; i++) {
      const char = buffer[i];
      if (char !== "\n" && char !== "\r") continue;
      if (char === "\r" && i + 1 === buffer.length && !atEnd) break; // its "\n" may be in the next chunk
      this.#line(buffer.slice(start, i), events);
      if (char === "\r" && buffer[i + 1] === "\n") i++;
      start = i + 1;
    }
    this.#rest = buffer.slice(start);
    if (atEnd && this.#rest) {
      this.#line(this.#rest, events);
      this.#rest = "";
    }
    return events;
  }

  #line(line, events) {
    if (line === "") return this.#dispatch(events);
    if (line[0] === ":") return; // a comment, used as a keep-alive
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value[0] === " ") value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
  }

  #dispatch(events) {
    if (this.#data.length) events.push({ event: this.#event || "message", data: this.#data.join("\n") });
    this.#data = [];
    this.#event = "";
  }
}
