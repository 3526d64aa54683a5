"""Accessibility checks in the manner of axe: names, labels, structure, contrast."""
# ruff: noqa: E501 - JavaScript, as the browser runs it

from __future__ import annotations

from playwright.sync_api import Page

_CHECKS = r"""
() => {
  const found = [];
  const visible = (e) => e.checkVisibility({visibilityProperty: true});
  const name = (e) => (e.getAttribute("aria-label") || e.innerText || e.title ||
    [...e.querySelectorAll("img")].map((i) => i.alt).join("") || "").trim();
  const where = (e) => e.outerHTML.slice(0, 120);

  for (const e of document.querySelectorAll("a, button, summary")) {
    if (visible(e) && !name(e)) found.push("no name: " + where(e));
  }
  for (const e of document.querySelectorAll("input, select, textarea")) {
    const label = e.getAttribute("aria-label") || (e.id && document.querySelector(`label[for="${CSS.escape(e.id)}"]`));
    if (visible(e) && !label) found.push("no label: " + where(e));
  }
  for (const e of document.querySelectorAll("img")) if (!e.hasAttribute("alt")) found.push("no alt: " + where(e));
  for (const e of document.querySelectorAll("svg")) {
    if (!e.closest("[aria-hidden=true]") && !(e.getAttribute("role") === "img" && e.getAttribute("aria-label")))
      found.push("unnamed picture: " + where(e));
  }
  for (const e of document.querySelectorAll("table")) {
    if (!e.getAttribute("aria-label")) found.push("unnamed table: " + where(e));
    for (const th of e.querySelectorAll("th")) if (!th.textContent.trim()) found.push("empty heading: " + where(th));
  }
  if (document.querySelectorAll("h1").length !== 1) found.push("there must be one h1");
  if (document.querySelectorAll("main").length !== 1) found.push("there must be one main");
  if (!document.documentElement.lang) found.push("no language");
  if (!document.title) found.push("no title");
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) found.push("id twice: " + id);

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const ground = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(rgba(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const seen = new Set();
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !visible(e) || e.closest("[disabled], noscript, .skip, svg, dialog")) continue;
    const below = ground(e);
    const [a, b] = [light(over(rgba(getComputedStyle(e).color), below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const key = `${e.tagName}.${e.className}`;
    if (ratio < 4.5 && !seen.has(key)) {
      seen.add(key);
      found.push(`contrast ${ratio.toFixed(2)}: ${where(e)}`);
    }
  }
  return found;
}
"""


def problems_of(page: Page) -> list[str]:
    """What is wrong with the page as it is now."""
    found: list[str] = page.evaluate(_CHECKS)
    return found
