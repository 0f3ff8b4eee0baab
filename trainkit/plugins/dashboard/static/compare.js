// Trials of an experiment, or experiments, side by side: their curves, and where they differ.

import { experimentPath, get, getExperiment, renews, trialPath } from "./api.js";
import { chart, literal, tools } from "./charts.js";
import { badge, card, h, number, path, reloading, renew, shown, words, objectivesOf } from "./dom.js";
import { stateBadge } from "./experiments.js";

const MOST = 20; // trials
const COLORS = ["#3b78d8", "#d9772b", "#2a9d78", "#c2508f", "#8a67c9", "#1f9ab0", "#a98a12", "#d2555a"]; // those of the server's figures
const DASHES = ["solid", "dash", "dot"];

// A table with a column each. Groups are [title, [{name: value} of each column]]; rows that differ are marked.
function sideBySide(label, heads, groups) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", null,
    h("thead", null, h("tr", null, h("th", { scope: "col" }, h("span", { class: "hidden" }, "name")), heads.map((each) => h("th", { scope: "col" }, each)))),
    h("tbody", null, groups.map(([title, columns]) => [
      h("tr", null, h("th", { scope: "colgroup", colspan: heads.length + 1 }, title)),
      ...[...new Set(columns.flatMap((each) => Object.keys(each)))].map((name) => {
        const values = columns.map((each) => each[name]);
        return h("tr", { class: new Set(values.map(words)).size > 1 ? "differs" : null }, h("th", { scope: "row" }, name), values.map((value) => h("td", null, shown(value))));
      })]))));
}

// What is drawn of all, kept in the address: a metric, what it is drawn over, a logarithmic axis.
function choices(context, metrics, changed) {
  const query = { metric: context.query.metric ?? metrics[0], x: context.query.x ?? "training_iteration", log_y: context.query.log_y ?? "" };
  const change = (name, value) => { query[name] = value; context.keep({ [name]: value }); changed(); };
  const pick = (name, label, values) => {
    const select = h("select", { onchange: () => change(name, select.value) }, values.map((each) => h("option", { value: each }, each)));
    select.value = query[name];
    return h("label", { class: "field" }, label, select);
  };
  return { query, fields: [pick("metric", "metric", metrics), pick("x", "over", ["training_iteration", "time_total_s"]),
    h("label", { class: "field" }, h("input", { type: "checkbox", checked: query.log_y === "1", onchange: (event) => change("log_y", event.target.checked ? "1" : "") }), "log y")] };
}

const metricsOf = (experiment) => [...new Set([experiment.metric, ...experiment.objectives.map((each) => each.metric), ...experiment.columns.metrics].filter(Boolean))];

export async function compareView(context, name) {
  context.title(`Compare, ${name}`);
  const asked = (context.query.trials ?? "").split(",").filter(Boolean);
  const ids = asked.slice(0, MOST);
  if (!ids.length) throw new Error("Choose trials to compare in the table of trials.");
  const read = () => Promise.all(ids.map((id) => get(trialPath(name, id), {}, context.signal)));
  let [experiment, trials] = await Promise.all([getExperiment(name, context.signal), read()]);
  const metrics = metricsOf(experiment);
  const made = chart(name, "compare", { big: true, label: "Curves of the chosen trials", onpick: (trial) => { location.hash = path("experiments", name, "trials", trial); } });
  context.onend(() => made.end());
  const load = () => made.load({ ...query, trials: ids.join(",") });
  const { query, fields } = choices(context, metrics, load);
  const table = h("div");
  const draw = () => renew(table, sideBySide("Configurations and last reports",
    trials.map((each) => [h("a", { href: path("experiments", name, "trials", each.trial_id) }, each.trial_id), " ", badge(each.state)]),
    [["Configuration", trials.map((each) => each.config)],
      ["Last report", trials.map((each) => Object.fromEntries(Object.entries(each.metrics).filter(([key]) => metrics.includes(key))))]]));
  draw();
  context.show(
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Experiments"), " / ", h("a", { href: path("experiments", name) }, name), " / compare"),
    h("div", { class: "head" }, h("h1", null, `${ids.length} trials compared`), asked.length > MOST ? h("span", { class: "soft" }, `the first ${MOST} of ${asked.length}`) : null),
    card("Curves", [fields, tools(made)], made.element), table);
  load();
  const again = reloading(async () => { trials = await read(); draw(); made.again(); }, context.signal, 500);
  context.live({ experiment: name }, (change) => {
    if (renews(change, experiment.running || change.summary.running) || change.rows?.some((row) => ids.includes(row.trial_id))) again();
  });
}

// Charts of several experiments: what is asked of each, and which of its lines is drawn for it.
const TOGETHER = {
  curves: ["Curves of the best trials", { best: 1, most: 1 }, (lines) => lines.at(-1)],
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

export async function experimentsCompared(context, given) {
  const names = [...new Set([given].flat())];
  context.title("Compare experiments");
  const read = () => Promise.all(names.map((name) => getExperiment(name, context.signal)));
  let experiments = await read();
  const metrics = metricsOf(experiments[0]).filter((each) => experiments.every((other) => metricsOf(other).includes(each)));
  const cards = [];
  const load = () => { for (const { made } of cards) made.load({ ...query }); };
  const { query, fields } = choices(context, metrics, load);
  if (metrics.length) {
    for (const [kind, [label]] of Object.entries(TOGETHER)) {
      const made = chart("experiments", kind, { label, ask: (wanted, signal) => drawnTogether(experiments, kind, wanted, signal) });
      context.onend(() => made.end());
      cards.push({ made, element: card(label, tools(made), made.element) });
    }
  }
  const table = h("div");
  const draw = () => renew(table, sideBySide("Experiments",
    experiments.map((each) => [h("a", { href: path("experiments", each.name) }, each.name), " ", stateBadge(each)]),
    [["Results", experiments.map((each) => ({ objective: objectivesOf(each), trials: `${each.trials}${each.total ? ` of ${each.total}` : ""}`,
      "best value": each.best ? number(each.best.value) : "", "best trial": each.best?.trial_id }))],
    ["Best configuration", experiments.map((each) => each.best?.config ?? {})],
    ["Search space", experiments.map((each) => each.space)],
    ["Settings", experiments.map((each) => each.settings)]]));
  draw();
  context.show(
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Experiments"), " / compare"),
    h("div", { class: "head" }, h("h1", null, `${names.length} experiments compared`), h("span", { class: "grow" }), cards.length ? fields : null),
    cards.length ? h("div", { class: "cards" }, cards.map((each) => each.element)) : h("p", { class: "card empty" }, "These experiments have no reported metric in common."), table);
  load();
  const again = reloading(async () => { experiments = await read(); draw(); for (const { made } of cards) made.again(); }, context.signal, 2000);
  let last = "";
  context.live({}, (change) => {
    const now = JSON.stringify((change.experiments ?? []).filter((each) => names.includes(each.name)));
    if (change.again || (last && now !== last)) again();
    last = now;
  });
}
