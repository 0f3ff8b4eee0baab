// One experiment: overview, trials, charts, events, settings; and what steers it.

import { experimentPath, get, getExperiment, post, put, renews, trialPath } from "./api.js";
import { chart, tools } from "./charts.js";
import { ask, attempt, badge, card, conceal, debounced, duration, h, meter, number, pairs, path, plainTable, reloading, renew, stateOf, stateWords, tile, toast, when, withQuery, words, objectivesOf } from "./dom.js";
import { stateBadge } from "./experiments.js";
import { trialTable } from "./table.js";

const MOST_EVENTS = 10000;
const TABS = { overview: "Overview", trials: "Trials", charts: "Charts", events: "Events", settings: "Settings" };
const CHARTS = {
  history: "Optimisation history", curves: "Learning curves", parallel: "Parallel coordinates", importances: "Importances",
  slice: "Slices", contour: "Contours", matrix: "Scatter plots of pairs", rungs: "Rungs", lineage: "Lineage", timeline: "Timeline", pareto: "Pareto front", edf: "Distribution of values",
};
const OPTIONS = {
  history: ["log_y"], curves: ["x", "log_x", "log_y", "most"], parallel: ["params"], importances: ["method"], slice: ["log_y", "params"], contour: ["params"], matrix: ["params", "more"],
  rungs: ["log_y", "bracket"], lineage: ["params", "log_y"], timeline: [], pareto: ["metrics"], edf: [],
};

// Send a command, and say what became of it.
async function steer(name, verb, body) {
  const answer = await post(experimentPath(name, verb), body);
  toast(`${answer.verb}: ${answer.outcome}`);
}

export function steering(name, verb, label, { trial, question, danger } = {}) {
  let busy = false; // the button is not disabled, or it would lose the focus
  const send = async () => {
    if (busy) return;
    busy = true;
    try { await steer(name, verb, trial ? { trial } : {}); } finally { busy = false; }
  };
  return h("button", { type: "button", class: danger ? "danger" : "", "data-verb": verb,
    onclick: question ? () => ask(label, question, { action: label, danger, send }) : attempt(send) }, label);
}

async function add(experiment) {
  // The summary has the configuration cut where it is long: the trial itself has it whole.
  const example = experiment.best ? (await get(trialPath(experiment.name, experiment.best.trial_id))).nested
    : Object.fromEntries(Object.keys(experiment.space).map((each) => [each, null]));
  ask("Add a configuration", "The configuration becomes a new trial, which runs before the searcher's trials.", { action: "Add",
    fields: [{ name: "config", label: "Configuration, as JSON", type: "json", value: JSON.stringify(example, null, 2) }],
    async send(given) {
      let config;
      try { config = JSON.parse(given.config); } catch (error) { throw new Error(`The configuration is not valid JSON: ${error.message}`, { cause: error }); }
      await steer(experiment.name, "add", { config });
    } });
}

async function limits(experiment) {
  const { settings } = await get(experimentPath(experiment.name)); // as they are by now
  const fields = [["num_samples", "Number of samples", -1], ["time_budget_s", "Time budget in seconds", -1], ["max_concurrent_trials", "Concurrent trials", 0]];
  ask("Change limits", "Empty fields leave their limit unchanged.", { action: "Change",
    fields: fields.map(([name, label, none]) => ({ name, label, type: "number", hint: `current: ${settings[name] ?? "no limit"}; enter ${none} for no limit` })),
    async send(given) {
      const changes = Object.fromEntries(Object.entries(given).filter(([, text]) => text !== "").map(([name, text]) => [name, Number(text)]));
      if (!Object.keys(changes).length) throw new Error("Enter at least one limit to change.");
      for (const [name, value] of Object.entries(changes)) if (Number.isNaN(value)) throw new Error(`A limit must be a number, not ${given[name]}.`);
      await steer(experiment.name, "set", changes);
    } });
}

export function note(text, address, readOnly) {
  const area = h("textarea", { "aria-label": "Note", value: text, readonly: readOnly, placeholder: "Write a note" });
  return card("Note", readOnly ? null : h("button", { type: "button", onclick: async () => {
    try { await put(address, { text: area.value }); toast("The note is saved."); } catch (error) { toast(error.message, "bad"); }
  } }, "Save note"), area);
}

