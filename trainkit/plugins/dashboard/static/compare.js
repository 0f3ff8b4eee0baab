// Runs of one experiment or several: parallel axes that filter, curves, means over seeds, a table of where they differ.

import { experimentPath, get, getExperiment, plain, renews, trialPath } from "./api.js";
import { chart, drawn, literal, tools } from "./charts.js";
import { badge, card, debounced, h, isFeasible, number, path, reloading, renew, shown, stateOf, words, objectivesOf } from "./dom.js";
import { stateBadge } from "./experiments.js";
import { axisOf, filterText, keeps, parallelAxes } from "./parallel.js";

const COLORS = ["#3b78d8", "#d9772b", "#2a9d78", "#c2508f", "#8a67c9", "#1f9ab0", "#a98a12", "#d2555a"]; // those of the server's figures
const DASHES = ["solid", "dash", "dot"];
const MOST_ROWS = 1000; // that the server gives at once
const MOST_RUNS = 5000;
const MOST_AXES = 10;
const MOST_LINES = 50; // of the table, at first and with each step
const MOST_SIDES = 20; // runs side by side
const MOST_CURVES = 300;
const OVER = { training_iteration: "step", time_total_s: "seconds of training", timestamp: "wall time", share: "share of the run" };

// A table with a column each. Groups are [title, [{name: value} of each column]]; rows that are equal are left out unless `all`.
function sideBySide(label, heads, groups, all) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "hidden" }, "name")), heads.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", null, groups.map(([title, columns]) => {
      const rows = [...new Set(columns.flatMap((each) => Object.keys(each)))].flatMap((name) => {
        const values = columns.map((each) => each[name]);
        const differ = new Set(values.map(words)).size > 1;
        if (!differ && !all && columns.length > 1) return [];
        return [h("tr", { class: differ ? "differs" : null }, h("th", { scope: "row" }, name), values.map((value) => h("td", null, shown(value))))];
      });
      return rows.length ? [h("tr", null, h("th", { scope: "colgroup", colspan: heads.length + 1 }, title)), ...rows] : [];
    }))));
}

// Charts of several experiments: what is asked of each, and which of its lines is drawn for it.
const TOGETHER = {
  history: ["Best so far", {}, (lines) => lines.find((each) => each.mode === "lines")],
  edf: ["Distribution of values", { log_y: "" }, (lines) => lines[0]],
};

async function drawnTogether(experiments, kind, query, signal) {
  const [, asked, lineOf] = TOGETHER[kind];
  const some = experiments.filter((each) => each.charts.includes(kind));
  if (!some.length) throw new Error("These experiments have no data to draw yet.");
  const figures = await Promise.all(some.map((each) => get(experimentPath(each.name, "charts", kind), { ...query, ...asked }, signal)));
  const data = figures.map((figure, place) => {
    const line = lineOf(figure.data);
    const at = experiments.indexOf(some[place]);
    const name = literal(some[place].name);
    return { ...line, name, showlegend: true, ...(line.text ? { text: line.text.map((each) => `${name}<br>${each}`) } : { hoverinfo: "x+y+name" }),
      line: { ...line.line, width: 2, color: COLORS[at % COLORS.length], dash: DASHES[Math.floor(at / COLORS.length) % DASHES.length] } };
  });
  const { xaxis, yaxis } = figures[0].layout;
  delete yaxis.range; // both would be those of the first one
  delete xaxis.dtick;
  return { data, layout: { xaxis, yaxis: kind === "edf" ? { ...yaxis, range: [0, 1.02] } : yaxis, hovermode: "closest" } };
}

const metricsOf = (experiment) => [...new Set([experiment.metric, ...experiment.objectives.map((each) => each.metric), ...experiment.columns.metrics].filter(Boolean))];
const text = (value) => (value === undefined ? "" : words(value));
const differs = (runs, of) => { const first = text(of(runs[0])); return runs.some((each) => text(of(each)) !== first); };
const mean = (values) => values.reduce((sum, each) => sum + each, 0) / values.length;
const spread = (values, middle) => Math.sqrt(values.reduce((sum, each) => sum + (each - middle) ** 2, 0) / Math.max(1, values.length - 1));

