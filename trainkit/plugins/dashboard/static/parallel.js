// Parallel axes on a canvas: a line for each run, and an interval on each axis that is dragged with the mouse or a finger.

import { h, number, words } from "./dom.js";

const TOP = 34, BOTTOM = 16, LEFT = 30, RIGHT = 60, NARROWEST = 84, HEIGHT = 340;
const SHADES = [[253, 231, 37], [94, 201, 98], [33, 145, 140], [59, 82, 139], [68, 1, 84]];

// An axis for the values `of(run)` of all runs: numbers, or else choices.
export function axisOf(name, label, runs, of) {
  const values = runs.map(of).filter((each) => each !== undefined && each !== null);
  if (values.every((each) => typeof each === "number")) {
    const low = values.reduce((one, other) => Math.min(one, other), Infinity);
    const high = values.reduce((one, other) => Math.max(one, other), -Infinity);
    return { name, label, of, low, high, log: low > 0 && high / low > 50, whole: values.every(Number.isInteger) };
  }
  return { name, label, of: (run) => { const value = of(run); return value === undefined || value === null ? value : words(value); }, choices: [...new Set(values.map(words))].sort() };
}

// Where a value is on an axis, from 0 at its lower end to 1; null if the run has no value.
export function heightOf(axis, value) {
  if (value === undefined || value === null) return null;
  if (axis.choices) return (axis.choices.indexOf(value) + 0.5) / axis.choices.length;
  if (axis.high === axis.low) return 0.5;
  return axis.log ? Math.log(value / axis.low) / Math.log(axis.high / axis.low) : (value - axis.low) / (axis.high - axis.low);
}

const valueAt = (axis, height) => (axis.log ? axis.low * (axis.high / axis.low) ** height : axis.low + height * (axis.high - axis.low));
const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// What an interval between two heights keeps: the ends, or the choices inside.
function interval(axis, low, high) {
  if (axis.choices) return axis.choices.filter((each) => { const at = heightOf(axis, each); return at >= low && at <= high; });
  return [low <= 0 ? axis.low : Number(valueAt(axis, low).toPrecision(4)), high >= 1 ? axis.high : Number(valueAt(axis, high).toPrecision(4))];
}

export function keeps(axis, filter, run) {
  const value = axis.of(run);
  if (value === undefined || value === null) return false;
  return axis.choices ? filter.includes(value) : value >= filter[0] && value <= filter[1];
}

const filterWords = (axis, filter) => (axis.choices ? filter.join(", ") : `${number(filter[0])} to ${number(filter[1])}`);
export const filterText = (axis, filter) => `${axis.label} ${filterWords(axis, filter)}`;

function shade(share) {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark";
  const at = 0.15 + 0.6 * (dark ? 1 - share : share);
  const place = Math.min(Math.floor(at * (SHADES.length - 1)), SHADES.length - 2);
  const rest = at * (SHADES.length - 1) - place;
  return `rgb(${SHADES[place].map((low, each) => Math.round(low + (SHADES[place + 1][each] - low) * rest)).join(" ")})`;
}

