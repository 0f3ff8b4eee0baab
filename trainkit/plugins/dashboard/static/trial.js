// One trial: configuration, curve, reports, decisions, attempts, checkpoints, files, log, note, error.

import { download, get, getExperiment, renews, trialPath } from "./api.js";
import { chart, tools } from "./charts.js";
import { attempt, badge, stateOf, whyOf, bytes, card, conceal, debounced, duration, h, number, pairs, path, plainTable, reloading, renew, tile, when, words } from "./dom.js";
import { eventRows, note, steering } from "./experiment.js";

export async function trialView(context, name, id) {
  context.title(id);
  const [experiment, first, reports, status] = await Promise.all([getExperiment(name, context.signal),
    get(trialPath(name, id), {}, context.signal), get(trialPath(name, id, "history"), {}, context.signal), get("/api/status", {}, context.signal)]);
  let trial = first;
  let history = reports;
  const state = h("span", { class: "row" });
  const tiles = h("div", { class: "tiles", role: "group", "aria-label": "Summary" });
  const steers = h("div", { class: "row", role: "group", "aria-label": "Steer" },
    steering(name, "pause", "Pause", { trial: id }), steering(name, "resume", "Resume", { trial: id }),
    steering(name, "prioritise", "Run first", { trial: id }),
    steering(name, "stop", "Stop", { trial: id, danger: true, question: `Trial ${id} stops; the other trials continue.` }));
  const metrics = [...new Set([experiment.metric, ...experiment.objectives.map((each) => each.metric), ...experiment.columns.metrics, "time_total_s"].filter(Boolean))];
  const curve = first.reports ? chart(name, "compare", { label: `Curve of ${id}` }) : null;
  const query = { trials: id, metric: context.query.metric ?? metrics[0], log_y: context.query.log_y ?? "" };
  const choose = h("select", { "aria-label": "Metric", onchange: () => { query.metric = choose.value; context.keep({ metric: choose.value }); curve.load({ ...query }); } },
    metrics.map((each) => h("option", { value: each }, each)));
  choose.value = query.metric;
  const log = h("label", { class: "field" }, h("input", { type: "checkbox", checked: query.log_y === "1", onchange: (event) => { query.log_y = event.target.checked ? "1" : ""; context.keep({ log_y: query.log_y }); curve.load({ ...query }); } }), "log y");
  const parts = { reports: h("div"), decisions: h("div"), attempts: h("div"), checkpoints: h("div"), events: h("div"), failure: h("div") };
  const last = h("div");

  function summarise() {
    renew(state, ...stateOf(trial).flat().filter(Boolean), h("span", { class: "soft" }, whyOf(trial)));
    conceal(steers, !experiment.running || status.read_only || ["TERMINATED", "ERROR"].includes(trial.status));
    renew(tiles, ...[
      trial.last !== null ? tile(number(trial.last), `last ${experiment.metric}`) : null,
      trial.best !== null ? tile(number(trial.best), `best ${experiment.metric}`) : null,
      tile(trial.reports, "reports"), trial.failures ? tile(trial.failures, "failures") : null,
      trial.started ? tile(duration((trial.ended ?? Date.now() / 1000) - trial.started), trial.ended ? "took" : "so far") : null].filter(Boolean));
  }
  function draw() {
    summarise();
    renew(last, pairs("Last report", trial.metrics));
    const order = [...new Set(["training_iteration", ...metrics])].filter((each) => history.some((some) => each in some));
    renew(parts.reports, history.length ? plainTable("Reports", order, history.slice(-500).reverse().map((each) => order.map((some) => each[some])), { tall: true }) : h("p", { class: "soft none" }, "none yet"));
    renew(parts.decisions, trial.decisions.length ? plainTable("Decisions", ["report", "verdict", "why"],
      trial.decisions.slice(-500).reverse().map((each) => [each.iteration, badge(each.verdict, { STOP: "", PAUSE: "warn", CONTINUE: "good", RESUME: "info" }[each.verdict]), each.words]), { tall: true }) : h("p", { class: "soft none" }, "none: no scheduler has decided on this trial"));
    renew(parts.attempts, plainTable("Attempts", ["attempt", "started", "from report", "reports", "process", "outcome"],
      trial.attempts.map((each) => [each.number, when(each.started), each.iteration, each.reports, `${each.pid} on ${each.hostname}`, each.outcome])));
    renew(parts.checkpoints, trial.checkpoints.length ? plainTable("Checkpoints", ["number", "report", "score", "folder"],
      trial.checkpoints.map((each) => [each.number, each.iteration, each.score, h("button", { type: "button", class: "quiet", onclick: () => files(each.dirname) }, each.dirname)])) : h("p", { class: "soft none" }, "none"));
    renew(parts.events, plainTable("Events of the trial", ["#", "when", "kind", "trial", "by", "what"], eventRows(trial.events.slice(-200).reverse(), name), { tall: true }));
    renew(parts.failure, ...(trial.failure ? [card("Error", null, h("pre", { tabindex: "0", "aria-label": "Traceback" }, trial.failure.traceback || `${trial.failure.kind}: ${trial.failure.message}`))] : []));
  }

  const listing = h("div");
  async function files(at = "") {
    try {
      const found = await get(trialPath(name, id, "files") + at.split("/").filter(Boolean).map((each) => `/${encodeURIComponent(each)}`).join(""), {}, context.signal);
      const above = at.split("/").slice(0, -1).join("/");
      const had = listing.contains(document.activeElement);
      listing.replaceChildren(h("p", { class: "soft" }, at || trial.trial_id), plainTable("Files", ["name", "size", "modified"], [
        ...(at ? [[h("button", { type: "button", class: "quiet", onclick: () => files(above) }, "↑ parent folder"), "", ""]] : []),
        ...found.entries.map((each) => [h("button", { type: "button", class: "quiet", onclick: attempt(() => (each.kind === "folder" ? files(each.path)
          : download(`${trialPath(name, id, "files")}/${each.path.split("/").map(encodeURIComponent).join("/")}`, each.name))) }, each.kind === "folder" ? `${each.name}/` : each.name), each.kind === "folder" ? "" : bytes(each.size), when(each.modified)])], { tall: true }));
      if (had) listing.querySelector(".scroll").focus();
    } catch (error) {
      if (error.name !== "AbortError") listing.replaceChildren(h("p", { class: "soft" }, error.message));
    }
  }
  const printed = h("div");
  const search = h("input", { type: "search", placeholder: "Search the log", "aria-label": "Search the log", oninput: debounced(() => logs(), 250) });
  async function logs() {
    try {
      const found = await get(trialPath(name, id, "logs"), { search: search.value }, context.signal);
      renew(printed, ...logFiles(found.files, search.value));
    } catch (error) {
      if (error.name !== "AbortError") printed.replaceChildren(h("p", { class: "soft" }, error.message));
    }
  }

  draw();
  context.show(
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "Experiments"), " / ", h("a", { href: path("experiments", name) }, name), " / ", id),
    h("div", { class: "head" }, h("h1", null, id), state, h("span", { class: "grow" }), steers), tiles, parts.failure,
    h("div", { class: "halves" },
      curve ? h("section", { class: "card", "aria-label": "Curve" }, h("div", { class: "head" }, h("h2", null, "Curve"), h("span", { class: "grow" }), choose, log, tools(curve)), curve.element) : null,
      card("Configuration", null, pairs("Configuration", trial.config))),
    h("div", { class: "halves" }, card("Decisions", null, parts.decisions), card("Last report", null, last)),
    card("Reports", null, parts.reports),
    h("div", { class: "halves" }, card("Attempts", null, parts.attempts), card("Checkpoints", null, parts.checkpoints)),
    h("div", { class: "halves" }, card("Log", search, printed), card("Files", null, listing)),
    h("div", { class: "halves" }, card("Events", null, parts.events), note(trial.note, trialPath(name, id, "note"), status.read_only)));
  files();
  logs();
  if (curve) { context.onend(() => curve.end()); curve.load({ ...query }); }
  const again = reloading(async () => {
    [trial, history] = await Promise.all([get(trialPath(name, id), {}, context.signal), get(trialPath(name, id, "history"), {}, context.signal)]);
    draw();
    curve?.again();
  }, context.signal);
  const logsAgain = reloading(logs, context.signal, 1000);
  context.live({ experiment: name }, (change) => {
    const ran = experiment.running;
    if (change.summary) { Object.assign(experiment, change.summary); summarise(); }
    const mine = (each) => each.trial_id === id;
    if (renews(change, ran || experiment.running) || change.rows?.some(mine) || change.events?.some(mine)) { again(); logsAgain(); }
    document.documentElement.dataset.told = change.time;
  });
}

export function logFiles(files, text) {
  if (!files.some((each) => each.lines.length)) return [h("p", { class: "soft" }, text ? "no line contains this text" : "the trial printed nothing, or its output is not kept")];
  return files.filter((each) => each.lines.length).map((each) => h("section", { "aria-label": each.name },
    h("p", { class: "soft" }, `${each.name}, ${bytes(each.size)}${each.cut ? ", the last lines" : ""}`),
    h("pre", { tabindex: "0", "aria-label": `Lines of ${each.name}` }, each.lines.flatMap((line) => [...marked(words(line), text), "\n"]))));
}

function marked(line, text) {
  if (!text) return [line];
  const parts = [];
  const low = line.toLowerCase();
  let at = 0;
  for (let found = low.indexOf(text.toLowerCase()); found !== -1 && parts.length < 200; found = low.indexOf(text.toLowerCase(), at)) {
    parts.push(line.slice(at, found), h("mark", null, line.slice(found, found + text.length)));
    at = found + text.length;
  }
  return [...parts, line.slice(at)];
}