export function eventRows(events, name) {
  return events.map((each) => [each.seq, when(each.time), badge(each.kind, each.kind === "command" ? "info" : undefined),
    each.trial_id ? h("a", { href: path("experiments", name, "trials", each.trial_id) }, each.trial_id) : "", each.by ?? "", told(each)]);
}

function told(event) {
  try {
    const detail = JSON.parse(event.detail);
    if (event.kind === "addition left out") return detail.words;
    if (event.kind === "command") return `${detail.verb} ${words(detail.arguments)}: ${detail.outcome}`;
  } catch (error) { if (!(error instanceof SyntaxError)) throw error; }
  return event.detail;
}

function options(experiment, kind, query, changed) {
  const metrics = [...new Set([experiment.metric, ...experiment.objectives.map((each) => each.metric), ...experiment.columns.metrics].filter(Boolean))];
  const pick = (name, label, values, shown = (each) => each) => {
    const select = h("select", { onchange: () => changed({ [name]: select.value }) }, values.map((each) => h("option", { value: each }, shown(each))));
    select.value = query[name] ?? values[0];
    return h("label", { class: "field" }, label, select);
  };
  const tickbox = (name, label) => h("label", { class: "field" }, h("input", { type: "checkbox", checked: query[name] === "1",
    onchange: (event) => changed({ [name]: event.target.checked ? "1" : "" }) }), label);
  const typed = (name, label, hint) => { const input = h("input", { value: query[name] ?? "", placeholder: hint, size: 14, onchange: () => changed({ [name]: input.value.trim() }) }); return h("label", { class: "field" }, label, input); };
  const found = [];
  if (!["timeline", "pareto"].includes(kind) && metrics.length > 1) found.push(pick("metric", "metric", metrics));
  if (!["slice", "timeline", "pareto", "edf"].includes(kind) && (metrics.length > 1 || experiment.mode === null)) found.push(pick("mode", "better", ["", "min", "max"], (some) => ({ "": "as given", min: "smaller", max: "larger" })[some]));
  for (const each of OPTIONS[kind]) {
    if (each === "log_x") found.push(tickbox("log_x", "log x"));
    if (each === "log_y") found.push(tickbox("log_y", "log y"));
    if (each === "x") found.push(pick("x", "over", ["training_iteration", "time_total_s"], (some) => some.replaceAll("_", " ")));
    if (each === "most") found.push(pick("most", "best", ["100", "10", "20", "50", "200"]));
    if (each === "method") found.push(pick("method", "by", ["", "forest", "ped_anova"], (some) => ({ "": "what is installed", forest: "random forest", ped_anova: "PED-ANOVA" })[some]));
    if (each === "bracket") found.push(typed("bracket", "bracket", "the largest"));
    if (each === "params") found.push(typed("params", "hyperparameters", experiment.columns.config.slice(0, 2).join(",")));
    if (each === "more") found.push(typed("more", "further metrics", metrics.slice(1, 3).join(",")));
    if (each === "metrics") found.push(typed("metric", "two metrics", metrics.slice(0, 2).join(",")));
  }
  return found;
}

function chartCard(context, experiment, kind, { big = false, given = {}, keep = () => {} } = {}) {
  const query = { ...given };
  if (kind === "slice" && innerWidth < 700) query.columns = 1;
  if (kind === "matrix" && innerWidth < 700) query.params ??= experiment.columns.config.slice(0, 2).join(",");
  const made = chart(experiment.name, kind, { big, label: CHARTS[kind], onpick: (trial) => { location.hash = path("experiments", experiment.name, "trials", trial); } });
  context.onend(() => made.end());
  const changed = (changes) => { Object.assign(query, changes); keep(changes); made.load({ ...query }); };
  const more = big ? null : h("a", { href: withQuery(path("experiments", experiment.name), { tab: "charts", chart: kind }) }, "larger", h("span", { class: "hidden" }, ` ${CHARTS[kind]}`));
  const element = h("section", { class: "card", "aria-label": CHARTS[kind] },
    h("div", { class: "head" }, h("h2", null, CHARTS[kind]), h("span", { class: "grow" }), more, tools(made)),
    h("div", { class: "chart-options" }, options(experiment, kind, query, changed)), made.element);
  let drawn = false; // first with the options, then with what is new
  return { element, load: () => { if (drawn) made.again(); else { drawn = true; made.load({ ...query }); } } };
}

