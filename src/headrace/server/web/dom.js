/**
 * Builds DOM nodes. Strings become text nodes, never markup: nothing on this page assigns innerHTML, so what a model or a
 * server says cannot become an element.
 */

const SVG = "http://www.w3.org/2000/svg";

/** `el("button", {class: "x", type: "button", onclick: f}, "Copy")`; attributes that are null or false are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An icon of the sprite in index.html; it is decoration, the button beside it has the words. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * Makes the children of `parent` from index `from` on equal to `nodes`, touching only what differs: selection, scroll
 * positions and focus in what stays the same survive.
 */
export function reconcile(parent, nodes, from = 0) {
  nodes.forEach((node, i) => {
    const old = parent.childNodes[from + i];
    if (!old) parent.append(node);
    else if (!old.isEqualNode(node)) replaceOrDescend(old, node);
  });
  while (parent.childNodes.length > from + nodes.length) parent.lastChild.remove();
}

function replaceOrDescend(old, node) {
  if (old.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) {
    if (node.data.startsWith(old.data)) old.appendData(node.data.slice(old.data.length));
    else old.data = node.data;
  } else if (old.nodeType === Node.ELEMENT_NODE && old.cloneNode(false).isEqualNode(node.cloneNode(false))) {
    reconcile(old, [...node.childNodes]);
  } else {
    old.replaceWith(node);
  }
}