// A chart: `element`, and `draw({axes, runs, kept, filters, ranks})`, where ranks are from 0, the worst, to 1. `onbrush(name, filter)`
// tells of an interval, or of null where it was taken away.
export function parallelAxes(onbrush) {
  const behind = h("canvas", { "aria-hidden": "true" });
  const front = h("canvas", { role: "img" });
  const body = h("div", { class: "axes" }, behind, front);
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parallel axes" }, body);
  let seen = null;
  let width = 0;
  let painted = null;
  let drag = null;

  const across = (place) => (seen.axes.length < 2 ? width / 2 : LEFT + (place * (width - LEFT - RIGHT)) / (seen.axes.length - 1));
  const down = (height) => (height === null ? HEIGHT - 3 : TOP + (1 - height) * (HEIGHT - TOP - BOTTOM));

  function lines(pen, some, plain) {
    const { axes, ranks, runs } = seen;
    const order = plain ? some : some.slice().sort((one, other) => ranks[one] - ranks[other]);
    pen.lineWidth = 1;
    for (const at of order) {
      pen.beginPath();
      axes.forEach((axis, place) => { const y = down(heightOf(axis, axis.of(runs[at]))); if (place) pen.lineTo(across(place), y); else pen.moveTo(across(place), y); });
      if (!plain) { pen.strokeStyle = shade(ranks[at]); pen.globalAlpha = Math.min(0.9, 0.3 + 0.6 * ranks[at]); }
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  function clear(canvas) {
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(HEIGHT * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${HEIGHT}px`;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    return pen;
  }

  function paint() {
    if (!seen) return;
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const wide = Math.max(element.clientWidth - 2, seen.axes.length * NARROWEST, 200);
    if (painted !== seen.runs || wide !== width) { // the runs behind are painted once, not with each move of the mouse
      width = wide;
      body.style.width = `${width}px`;
      body.style.height = `${HEIGHT}px`;
      const pen = clear(behind);
      pen.strokeStyle = color("--line");
      lines(pen, seen.runs.map((each, at) => at), true);
      painted = seen.runs;
    }
    const pen = clear(front);
    lines(pen, seen.kept, false);
    pen.font = `12px ${color("--font")}`;
    seen.axes.forEach((axis, place) => {
      const x = across(place);
      pen.strokeStyle = color("--soft");
      pen.beginPath();
      pen.moveTo(x, TOP);
      pen.lineTo(x, HEIGHT - BOTTOM);
      pen.stroke();
      pen.fillStyle = color("--text");
      pen.textAlign = place === 0 ? "left" : place === seen.axes.length - 1 ? "right" : "center";
      pen.fillText(shortened(axis.label + (axis.log ? " (log)" : ""), Math.max(12, Math.floor(width / seen.axes.length / 7))), place === 0 ? 4 : place === seen.axes.length - 1 ? width - 4 : x, 14);
      const ends = axis.choices ? axis.choices.slice(0, 12).map((each) => [heightOf(axis, each), shortened(each, 14)])
        : axis.low === axis.high ? [[0.5, number(axis.low)]] : Number.isInteger(axis.low) && Number.isInteger(axis.high - axis.low) && axis.high - axis.low <= 8 && axis.whole
          ? Array.from({ length: axis.high - axis.low + 1 }, (_, at) => [at / (axis.high - axis.low), String(axis.low + at)]) : [0, 0.25, 0.5, 0.75, 1].map((at) => [at, String(Number(valueAt(axis, at).toPrecision(3)))]);
      pen.textAlign = "left";
      for (const [at, text] of ends) {
        const y = down(at) + 4;
        pen.globalAlpha = 0.8;
        pen.fillStyle = color("--card");
        pen.fillRect(x + 4, y - 11, pen.measureText(text).width + 5, 14);
        pen.globalAlpha = 1;
        pen.fillStyle = color("--soft");
        pen.fillText(text, x + 6, y);
      }
      if (seen.runs.some((run) => heightOf(axis, axis.of(run)) === null)) { pen.fillStyle = color("--soft"); pen.fillText("no value", x + 6, HEIGHT - 3); }
      const filter = drag?.place === place && drag.moved ? null : seen.filters.get(axis.name);
      const span = drag?.place === place && drag.moved ? [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)]
        : filter?.length ? (axis.choices ? [Math.min(...filter.map((each) => heightOf(axis, each))) - 0.4 / axis.choices.length, Math.max(...filter.map((each) => heightOf(axis, each))) + 0.4 / axis.choices.length]
          : filter.map((each) => Math.max(0, Math.min(1, heightOf(axis, each))))) : null;
      if (!span) return;
      pen.fillStyle = color("--accent");
      pen.globalAlpha = 0.35;
      pen.fillRect(x - 7, down(span[1]), 14, Math.max(3, down(span[0]) - down(span[1])));
      pen.globalAlpha = 1;
    });
    front.setAttribute("aria-label", `Parallel axes ${seen.axes.map((each) => each.label).join(", ")}: ${seen.kept.length} of ${seen.runs.length} runs`);
  }

  const point = (event) => {
    const box = front.getBoundingClientRect();
    const x = event.clientX - box.left;
    const place = seen.axes.reduce((best, each, at) => (Math.abs(across(at) - x) < Math.abs(across(best) - x) ? at : best), 0);
    return { place, away: Math.abs(across(place) - x), height: Math.max(0, Math.min(1, 1 - (event.clientY - box.top - TOP) / (HEIGHT - TOP - BOTTOM))) };
  };
  front.addEventListener("pointerdown", (event) => {
    if (!seen || event.button) return;
    const { place, away, height } = point(event);
    if (away > 40) return;
    drag = { place, from: height, to: height, moved: false };
    front.setPointerCapture(event.pointerId);
  });
  let asked = false;
  front.addEventListener("pointermove", (event) => {
    if (!drag) return;
    drag.to = point(event).height;
    drag.moved ||= Math.abs(drag.to - drag.from) > 0.01;
    if (!drag.moved || asked) return;
    asked = true; // once for each picture
    requestAnimationFrame(() => { asked = false; if (drag) send(false); });
  });
  const send = (last) => {
    const axis = seen.axes[drag.place];
    onbrush(axis.name, drag.moved ? interval(axis, Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)) : null, last);
  };
  const end = () => { if (!drag) return; send(true); drag = null; paint(); };
  front.addEventListener("pointerup", end);
  front.addEventListener("pointercancel", () => { drag = null; paint(); });
  const resizes = new ResizeObserver(paint);
  resizes.observe(element);
  return { element, draw(wanted) { seen = wanted; paint(); }, redraw() { painted = null; paint(); }, end() { resizes.disconnect(); } };
}