// The runs of the experiments, the best first: chosen trials, or as many of each as can be compared.
async function readRuns(experiments, ids, signal) {
  const most = Math.max(50, Math.min(MOST_ROWS, Math.floor(MOST_RUNS / experiments.length)));
  const pages = await Promise.all(experiments.map(async (each) => {
    const query = each.mode === null ? {} : { sort: "last", descending: each.mode === "max" };
    const { rows } = await get(experimentPath(each.name, "trials"), { ...query, limit: most }, signal);
    const lacking = [...ids].filter((id) => experiments.length === 1 && !rows.some((row) => row.trial_id === id));
    return [...rows, ...await Promise.all(lacking.map((id) => get(trialPath(each.name, id), {}, signal)))]
      .filter((row) => !ids.size || ids.has(row.trial_id)).map((row) => ({ ...row, experiment: each.name, key: `${each.name} ${row.trial_id}` }));
  }));
  return pages.flat();
}

// A smoothed curve, as TensorBoard's: a moving average whose factor is the weight of what was before.
export function smoothed(values, factor) {
  let last = 0;
  return values.map((each, at) => { last = last * factor + (1 - factor) * each; return last / (1 - factor ** (at + 1)); });
}

function between(xs, ys, x) {
  if (x < xs[0] || x > xs.at(-1)) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] <= x) low = middle; else high = middle; }
  return xs[high] === xs[low] ? ys[low] : ys[low] + ((ys[high] - ys[low]) * (x - xs[low])) / (xs[high] - xs[low]);
}

// The mean of curves, and the mean less and more the standard deviation. Where curves have other places, they are interpolated.
export function meanOf(curves) {
  let xs = [...new Set(curves.flatMap((each) => each.x))].sort((one, other) => one - other);
  if (xs.length > 300) { const [low, high] = [xs[0], xs.at(-1)]; xs = Array.from({ length: 200 }, (_, at) => low + ((high - low) * at) / 199); }
  const made = { x: [], y: [], low: [], high: [] };
  for (const x of xs) {
    const values = curves.map((each) => between(each.x, each.y, x)).filter((each) => each !== null);
    if (!values.length) continue;
    const middle = mean(values);
    const away = spread(values, middle);
    made.x.push(x);
    made.y.push(middle);
    made.low.push(middle - away);
    made.high.push(middle + away);
  }
  return made;
}