// Charts are drawn when they come into sight, and again when something has changed, if they are in sight then.
function whenSeen(context, cards) {
  const seen = new Set();
  const stale = new Set(cards);
  const loadSeen = debounced(() => { for (const each of seen) { if (stale.delete(each)) each.load(); } }, 60);
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const owner = cards.find((each) => each.element === entry.target);
      if (entry.isIntersecting) seen.add(owner); else seen.delete(owner);
    }
    loadSeen();
  }, { rootMargin: "200px" });
  cards.forEach((each) => watch.observe(each.element));
  context.onend(() => watch.disconnect());
  const settled = debounced(() => { cards.forEach((each) => stale.add(each)); loadSeen(); }, 400);
  let last = 0;
  return () => { if (Date.now() - last > 2000) { last = Date.now(); cards.forEach((each) => stale.add(each)); loadSeen(); } else settled(); };
}

export async function experimentView(context, name) {
  context.title(name);
  let [experiment, status] = await Promise.all([getExperiment(name, context.signal), get("/api/status", {}, context.signal)]);
  const tab = context.query.tab in TABS ? context.query.tab : "overview";
  const state = h("span", { class: "row" });
  const tiles = h("div", { class: "tiles", "aria-label": "Summary", role: "group" });
  const steers = h("div", { class: "row", role: "group", "aria-label": "Steer" },
    steering(name, "pause", "Pause", { question: "Running trials pause at their next report, and no trial starts." }),
    steering(name, "resume", "Resume"),
    h("button", { type: "button", "data-verb": "add", onclick: attempt(() => add(experiment)) }, "Add…"),
    h("button", { type: "button", "data-verb": "set", onclick: attempt(() => limits(experiment)) }, "Limits…"),
    steering(name, "stop", "Stop", { question: `Experiment ${name} and all its trials stop. The experiment can be restored later.`, danger: true }));

  function summarise() {
    renew(state, stateBadge(experiment), h("span", { class: "soft" }, experiment.running ? `in process ${experiment.owner}` : experiment.ending));
    conceal(steers, !experiment.running || status.read_only);
    const { best, counts } = experiment;
    renew(tiles, ...[
      best ? tile(number(best.value), `best ${experiment.metric}`, best.trial_id) : null,
      tile(`${experiment.trials}${experiment.total ? ` / ${experiment.total}` : ""}`, "trials"),
      ...Object.entries(counts).map(([each, count]) => tile(count, stateWords(each))),
      experiment.remaining_s !== null && experiment.running ? tile(duration(experiment.remaining_s), "left, about") : null,
    ].filter(Boolean), h("div", { class: "tile" }, h("div", { style: { height: "11px" } }), meter(counts, experiment.total), h("span", null, "of all trials")));
  }
  summarise();

  const head = [
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Experiments"), " / ", name),
    h("div", { class: "head" }, h("h1", null, name), state, h("span", { class: "grow" }), steers), tiles,
    h("nav", { class: "tabs", "aria-label": "Views of the experiment" }, Object.entries(TABS).map(([each, label]) =>
      h("a", { href: withQuery(path("experiments", name), { tab: each === "overview" ? "" : each }), "aria-current": each === tab ? "page" : null }, label)))];
  const renewals = [];
  const content = await VIEWS[tab](context, experiment, status, renewals);
  context.show(head, content);
  // What can be drawn grows while trials report: then the view is made again.
  const grown = reloading(async () => {
    const now = await getExperiment(name, context.signal);
    if (String(now.charts) !== String(experiment.charts)) dispatchEvent(new HashChangeEvent("hashchange"));
  }, context.signal, 5000);
  const grows = ["overview", "charts"].includes(tab);
  context.live({ experiment: name }, (change) => {
    const ran = experiment.running;
    if (change.summary) { experiment = { ...experiment, ...change.summary }; summarise(); }
    const more = renews(change, ran || experiment.running);
    for (const renewal of renewals) renewal({ rows: [], events: [], ...change, more }, experiment);
    if (grows && experiment.charts.length < Object.keys(CHARTS).length && (more || change.rows?.length)) grown();
    document.documentElement.dataset.told = change.time;
  });
}

