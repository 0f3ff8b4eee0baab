// Elements, texts and messages. Text is only ever set as text: nothing here reads HTML.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

export const path = (...parts) => "#/" + parts.map(encodeURIComponent).join("/");

export function withQuery(address, query) {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "" && value !== false) given.set(name, value === true ? "1" : value);
  }
  const text = given.toString();
  return text ? `${address}?${text}` : address;
}

export function number(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return String(value);
  return String(Number(value.toPrecision(5)));
}

export function words(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}

// A number with its unit, which stay on one line.
export const amount = (value, unit) => `${value}\u00A0${unit}`;

export const percent = (value) => (value === null || value === undefined ? "" : amount(words(value), "%"));

export function bytes(value) {
  if (value === null || value === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) { value /= 1024; place += 1; }
  return amount(value >= 100 || place === 0 ? Math.round(value) : value.toFixed(1), units[place]);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 60) return amount(seconds < 10 ? seconds.toFixed(1) : Math.round(seconds), "s");
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${amount(minutes, "min")} ${amount(Math.round(seconds % 60), "s")}`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${amount(hours, "h")} ${amount(minutes % 60, "min")}` : `${amount(Math.floor(hours / 24), "d")} ${amount(hours % 24, "h")}`;
}

export function when(seconds) {
  return seconds === null || seconds === undefined ? "" : new Date(seconds * 1000).toLocaleString(undefined,
    { dateStyle: "medium", timeStyle: "medium" });
}

// Colours of a trial's states, and of the events of its life; what waits has none.
const KIND = { running: "info", finished: "good", stopped: "calm", failed: "bad", paused: "warn", interrupted: "warn",
  RUNNING: "info", TERMINATED: "good", ERROR: "bad", PAUSED: "warn" };
export const kindOf = (state) => KIND[state] ?? "";
export const stateWords = (state) => (state === "stopped" ? "stopped early" : state.toLowerCase());
export const badge = (state, kind) => h("span", { class: `badge ${kind ?? kindOf(state)}` }, kind === undefined && state === "stopped" ? stateWords(state) : state);
export const isFeasible = (row) => !(row.metrics.trainkit_constraint_violation > 0);
export const stateOf = (row) => [badge(row.state), !isFeasible(row) ? [" ", badge("infeasible", "warn")] : null];

// Why a trial is in its state, where this says more than the state.
export const whyOf = (row) => { const why = row.error ?? row.reason; return why === row.state ? "" : why; };

export function meter(counts, total) {
  const all = Math.max(total ?? 0, Object.values(counts).reduce((sum, each) => sum + each, 0)) || 1;
  const label = Object.entries(counts).map(([name, count]) => `${count} ${stateWords(name)}`).join(", ") || "no trial";
  return h("div", { class: "meter", role: "img", "aria-label": label, title: label },
    Object.entries(counts).map(([name, count]) => h("i", { class: kindOf(name), style: { width: `${(100 * count) / all}%` } })));
}

export const tile = (value, label, title) => h("div", { class: "tile", title }, h("b", null, value), h("span", null, label));

// What an experiment is judged by; a metric without a mode has no best.
export const objectivesOf = (experiment) => experiment.objectives.map(({ metric, mode }) => `${mode ?? "no mode for"} ${metric}`).join(", ");

export function card(title, actions, ...content) {
  return h("section", { class: "card", "aria-label": title },
    h("div", { class: "head" }, h("h2", null, title), h("span", { class: "grow" }), actions), content);
}

// A table of texts: heads, and rows of nodes or values. Numbers stand to the right.
export function plainTable(label, heads, rows, { tall = false } = {}) {
  return h("div", { class: `scroll${tall ? " tall" : ""}`, tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("thead", null, h("tr", null, heads.map((each, place) => h("th", { scope: "col", class: typeof rows[0]?.[place] === "number" ? "num" : null }, each)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) =>
        h("td", { class: typeof cell === "number" ? "num" : null }, cell instanceof Node ? cell : words(cell))))))));
}

// A setting as a program writes it: an object by its class and the arguments that are not None.
function spelled(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return `"${value}"`;
  if (typeof value !== "object") return words(value);
  if (Array.isArray(value)) return `[${value.map(spelled).join(", ")}]`;
  const given = (some) => Object.entries(some).filter(([, each]) => each !== null && !(Array.isArray(each) && !each.length));
  if (typeof value.class === "string" && value.arguments) return `${value.class}(${given(value.arguments).map(([name, each]) => `${name}=${spelled(each)}`).join(", ")})`;
  return `{${Object.entries(value).map(([name, each]) => `"${name}": ${spelled(each)}`).join(", ")}}`;
}

// What a setting is, also where it is none.
export const shown = (value) => (value === null || value === undefined ? h("span", { class: "soft" }, "none") : typeof value === "object" ? spelled(value) : words(value));

