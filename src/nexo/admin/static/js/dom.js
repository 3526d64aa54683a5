/** Elements from data. Text only ever becomes a text node, so no value can become markup. */

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "text", "g", "rect", "circle", "title"]);

/** `h("button.primary", {onclick}, "Save")`; props starting with `on` are handlers. */
export function h(spec, ...rest) {
  const [tag, ...classes] = spec.split(".");
  const element = SVG_TAGS.has(tag)
    ? document.createElementNS(SVG, tag)
    : document.createElement(tag || "div");
  if (classes.length) element.setAttribute("class", classes.join(" "));
  const first = rest[0];
  const isProps = first && typeof first === "object" && !(first instanceof Node) && !Array.isArray(first);
  if (isProps) setProps(element, rest.shift());
  element.append(...nodes(rest));
  return element;
}

function setProps(element, props) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) {
      element[name] = value;
      (element.handlers ??= []).push(name);
    } else if (name === "class") {
      element.setAttribute("class", [element.getAttribute("class"), value].filter(Boolean).join(" "));
    } else if (name === "value" || name === "checked") {
      element[name] = value;
    } else if (name === "style") {
      Object.assign(element.style, value);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Make `current` look like `wanted`, keeping elements, so that focus and scrolling survive. */
export function morph(current, wanted) {
  if (current.nodeType !== wanted.nodeType || current.nodeName !== wanted.nodeName) {
    current.replaceWith(wanted);
    return;
  }
  if (current.nodeType === Node.TEXT_NODE) {
    if (current.data !== wanted.data) current.data = wanted.data;
    return;
  }
  if (current.dataset?.keep !== undefined && current.dataset.keep === wanted.dataset.keep) return;
  morphAttributes(current, wanted);
  morphHandlers(current, wanted);
  morphChildren(current, wanted);
}

function morphAttributes(current, wanted) {
  for (const { name } of [...current.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "open") current.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (current.getAttribute(name) !== value && name !== "style") current.setAttribute(name, value);
  }
  if (wanted.style) current.style.cssText = wanted.style.cssText;
}

function morphHandlers(current, wanted) {
  for (const name of current.handlers ?? []) current[name] = null;
  for (const name of wanted.handlers ?? []) current[name] = wanted[name];
  current.handlers = wanted.handlers;
}

function morphChildren(current, wanted) {
  const keyed = new Map();
  for (const child of current.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = current.firstChild;
  for (const next of [...wanted.childNodes]) {
    const same = next.dataset?.key ? keyed.get(next.dataset.key) : undefined;
    if (same && same !== at) current.insertBefore(same, at);
    else if (!same && (!at || at.dataset?.key || next.dataset?.key)) {
      current.insertBefore(next, at);
      continue;
    }
    const target = same ?? at;
    at = target.nextSibling;
    morph(target, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}