const VIEWS = {
  async overview(context, experiment, status, renewals) {
    const kinds = [["history", "pareto"], ["curves", "timeline"]].map((some) => some.find((each) => experiment.charts.includes(each))).filter(Boolean);
    const cards = kinds.map((kind) => chartCard(context, experiment, kind));
    const changed = whenSeen(context, cards);
    const best = h("div");
    const showBest = async () => {
      if (experiment.mode === null) return; // nobody has said what is best
      const { rows } = await get(experimentPath(experiment.name, "trials"), { sort: "last", descending: experiment.mode === "max", limit: 8 }, context.signal);
      const names = experiment.columns.config.slice(0, 6);
      renew(best, card(`Best trials by last ${experiment.metric}`, h("a", { href: withQuery(path("experiments", experiment.name), { tab: "trials", sort: "last", descending: experiment.mode === "max" }) }, "all trials"),
        plainTable("Best trials", ["trial", "state", experiment.metric, "reports", ...names], rows.map((row) =>
          [h("a", { href: path("experiments", experiment.name, "trials", row.trial_id) }, row.trial_id), h("span", null, stateOf(row)), row.last, row.reports, ...names.map((each) => row.config[each])]))));
    };
    await showBest(); // before charts are, as the library of charts keeps the page busy while it is loaded
    const renewBest = reloading(showBest, context.signal);
    renewals.push((change) => { if (change.rows.length || change.more) { changed(); renewBest(); } });
    return [h("div", { class: "cards" }, cards.map((each) => each.element)), best];
  },
  async trials(context, experiment, status, renewals) {
    const table = trialTable(context, experiment);
    await table.load();
    renewals.push((change, now) => { experiment.best = now.best; if (change.rows.length || change.more) table.renew(change.rows, change.more); });
    return table.element;
  },
  async charts(context, experiment, status, renewals) {
    const { chart: only, tab, ...given } = context.query;
    const kinds = Object.keys(CHARTS).filter((each) => experiment.charts.includes(each));
    if (!kinds.length) return h("p", { class: "card empty" }, "Charts appear after the first report of a trial.");
    if (kinds.includes(only)) {
      const one = chartCard(context, experiment, only, { big: true, given, keep: context.keep });
      const changed = whenSeen(context, [one]);
      renewals.push((change) => { if (change.rows.length || change.more) changed(); });
      return [h("nav", { class: "row", "aria-label": "Charts" }, h("a", { href: withQuery(path("experiments", experiment.name), { tab: "charts" }) }, "all charts"),
        kinds.map((kind) => h("a", { class: `badge${kind === only ? " info" : ""}`, "aria-current": kind === only ? "page" : null,
          href: withQuery(path("experiments", experiment.name), { tab: "charts", chart: kind }) }, CHARTS[kind]))), one.element];
    }
    const cards = kinds.map((kind) => chartCard(context, experiment, kind));
    const changed = whenSeen(context, cards);
    renewals.push((change) => { if (change.rows.length || change.more) changed(); });
    return h("div", { class: "cards" }, cards.map((each) => each.element));
  },
  async events(context, experiment, status, renewals) {
    let events = [];
    const read = async () => {
      let found;
      do {
        found = await get(experimentPath(experiment.name, "events"), { after: events.at(-1)?.seq ?? 0, limit: MOST_EVENTS }, context.signal);
        events = [...events, ...found.events].slice(-MOST_EVENTS);
      } while (found.events.length === MOST_EVENTS);
    };
    await read();
    const body = h("div");
    const search = h("input", { type: "search", placeholder: "Search events", "aria-label": "Search events", oninput: debounced(draw, 150) });
    function draw() {
      const text = search.value.toLowerCase();
      const some = events.filter((each) => `${each.kind} ${each.trial_id} ${each.detail} ${each.by}`.toLowerCase().includes(text));
      renew(body, h("p", { class: "soft" }, `${some.length} of ${events.length === MOST_EVENTS ? "the last " : ""}${events.length}, the latest first${some.length > 500 ? "; 500 are shown" : ""}`),
        plainTable("Events", ["#", "when", "kind", "trial", "by", "what"], eventRows(some.slice(-500).reverse(), experiment.name)));
    }
    draw();
    const again = reloading(async () => { await read(); draw(); }, context.signal);
    renewals.push((change) => { if (change.events.length || change.more) again(); });
    return card("Events", search, body);
  },
  async settings(context, experiment, status) {
    return h("div", { class: "halves" }, card("Settings", null, pairs("Settings", experiment.settings)),
      card("Search space", null, pairs("Search space", experiment.space)),
      card("Where", null, pairs("Where", { folder: experiment.path, started: when(experiment.created), objectives: objectivesOf(experiment) })),
      note(experiment.note, experimentPath(experiment.name, "note"), status.read_only));
  },
};
