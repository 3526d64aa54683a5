/** Questions to the user: forms, and confirmations before anything is destroyed. */

import { h } from "./dom.js";
import { button, toast } from "./ui.js";

/** Show `content` in a modal dialog until it is closed; `act` is a button that closes it too. */
export function show(title, content, { wide = false, act } = {}) {
  const dialog = h("dialog", { class: wide ? "wide" : "", "aria-label": title },
    h("div.inner", h("h2", title), content,
      h("footer", act, button("Close", () => dialog.close()))));
  act?.addEventListener("click", () => dialog.close());
  open(dialog);
  return dialog;
}

/** Close all dialogs because their page is left; the next page gets the focus. */
export function closeAll() {
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.onclose = null;
    dialog.close();
    dialog.remove();
  }
}

function open(dialog) {
  const before = document.activeElement;
  dialog.onclose = () => {
    dialog.remove();
    if (before?.isConnected) before.focus();
    else document.getElementById("main").focus();
  };
  document.body.append(dialog);
  dialog.showModal();
}

/** Ask before something is destroyed, then do it. */
export function confirm(title, message, verb, act, typed) {
  const fields = typed ? [{ name: "typed", label: `Type ${typed} to confirm`, required: true }] : [];
  form(title, fields, verb, async (given) => {
    if (typed && given.typed !== typed) throw new Error(`that is not ${typed}`);
    return act();
  }, { message, danger: true });
}

/**
 * Ask for fields, then act. A field is `{name, label, type, value, required, hint, options, wide}`
 * and more; types are those of inputs, and `textarea`, `select`, `checkbox`, `value` (a value to
 * write), `json` (an object). Those that are `rare` are folded away. `act(given)` returns the message for success;
 * an error with a `field` is shown there.
 */
export function form(title, fields, verb, act, { message, danger = false } = {}) {
  const problem = h("p.problem", { role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: danger ? "danger solid" : "primary" }, verb);
  const body = h("form", { method: "dialog", novalidate: false },
    h("h2", title),
    message ? h("p.message", message) : null,
    folded(fields),
    problem,
    h("footer", button("Cancel", () => dialog.close()), submit));
  const dialog = h("dialog", { "aria-label": title }, body);
  body.onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    clear(body, problem);
    try {
      const said = await act(checked(read(body, fields), fields));
      dialog.close();
      toast(said ?? "Done");
      document.dispatchEvent(new CustomEvent("nexo-changed"));
    } catch (error) {
      if (!blame(body, error)) {
        problem.textContent = error.message;
        problem.hidden = false;
      }
    } finally {
      submit.disabled = false;
    }
  };
  open(dialog);
  const first = body.querySelector("input, textarea, select");
  (first ?? submit).focus();
}

function folded(fields) {
  const rare = fields.filter((spec) => spec.rare);
  const usual = fields.filter((spec) => !spec.rare);
  const more = h("details", h("summary", "More options"), h("div.fields", rare.map(field)));
  more.addEventListener("invalid", () => { more.open = true; }, true);
  return [usual.length ? h("div.fields", usual.map(field)) : null, rare.length ? more : null];
}

/** Show an error at its field; false if no field is at fault. */
function blame(body, error) {
  const input = error.field && body.elements[error.field];
  const place = input && body.querySelector(`#f-${error.field}-problem`);
  if (!place) return false;
  place.textContent = error.message;
  place.hidden = false;
  input.setAttribute("aria-invalid", "true");
  input.closest("details")?.setAttribute("open", "");
  input.focus();
  return true;
}

function clear(body, problem) {
  for (const place of [problem, ...body.querySelectorAll(".field .problem")]) place.hidden = true;
  for (const input of body.querySelectorAll("[aria-invalid]")) input.removeAttribute("aria-invalid");
}

function field(spec) {
  const id = `f-${spec.name}`;
  if (spec.type === "value") return valueField(spec, id);
  if (spec.type === "checkbox") {
    return h("div.field", { class: spec.wide ? "wide" : "" },
      h("div.check", h("input", { type: "checkbox", id, name: spec.name, checked: spec.value, "aria-describedby": describers(spec, id) }), h("label", { for: id }, spec.label)),
      notes(spec, id));
  }
  return h("div.field", { class: spec.wide ? "wide" : "" },
    h("label", { for: id }, spec.label), control(spec, id), notes(spec, id));
}

function notes(spec, id) {
  return [
    spec.hint ? h("span.hint", { id: `${id}-hint` }, spec.hint) : null,
    h("span.problem", { id: `${id}-problem`, role: "alert", hidden: true }),
  ];
}

function describers(spec, id) {
  return spec.hint ? `${id}-problem ${id}-hint` : `${id}-problem`;
}

function control(spec, id) {
  const common = { id, name: spec.name, required: spec.required, "aria-describedby": describers(spec, id) };
  if (spec.type === "select") {
    return h("select", common, spec.options.map(([value, text]) => h("option", { value, selected: value === spec.value }, text)));
  }
  if (spec.type === "textarea") return h("textarea", { ...common, value: spec.value ?? "", placeholder: spec.placeholder ?? " " });
  return h("input", {
    ...common, type: spec.type === "json" ? "text" : spec.type ?? "text", value: spec.value ?? "", placeholder: spec.placeholder ?? " ",
    min: spec.min, max: spec.max, step: spec.step, autocomplete: spec.autocomplete ?? "off",
    spellcheck: spec.spellcheck,
  });
}

function valueField(spec, id) {
  const types = [["json", "JSON"], ["text", "Text"], ["bytes", "Base64"]];
  const given = spec.value ?? { type: "json", text: "" };
  return h("div.field.wide",
    h("div.row", h("label", { for: id }, spec.label ?? "Value"),
      h("select.short", { name: `${spec.name}-type`, "aria-label": "Type of the value" },
        types.map(([type, text]) => h("option", { value: type, selected: type === given.type }, text)))),
    h("textarea", { id, name: spec.name, value: given.text, spellcheck: "false", placeholder: '{"hello": "world"}', "aria-describedby": describers(spec, id) }),
    notes(spec, id));
}

/** Check values before the server does, with clearer errors; each error names its field. */
function checked(given, fields) {
  for (const { name, type } of fields) {
    if (type === "value" && given[name].type === "json") checkJson(name, given[name].text);
    if (type === "json" && given[name] !== undefined) given[name] = object(name, given[name]);
  }
  return given;
}

function checkJson(name, text) {
  if (!text.trim()) throw wrong(name, 'Write a value such as {"hello": "world"}, or choose Text');
  try {
    JSON.parse(text);
  } catch (error) {
    throw wrong(name, `This is not JSON: ${error.message}. Choose Text to send it as it is`);
  }
}

function object(name, text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    throw wrong(name, `This is not JSON: ${error.message}`);
  }
  if (typeof found !== "object" || !found || Array.isArray(found)) throw wrong(name, 'Write an object such as {"name": "value"}');
  return found;
}

function wrong(field, message) {
  return Object.assign(new Error(message), { field });
}

function read(body, fields) {
  const given = {};
  for (const spec of fields) {
    const input = body.elements[spec.name];
    if (spec.type === "checkbox") given[spec.name] = input.checked;
    else if (spec.type === "value") given[spec.name] = { type: body.elements[`${spec.name}-type`].value, text: input.value };
    else if (spec.type === "number") given[spec.name] = input.value === "" ? undefined : Number(input.value);
    else given[spec.name] = input.value === "" ? undefined : input.value;
  }
  return given;
}
