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
 * Ask for fields, then act. A field is `{name, label, type, value, required, hint, options, wide}`;
 * types are those of inputs, and `textarea`, `select`, `checkbox`, `value` (a value to write).
 * `act(given)` returns what to say when it worked.
 */
export function form(title, fields, verb, act, { message, danger = false } = {}) {
  const problem = h("p.problem", { role: "alert", hidden: true });
  const submit = h("button", { type: "submit", class: danger ? "danger solid" : "primary" }, verb);
  const body = h("form", { method: "dialog", novalidate: false },
    h("h2", title),
    message ? h("p.message", message) : null,
    fields.length ? h("div.fields", fields.map(field)) : null,
    problem,
    h("footer", button("Cancel", () => dialog.close()), submit));
  const dialog = h("dialog", { "aria-label": title }, body);
  body.onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const said = await act(read(body, fields));
      dialog.close();
      toast(said ?? "Done");
      document.dispatchEvent(new CustomEvent("nexo-changed"));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    } finally {
      submit.disabled = false;
    }
  };
  open(dialog);
  const first = body.querySelector("input, textarea, select");
  (first ?? submit).focus();
}

function field(spec) {
  const id = `f-${spec.name}`;
  if (spec.type === "value") return valueField(spec, id);
  if (spec.type === "checkbox") {
    return h("div.field.check", { class: spec.wide ? "wide" : "" },
      h("input", { type: "checkbox", id, name: spec.name, checked: spec.value }), h("label", { for: id }, spec.label));
  }
  return h("div.field", { class: spec.wide ? "wide" : "" },
    h("label", { for: id }, spec.label), control(spec, id),
    spec.hint ? h("span.hint", { id: `${id}-hint` }, spec.hint) : null);
}

function control(spec, id) {
  const common = { id, name: spec.name, required: spec.required, "aria-describedby": spec.hint ? `${id}-hint` : undefined };
  if (spec.type === "select") {
    return h("select", common, spec.options.map(([value, text]) => h("option", { value, selected: value === spec.value }, text)));
  }
  if (spec.type === "textarea") return h("textarea", { ...common, value: spec.value ?? "", placeholder: spec.placeholder ?? " " });
  return h("input", {
    ...common, type: spec.type ?? "text", value: spec.value ?? "", placeholder: spec.placeholder ?? " ",
    min: spec.min, max: spec.max, step: spec.step, autocomplete: spec.autocomplete ?? "off",
  });
}

function valueField(spec, id) {
  const types = [["json", "JSON"], ["text", "Text"], ["bytes", "Base64"]];
  const given = spec.value ?? { type: "json", text: "" };
  return h("div.field.wide",
    h("div.row", h("label", { for: id }, spec.label ?? "Value"),
      h("select.short", { name: `${spec.name}-type`, "aria-label": "Type of the value" },
        types.map(([type, text]) => h("option", { value: type, selected: type === given.type }, text)))),
    h("textarea", { id, name: spec.name, value: given.text, spellcheck: "false", placeholder: '{"hello": "world"}' }));
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
