/** Options of queues and streams as a table and as forms, made from the server's descriptions. */

import { get, post } from "./api.js";
import { form } from "./dialogs.js";
import { h } from "./dom.js";
import { href, staying } from "./router.js";
import { button, panel, table, toast } from "./ui.js";

const UNITS = {
  ms: { sizes: [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]], say: "In ms, s, m, h or d." },
  bytes: { sizes: [["GiB", 1024 ** 3], ["MiB", 1024 ** 2], ["KiB", 1024], ["", 1]], say: "In bytes, KiB, MiB or GiB." },
};

/** What the options of one `kind` ("queue" or "stream") are set to, with a way to change them. */
export async function options(kind, name, values, lacks) {
  const known = await get(`/${kind}/options`);
  const columns = [
    { title: "Option", cell: title },
    { title: "Value", class: "mono", cell: (option) => written(option, values[option.name]) },
    { title: "Meaning", class: "hide-s prose", cell: (option) => option.help },
  ];
  const changeable = known.filter((option) => !option.fixed);
  const change = () => ask("Change options", [], changeable, values, "Change", async (given, changed) => {
    await post(`/${kind}/update`, { [kind]: name, options: changed });
    return "Changed";
  });
  return panel("Options", table("Options", columns, known, { key: (option) => option.name }), button("Change", change, { small: true, lacks }));
}

/** Ask for the name and options of a new one, create it and go there. */
export async function create(kind, placeholder) {
  let known;
  const still = staying();
  try {
    known = await get(`/${kind}/options`);
  } catch (error) {
    return toast(error.message, true);
  }
  if (!still()) return undefined;
  const values = Object.fromEntries(known.map((option) => [option.name, option.default]));
  const first = { name: kind, label: "Name", required: true, wide: true, placeholder };
  return ask(`Create a ${kind}`, [first], known, values, "Create", async ({ [kind]: name }, chosen) => {
    await post(`/${kind}/create`, { [kind]: name, options: chosen });
    location.hash = href(kind, { name });
    return `Created ${name}`;
  });
}

/** `act(given, options)` gets those options that were changed. */
function ask(what, first, known, values, verb, act) {
  const fields = known.map((option) => field(option, values[option.name]));
  form(what, [...first, ...fields], verb, (given) => {
    const changed = fields.filter((spec) => given[spec.name] !== spec.was);
    return act(given, Object.fromEntries(changed.map((spec) => [spec.name, given[spec.name]])));
  });
}

const title = (option) => [option.title, " ", h("code", option.name)];

function field(option, value) {
  const unit = UNITS[option.unit];
  const text = written(option, value);
  const base = { name: option.name, rare: !option.usual, label: title(option), value: text, was: text, hint: hint(option) };
  if (option.kind === "flag") return { ...base, type: "checkbox", value, was: value };
  if (option.kind === "choice") return { ...base, type: "select", options: option.choices.map((choice) => [choice, choice]) };
  if (unit) return { ...base, required: true, spellcheck: "false" };
  return { ...base, type: "number", required: true, was: value, min: option.least, max: option.most, step: option.kind === "whole" ? 1 : "any" };
}

function hint(option) {
  if (option.kind === "flag") return option.help;
  const unit = UNITS[option.unit];
  const plain = option.unit && !unit ? ` ${option.unit}` : "";
  return [option.help, `Default: ${written(option, option.default)}${plain}.`, unit?.say].filter(Boolean).join(" ");
}

/** A value in the largest unit that leaves a whole number, as the server reads it too. */
function written(option, value) {
  const unit = UNITS[option.unit];
  if (!unit || !value) return String(value);
  const [name, size] = unit.sizes.find(([, each]) => value % each === 0);
  return `${value / size}${name}`;
}