export function pairs(label, values) {
  const rows = Object.entries(values);
  if (!rows.length) return h("p", { class: "soft none" }, "none");
  return h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": label },
    h("table", null, h("tbody", null, rows.map(([name, value]) =>
      h("tr", null, h("th", { scope: "row" }, name), h("td", null, value instanceof Node ? value : shown(value)))))));
}

export function toast(text, kind = "") {
  const shown = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 9000);
}

export const failure = (error) => h("section", { class: "card problem", role: "alert" },
  h("h2", null, "This page cannot be shown"), h("p", null, error.message ?? String(error)));

export function debounced(action, wait) {
  let timer;
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => action(...given), wait); };
}

// Do what somebody asked for; say so if it fails.
export const attempt = (action) => async (...given) => {
  try { await action(...given); } catch (error) { if (error.name !== "AbortError") toast(error.message, "bad"); }
};

// Load a part of the page anew whenever something has changed: one request at a time, then a rest in proportion to how long it
// took. What changes meanwhile is loaded once, after the rest.
export function reloading(action, signal, rest = 200) {
  let busy = false;
  let wanted = false;
  return async () => {
    wanted = true;
    if (busy) return;
    busy = true;
    while (wanted && !signal.aborted) {
      wanted = false;
      const begun = performance.now();
      let pause = rest;
      try { await action(); } catch (error) {
        if (signal.aborted || error.name === "AbortError") break;
        toast(error.message, "bad");
        pause = Math.max(rest, 10000);
      }
      await new Promise((resolve) => { setTimeout(resolve, Math.max(pause, Math.min(30000, 3 * (performance.now() - begun)))); });
    }
    busy = false;
  };
}

const REPLACED = new Set(["A", "BUTTON", "INPUT", "SELECT", "TEXTAREA"]); // what they do belongs to them, and is not changed
const mark = (each) => `${each.tagName} ${each.getAttribute("aria-label") ?? each.getAttribute("href") ?? each.textContent}`;

function become(old, made) {
  if (old.isEqualNode(made)) return;
  if (old.nodeName !== made.nodeName || REPLACED.has(old.nodeName)) { old.replaceWith(made); return; }
  if (!(old instanceof Element)) { old.nodeValue = made.nodeValue; return; }
  for (const { name } of [...old.attributes]) if (!made.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of made.attributes) {
    if (old.getAttribute(name) === value) continue;
    if (name === "style") old.style.cssText = value; else old.setAttribute(name, value);
  }
  const there = [...old.childNodes];
  const wanted = [...made.childNodes];
  wanted.forEach((each, at) => { if (at < there.length) become(there[at], each); else old.append(each); });
  there.slice(wanted.length).forEach((each) => each.remove());
}

// Show this in `place` instead of what is there. What is the same stays, and with it focus, selection and scrolling.
export function renew(place, ...children) {
  const held = place.contains(document.activeElement) ? document.activeElement : null;
  const key = held && mark(held);
  const made = place.cloneNode(false);
  made.append(...children);
  become(place, made);
  if (held && !held.isConnected) [...place.querySelectorAll("a, button, input, [tabindex]")].find((each) => mark(each) === key)?.focus({ preventScroll: true });
}

// Ask before something is done, and do it: `send(values)`. What goes wrong is said in the question, which stays with what was
// written. Fields are {name, label, value, type, hint}.
export function ask(title, text, { fields = [], action = "OK", danger = false, send }) {
  const before = document.activeElement;
  const inputs = fields.map((field) => h(field.type === "json" ? "textarea" : "input",
    { name: field.name, value: field.value ?? "", id: `ask-${field.name}`, inputmode: field.type === "number" ? "decimal" : null }));
  const wrong = h("p", { class: "wrong", role: "alert" });
  const main = h("button", { type: "submit", class: danger ? "danger" : "main" }, action);
  const submit = async (event) => {
    event.preventDefault();
    if (dialog.hasAttribute("aria-busy")) return;
    dialog.setAttribute("aria-busy", "true");
    wrong.textContent = "";
    try {
      await send(Object.fromEntries(inputs.map((input) => [input.name, input.value.trim()])));
      dialog.close();
    } catch (error) { if (dialog.open) wrong.textContent = error.message; else toast(error.message, "bad"); }
    dialog.removeAttribute("aria-busy");
  };
  const dialog = h("dialog", { "aria-labelledby": "ask-title", onclose: () => { dialog.remove(); before?.focus(); } },
    h("form", { onsubmit: submit }, h("h1", { id: "ask-title" }, title), text ? h("p", { class: "soft" }, text) : null,
      fields.map((field, place) => h("div", { class: "field" },
        h("label", { for: `ask-${field.name}` }, field.label), inputs[place], field.hint ? h("small", { class: "soft" }, field.hint) : null)),
      wrong, h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), main)));
  document.body.append(dialog);
  dialog.showModal();
  (inputs[0] ?? main).focus();
}

// Hide what can't be used any more; the focus that was in it goes to the page.
export function conceal(element, hidden) {
  if (hidden && !element.hidden && element.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
  element.hidden = hidden;
}