async function compareRuns(context, names, chosen) {
  const read = () => Promise.all(names.map((name) => getExperiment(name, context.signal)));
  let experiments = await read();
  const ids = new Set(chosen);
  let runs = await readRuns(experiments, ids, context.signal);
  const several = names.length > 1;
  const count = ids.size ? `${ids.size} trial${ids.size === 1 ? "" : "s"} compared` : several ? `${names.length} experiments compared` : `Trials of ${plain(names[0])} compared`;
  context.title(count);
  const { query } = context;
  const metrics = [...new Set(experiments.flatMap(metricsOf))];
  if (!runs.length || !metrics.length) throw new Error("These experiments have no trials with reports to compare yet.");
  const state = { metrics: (query.metrics ?? query.metric ?? metrics[0]).split(",").filter((each) => metrics.includes(each)), x: query.x in OVER ? query.x : "training_iteration",
    smooth: Math.min(0.99, Math.max(0, Number(query.smooth) || 0)), top: Number(query.top) || 10, mean: query.mean ?? "", all: query.all === "1", together: query.together === "1",
    log_x: query.log_x === "1", log_y: query.log_y === "1", sort: query.sort ?? "", down: query.down === "1" };
  if (!state.metrics.length) state.metrics = [metrics[0]];
  const filters = new Map();
  for (const [name, value] of Object.entries(query)) {
    if (!name.startsWith("in.")) continue;
    try { filters.set(name.slice(3), JSON.parse(value)); } catch (error) { if (!(error instanceof SyntaxError)) throw error; context.keep({ [name]: "" }); }
  }

  // --- what is compared: columns, axes, groups
  const valueOf = (metric) => (run) => { const known = experiments.find((each) => each.name === run.experiment); const value = known.metric === metric ? run.last : run.metrics[metric]; return typeof value === "number" ? value : undefined; };
  const configOf = (name) => (run) => run.config[name];
  const minimized = (metric) => experiments.map((each) => each.objectives.find((some) => some.metric === metric)?.mode ?? (each.metric === metric ? each.mode : null)).find(Boolean) !== "max";
  let columns;
  let varied;
  let axes;
  let kept;
  let ranks;
  let lines;

  function measure() {
    const config = [...new Set(runs.flatMap((each) => Object.keys(each.config)))].map((name) => ({ name, label: name, of: configOf(name) }));
    for (const each of config) each.differs = differs(runs, each.of);
    varied = config.filter((each) => each.differs).map((each) => each.name);
    if (!varied.includes(state.mean)) state.mean = "";
    columns = [...(several ? [{ name: "experiment", label: "experiment", of: (run) => plain(run.experiment), differs: true }] : []), ...config];
    axes = [...columns.filter((each) => each.differs), ...metrics.map((name) => ({ name: `metrics/${name}`, label: name, of: valueOf(name), differs: state.metrics.includes(name) })).filter((each) => each.differs)]
      .map((each) => axisOf(each.name, each.label, runs, each.of));
    if (axes.length > MOST_AXES) axes = [...axes.slice(0, MOST_AXES - state.metrics.length), ...axes.slice(-state.metrics.length)];
    const [first] = state.metrics;
    const of = valueOf(first);
    const order = runs.map((each, at) => at).sort((one, other) => isFeasible(runs[one]) - isFeasible(runs[other]) || ((of(runs[other]) ?? (minimized(first) ? Infinity : -Infinity)) - (of(runs[one]) ?? (minimized(first) ? Infinity : -Infinity)) || 0) * (minimized(first) ? 1 : -1));
    ranks = new Float32Array(runs.length);
    order.forEach((at, place) => { ranks[at] = runs.length > 1 ? place / (runs.length - 1) : 1; });
  }

  function choose() {
    const active = axes.filter((each) => filters.has(each.name)).map((each) => [each, filters.get(each.name)]);
    kept = [];
    for (let at = 0; at < runs.length; at += 1) if (active.every(([axis, filter]) => keeps(axis, filter, runs[at]))) kept.push(at);
  }

  // A line of the table: a run, or all runs that differ by nothing but what the mean is over.
  function group() {
    const found = new Map();
    for (const at of kept) {
      const run = runs[at];
      const key = state.mean ? JSON.stringify([several ? run.experiment : "", ...varied.filter((each) => each !== state.mean).map((each) => run.config[each] ?? null)]) : run.key;
      if (!found.has(key)) found.set(key, { key, runs: [] });
      found.get(key).runs.push(run);
    }
    lines = [...found.values()];
    for (const each of lines) {
      each.name = state.mean ? varied.filter((name) => name !== state.mean && each.runs[0].config[name] !== undefined).map((name) => `${name} ${words(each.runs[0].config[name])}`).join(", ") || "all" : several ? `${plain(each.runs[0].experiment)} ${each.runs[0].trial_id}` : each.runs[0].trial_id;
      each.values = Object.fromEntries(state.metrics.map((metric) => {
        const values = each.runs.map(valueOf(metric)).filter((value) => value !== undefined);
        const middle = values.length ? mean(values) : null;
        return [metric, { mean: middle, spread: values.length > 1 ? spread(values, middle) : null, count: values.length }];
      }));
    }
    const [first] = state.metrics;
    const sign = minimized(first) ? 1 : -1;
    const feasible = (line) => line.runs.some(isFeasible);
    lines.sort((one, other) => feasible(other) - feasible(one) || compare(one.values[first].mean, other.values[first].mean) * sign);
    lines.forEach((each, place) => { each.place = place; });
  }
  function compare(one, other) {
    if (one === null || one === undefined || other === null || other === undefined) return ((one ?? null) === null) - ((other ?? null) === null);
    return one < other ? -1 : one > other ? 1 : 0;
  }

  // --- parallel axes and filters
  const keepLater = debounced((changes) => context.keep(changes), 200);
  const pictures = parallelAxes((name, filter, last) => filterBy(name, filter, last));
  drawn.add(pictures);
  context.onend(() => { drawn.delete(pictures); pictures.end(); });
  const chips = h("div", { class: "row" });
  function filterBy(name, filter, last = true) {
    if (filter?.length) filters.set(name, filter); else filters.delete(name);
    const began = performance.now();
    update();
    document.documentElement.dataset.brushed = (performance.now() - began).toFixed(1);
    if (last) context.keep({ [`in.${name}`]: filter?.length ? JSON.stringify(filter) : "" }); else keepLater({ [`in.${name}`]: JSON.stringify(filter) });
  }
  function chip(axis) {
    return h("button", { type: "button", class: "badge info", onclick: () => filterBy(axis.name, null), "aria-label": `Remove filter ${filterText(axis, filters.get(axis.name))}` }, filterText(axis, filters.get(axis.name)), h("span", { "aria-hidden": "true" }, "×"));
  }
  const adder = h("details", { class: "choose" }, h("summary", null, "Filter"));
  function drawAdder() {
    const pick = h("select", { "aria-label": "Filter by", onchange: () => fields() }, axes.map((each) => h("option", { value: each.name }, each.label)));
    const place = h("div");
    function fields() {
      const axis = axes.find((each) => each.name === pick.value);
      if (axis.choices) {
        place.replaceChildren(...axis.choices.map((each) => h("label", null, h("input", { type: "checkbox", checked: filters.get(axis.name)?.includes(each) ?? true,
          onchange: () => filterBy(axis.name, [...place.querySelectorAll("input")].flatMap((box, at) => (box.checked ? [axis.choices[at]] : []))) }), each)));
        return;
      }
      const [low, high] = filters.get(axis.name) ?? [axis.low, axis.high];
      const ends = [["from", low, axis.low], ["to", high, axis.high]].map(([label, value, none]) => ({ none, input: h("input", { "aria-label": label, inputmode: "decimal", size: 9, value: number(value),
        onchange: () => { const [from, to] = ends.map((each) => (each.input.value.trim() === "" || Number.isNaN(Number(each.input.value)) ? each.none : Number(each.input.value))); filterBy(axis.name, [from, to]); } }) }));
      place.replaceChildren(h("div", { class: "row" }, ends[0].input, "to", ends[1].input));
    }
    fields();
    adder.replaceChildren(adder.firstElementChild, h("div", null, pick, place));
  }
  adder.addEventListener("keydown", (event) => { if (event.key === "Escape") { adder.open = false; adder.firstElementChild.focus(); } });

  // --- curves
  const known = new Map();
  async function curvesOf(some, signal) {
    const across = state.x === "share" ? "training_iteration" : state.x;
    await Promise.all(names.map(async (name) => {
      const lacking = some.filter((each) => each.experiment === name && !known.has(`${each.key} ${across} ${state.metrics}`));
      if (!lacking.length) return;
      const found = await get(experimentPath(name, "curves"), { metrics: state.metrics.join(","), trials: lacking.map((each) => each.trial_id).join(","), x: across }, signal);
      for (const each of lacking) known.set(`${each.key} ${across} ${state.metrics}`, Object.fromEntries(state.metrics.map((metric) => [metric, found[metric]?.[each.trial_id]])));
    }));
    return (run, metric) => {
      const curve = known.get(`${run.key} ${across} ${state.metrics}`)?.[metric];
      if (!curve) return null;
      const last = curve.x.at(-1) || 1;
      const x = state.x === "share" ? curve.x.map((each) => (100 * each) / last) : state.x === "timestamp" ? curve.x.map((each) => 1000 * each) : curve.x;
      return { x, y: state.smooth ? smoothed(curve.y, state.smooth) : curve.y, raw: curve.y };
    };
  }
  async function curveFigure(_, signal) {
    const most = Math.max(1, Math.floor(MOST_CURVES / state.metrics.length));
    let left = most;
    const some = lines.slice(0, state.top).filter((each) => { left -= each.runs.length; return left >= 0 || left + each.runs.length === most; });
    const curve = await curvesOf(some.flatMap((each) => each.runs).slice(0, most), signal);
    const panes = state.together ? 1 : state.metrics.length;
    const data = [];
    state.metrics.forEach((metric, at) => {
      const axis = panes === 1 || at === 0 ? "y" : `y${at + 1}`;
      for (const each of some.slice().reverse()) {
        const curves = each.runs.map((run) => curve(run, metric)).filter(Boolean);
        if (!curves.length) continue;
        const color = COLORS[each.place % COLORS.length];
        const line = { color, width: 2, dash: panes === 1 ? DASHES[at % DASHES.length] : DASHES[Math.floor(each.place / COLORS.length) % DASHES.length] };
        const name = literal(panes === 1 && state.metrics.length > 1 ? `${each.name}, ${metric}` : each.name);
        const common = { type: "scatter", mode: "lines", xaxis: "x", yaxis: axis, legendgroup: each.key };
        const made = curves.length > 1 ? meanOf(curves) : curves[0];
        if (curves.length > 1) {
          data.push({ ...common, x: made.x, y: made.low, line: { width: 0 }, hoverinfo: "skip", showlegend: false },
            { ...common, x: made.x, y: made.high, line: { width: 0 }, fill: "tonexty", fillcolor: `${color}33`, hoverinfo: "skip", showlegend: false });
        } else if (state.smooth && some.length <= MOST_SIDES) data.push({ ...common, x: made.x, y: made.raw, line: { color, width: 1 }, opacity: 0.25, hoverinfo: "skip", showlegend: false });
        data.push({ ...common, x: made.x, y: made.y, name, line, mode: made.x.length > 1 ? "lines" : "markers", showlegend: (at === 0 || panes === 1) && some.length <= 24,
          customdata: curves.length > 1 ? undefined : made.x.map(() => path("experiments", each.runs[0].experiment, "trials", each.runs[0].trial_id)),
          text: made.y.map((value, place) => `${name}<br>${literal(metric)} ${number(value)}${made.low ? ` ± ${number(value - made.low[place])}` : ""}`), hoverinfo: "text" });
      }
    });
    if (!data.length) throw new Error("These runs have reported no value of this metric with this axis.");
    const note = state.smooth ? `, smoothed by ${state.smooth}` : "";
    const layout = { hovermode: "closest", meta: { title: "" }, height: panes > 1 ? 180 + 200 * panes : 420, legend: { traceorder: "reversed" },
      xaxis: { title: { text: OVER[state.x] + (state.x === "share" ? " in percent" : "") }, zeroline: false, automargin: true, anchor: panes > 1 ? `y${panes}` : "y", ...(state.x === "timestamp" ? { type: "date" } : state.log_x ? { type: "log" } : {}) } };
    for (let at = 0; at < panes; at += 1) {
      const named = panes === 1 && state.metrics.length > 1 ? "value" : state.metrics[at];
      layout[at ? `yaxis${at + 1}` : "yaxis"] = { title: { text: literal(named) + note }, automargin: true, zeroline: false, ...(state.log_y ? { type: "log" } : {}),
        domain: [1 - (at + 1) / panes + (at + 1 < panes ? 0.04 : 0), 1 - at / panes], anchor: "x" };
    }
    return { data: data.map((each) => ({ ...each, text: each.text })), layout };
  }
  const curves = chart(several ? "experiments" : plain(names[0]), "curves", { big: true, label: "Curves", ask: curveFigure, onpick: (where) => { location.hash = where; } });
  context.onend(() => curves.end());
  const drawCurves = debounced(() => { if (!context.signal.aborted) curves.load({}); }, 120);

  // --- the table
  const heads = h("tr");
  const body = h("tbody");
  const told = h("span", { class: "soft", role: "status" });
  const more = h("button", { type: "button", onclick: () => { most += MOST_LINES; drawTable(); } }, `Show ${MOST_LINES} more`);
  let most = MOST_LINES;
  function drawTable() {
    const config = columns.filter((each) => (each.differs || state.all) && each.name !== state.mean && each.name !== "experiment");
    const shownColumns = [
      { name: "", label: state.mean ? "runs" : "trial", of: (line) => line.place, cell: (line) => [h("i", { class: "swatch", style: { background: line.place < state.top ? COLORS[line.place % COLORS.length] : "transparent" }, "aria-hidden": "true" }),
        state.mean ? `${line.runs.length}` : h("a", { href: path("experiments", line.runs[0].experiment, "trials", line.runs[0].trial_id) }, line.runs[0].trial_id)] },
      ...(several ? [{ name: "experiment", label: "experiment", of: (line) => line.runs[0].experiment, cell: (line) => h("a", { href: path("experiments", line.runs[0].experiment) }, plain(line.runs[0].experiment)) }] : []),
      { name: "state", label: "state", of: (line) => line.runs[0].state, cell: (line) => [...new Map(line.runs.map((each) => [`${each.state} ${isFeasible(each)}`, each])).values()].flatMap((each) => [stateOf(each), " "]) },
      ...state.metrics.map((metric) => ({ name: `metrics/${metric}`, label: `last ${metric}`, num: true, of: (line) => line.values[metric].mean,
        cell: (line) => { const { mean: middle, spread: away } = line.values[metric]; return middle === null ? "" : away === null ? number(middle) : [number(middle), h("span", { class: "soft" }, ` ± ${Number(away.toPrecision(2))}`)]; } })),
      ...config.map((each) => ({ name: `config/${each.name}`, label: each.label, num: lines.length && typeof each.of(lines[0].runs[0]) === "number", of: (line) => each.of(line.runs[0]), cell: (line) => text(each.of(line.runs[0])) }))];
    const by = shownColumns.find((each) => each.name === state.sort && state.sort) ?? shownColumns[0];
    const rows = by === shownColumns[0] && !state.down ? lines : lines.slice().sort((one, other) => compare(by.of(one), by.of(other)) * (state.down ? -1 : 1));
    renew(heads, ...shownColumns.map((each) => h("th", { scope: "col", class: each.num ? "num" : null, "aria-sort": each === by ? (state.down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", onclick: () => { change({ sort: each.name, down: each === by && !state.down }); } }, each.label, h("span", { "aria-hidden": "true" }, each === by ? (state.down ? " ↓" : " ↑") : "")))));
    body.replaceChildren(...rows.slice(0, most).map((line) => h("tr", null, shownColumns.map((each) => { const value = each.cell(line); return h("td", { class: each.num ? "num" : "clip", title: typeof value === "string" ? value : null }, value); }))));
    more.hidden = rows.length <= most;
    const of = experiments.reduce((sum, each) => sum + each.trials, 0);
    told.textContent = `${kept.length.toLocaleString()} of ${runs.length.toLocaleString()} runs${!ids.size && of > runs.length ? `, the best of ${of.toLocaleString()}` : ""}${state.mean ? `, mean ± standard deviation over ${state.mean}` : ""}`;
  }

  // --- side by side
  const sides = h("div");
  const equal = h("input", { type: "checkbox", checked: state.all, onchange: () => change({ all: equal.checked }) });
  function drawSides() {
    const few = kept.length <= MOST_SIDES && ids.size ? kept.map((at) => runs[at]) : [];
    if (!several && !few.length) { sides.replaceChildren(); return; }
    renew(sides, several ? sideBySide("Experiments", experiments.map((each) => [h("a", { href: path("experiments", each.name) }, each.name), " ", stateBadge(each)]),
      [["Results", experiments.map((each) => ({ objective: objectivesOf(each), trials: `${each.trials}${each.total ? ` of ${each.total}` : ""}`,
        "best value": each.best ? number(each.best.value) : "", "best trial": each.best?.trial_id }))],
      ["Best configuration", experiments.map((each) => each.best?.config ?? {})], ["Search space", experiments.map((each) => each.space)], ["Settings", experiments.map((each) => each.settings)]], state.all)
      : sideBySide("Configurations and last reports", few.map((each) => [h("a", { href: path("experiments", each.experiment, "trials", each.trial_id) }, each.trial_id), " ", badge(each.state)]),
        [["Configuration", few.map((each) => each.config)], ["Last report", few.map((each) => Object.fromEntries(Object.entries(each.metrics).filter(([name]) => metrics.includes(name))))]], state.all));
  }

  function update() {
    choose();
    pictures.draw({ axes, runs, kept, filters, ranks });
    group();
    drawTable();
    renew(chips, ...axes.filter((each) => filters.has(each.name)).map(chip));
    drawCurves();
    drawSidesLater();
  }
  const drawSidesLater = debounced(drawSides, 120);

  function change(changes) {
    Object.assign(state, changes);
    context.keep(Object.fromEntries(Object.keys(changes).map((name) => [name, name === "metrics" ? changes.metrics.join(",") : changes[name] === true ? "1" : changes[name] === 0 ? "" : changes[name]])));
    measure();
    update();
  }

  // --- the controls
  const pick = (name, label, values, shownAs = (each) => each) => {
    const select = h("select", { onchange: () => change({ [name]: name === "top" ? Number(select.value) : select.value }) }, values.map((each) => h("option", { value: each }, shownAs(each))));
    select.value = state[name];
    return h("label", { class: "field" }, label, select);
  };
  const box = (name, label) => h("label", { class: "field" }, h("input", { type: "checkbox", checked: state[name], onchange: (event) => change({ [name]: event.target.checked }) }), label);
  measure();
  const factor = h("output", null, state.smooth || "none");
  const seeds = varied.slice().sort((one, other) => /seed|repeat|fold|trial_index/i.test(other) - /seed|repeat|fold|trial_index/i.test(one));
  const chooser = h("details", { class: "choose" }, h("summary", null, "Metrics"), h("div", null, metrics.map((each) => h("label", null, h("input", { type: "checkbox", checked: state.metrics.includes(each),
    onchange: (event) => { const wanted = metrics.filter((some) => (some === each ? event.target.checked : state.metrics.includes(some))); if (wanted.length) change({ metrics: wanted }); else event.target.checked = true; } }), each))));
  chooser.addEventListener("keydown", (event) => { if (event.key === "Escape") { chooser.open = false; chooser.firstElementChild.focus(); } });
  const controls = h("div", { class: "chart-options" }, chooser, pick("x", "over", Object.keys(OVER).filter((each) => each !== "timestamp" || experiments.every((some) => some.columns.automatic.includes("timestamp"))), (each) => OVER[each]),
    h("label", { class: "field" }, "smoothing", h("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: state.smooth, oninput: (event) => { factor.textContent = Number(event.target.value) || "none"; change({ smooth: Number(event.target.value) }); } }), factor),
    box("log_x", "log x"), box("log_y", "log y"), box("together", "one axis for all metrics"), pick("top", "best", [5, 10, 20, 50, 100, 200]),
    varied.length ? pick("mean", "mean over", ["", ...seeds], (each) => each || "nothing") : null);
  const link = h("button", { type: "button", onclick: async () => {
    await navigator.clipboard.writeText(location.href);
    link.textContent = "Link copied";
    setTimeout(() => { link.textContent = "Copy link"; }, 2000);
  } }, "Copy link");

  // Other charts of whole experiments.
  const shared = metrics.filter((each) => experiments.every((other) => metricsOf(other).includes(each)));
  const cards = several && shared.length ? Object.entries(TOGETHER).map(([kind, [label]]) => {
    const made = chart("experiments", kind, { label, ask: (wanted, signal) => drawnTogether(experiments, kind, wanted, signal) });
    context.onend(() => made.end());
    return { made, element: card(label, tools(made), made.element) };
  }) : [];

  drawAdder();
  context.show(
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Experiments"), " / ", several ? null : [h("a", { href: path("experiments", names[0]) }, names[0]), " / "], "compare"),
    h("div", { class: "head" }, h("h1", null, count), told, h("span", { class: "grow" }), chips, adder, link),
    axes.length > 1 ? h("section", { class: "card", "aria-label": "Parallel axes" }, h("div", { class: "head" }, h("h2", null, "Parallel axes"), h("span", { class: "soft" }, "drag along an axis to keep an interval")), pictures.element) : null,
    h("section", { class: "card", "aria-label": "Curves" }, h("div", { class: "head" }, h("h2", null, "Curves"), h("span", { class: "grow" }), tools(curves)), controls, curves.element),
    cards.length ? h("div", { class: "cards" }, cards.map((each) => each.element)) : null,
    h("section", { class: "card", "aria-label": "Runs" }, h("div", { class: "head" }, h("h2", null, "Runs"), h("span", { class: "grow" }), h("label", { class: "field" }, equal, "show what is equal")),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Compared runs" }, h("table", null, h("thead", null, heads), body)), more), sides);
  update();
  drawSides();
  for (const { made } of cards) made.load({ metric: shared[0] });
  const again = reloading(async () => {
    experiments = await read();
    runs = await readRuns(experiments, ids, context.signal);
    known.clear();
    measure();
    update();
    for (const { made } of cards) made.again();
  }, context.signal, 2000);
  let last = "";
  if (several) context.live({}, (change) => {
    const now = JSON.stringify((change.experiments ?? []).filter((each) => names.includes(each.name)));
    if (change.again || (last && now !== last)) again();
    last = now;
  });
  else context.live({ experiment: names[0] }, (change) => {
    if (renews(change, experiments[0].running || change.summary.running) || change.rows?.some((row) => !ids.size || ids.has(row.trial_id))) again();
  });
}

export function compareView(context, name) {
  const chosen = (context.query.trials ?? "").split(",").filter(Boolean);
  return compareRuns(context, [name], chosen);
}

export const experimentsCompared = (context, given) => compareRuns(context, [...new Set([given].flat())], (context.query.trials ?? "").split(",").filter(Boolean));
