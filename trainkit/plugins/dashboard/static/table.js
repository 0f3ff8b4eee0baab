// The table of trials: a page at a time from the server, sorted and filtered there.

import { download, experimentPath, get } from "./api.js";
import { attempt, debounced, duration, h, path, reloading, renew, stateOf, stateWords, when, whyOf, withQuery, words } from "./dom.js";

const STATES = ["pending", "running", "paused", "interrupted", "finished", "stopped", "failed"];
const SIZES = [50, 100, 200, 500, 1000];

function columnsOf(experiment) {
  const { metric, columns } = experiment;
  const link = (row) => h("a", { href: path("experiments", experiment.name, "trials", row.trial_id) }, row.trial_id);
  const plain = [
    { name: "trial_id", label: "trial", cell: link, fixed: true },
    { name: "state", label: "state", cell: (row) => h("span", null, stateOf(row)) },
    { name: "reports", label: "reports", cell: (row) => row.reports },
  ];
  if (metric !== null) {
    plain.push({ name: "last", label: `last ${metric}`, cell: (row) => row.last },
      { name: "best", label: `best ${metric}`, cell: (row) => row.best });
  }
  const config = columns.config.map((name) => ({ name: `config/${name}`, label: name, cell: (row) => row.config[name] }));
  const metrics = columns.metrics.filter((name) => name !== metric).map((name) => ({ name: `metrics/${name}`, label: name, cell: (row) => row.metrics[name], later: config.length + plain.length > 9 }));
  const automatic = columns.automatic.map((name) => ({ name: `metrics/${name}`, label: name, cell: (row) => row.metrics[name], later: true }));
  return [...plain, ...config, ...metrics, ...automatic,
    { name: "started", label: "started", cell: (row) => when(row.started), later: true },
    { name: "ended", label: "took", cell: (row) => (row.started && row.ended ? duration(row.ended - row.started) : ""), later: true },
    { name: "failures", label: "failures", cell: (row) => row.failures, later: true },
    { name: "reason", label: "why", cell: whyOf }];
}

export function trialTable(context, experiment) {
  const every = columnsOf(experiment);
  const key = `trainkit-columns-${experiment.name}`;
  const { query } = context;
  const state = {
    offset: Number(query.offset) || 0, limit: SIZES.includes(Number(query.limit)) ? Number(query.limit) : 100,
    sort: query.sort ?? "index", descending: query.descending === "1", status: query.status ?? "", search: query.search ?? "",
  };
  const chosen = new Set((query.chosen ?? "").split(",").filter(Boolean));
  let names;
  try { names = new Set(JSON.parse(localStorage.getItem(key))); } catch (error) { if (!(error instanceof SyntaxError)) throw error; names = new Set(); }
  if (!names.size) names = new Set(every.filter((each) => !each.later).map((each) => each.name));
  const columns = () => every.filter((each) => each.fixed || names.has(each.name));

  let rows = [];
  let total = 0;
  let asked = 0;
  const heads = h("tr");
  const body = h("tbody");
  const count = h("span", { class: "soft", role: "status" });
  const before = h("button", { type: "button", onclick: () => move(-1) }, "← Previous");
  const after = h("button", { type: "button", onclick: () => move(1) }, "Next →");
  const compare = h("a", { class: "badge info", hidden: true }, "");
  const problem = h("p", { class: "empty", role: "alert", hidden: true });
  const search = h("input", { type: "search", placeholder: "Search trials", "aria-label": "Search trials", value: state.search,
    oninput: debounced(() => { state.search = search.value; state.offset = 0; load(); }, 250) });
  const status = h("select", { "aria-label": "State", onchange: () => { state.status = status.value; state.offset = 0; load(); } },
    h("option", { value: "" }, "every state"), STATES.map((each) => h("option", { value: each }, stateWords(each))));
  status.value = state.status;
  const size = h("select", { "aria-label": "Trials per page", onchange: () => { state.limit = Number(size.value); state.offset = 0; load(); } },
    SIZES.map((each) => h("option", { value: each }, `${each} per page`)));
  size.value = state.limit;
  const chooser = h("details", { class: "choose" }, h("summary", null, "Columns"), h("div", null,
    every.filter((each) => !each.fixed).map((each) => h("label", null, h("input", { type: "checkbox", checked: names.has(each.name),
      onchange: (event) => {
        if (event.target.checked) names.add(each.name); else names.delete(each.name);
        localStorage.setItem(key, JSON.stringify([...names]));
        draw();
      } }), each.label))));
  chooser.addEventListener("keydown", (event) => { if (event.key === "Escape") { chooser.open = false; chooser.firstElementChild.focus(); } });

  function move(pages) { state.offset = Math.max(0, state.offset + pages * state.limit); load(); }

  function sortBy(name) {
    if (state.sort === name && state.descending) Object.assign(state, { sort: "index", descending: false });
    else Object.assign(state, { descending: state.sort === name, sort: name });
    state.offset = 0;
    load().then(() => heads.querySelector(`button[data-name="${CSS.escape(name)}"]`)?.focus());
  }

  function tick(trial, on) {
    if (on) chosen.add(trial); else chosen.delete(trial);
    context.keep({ chosen: [...chosen].join(",") });
    comparing();
  }

  function comparing() {
    compare.hidden = total < 2 && chosen.size === 0;
    compare.textContent = `Compare ${chosen.size || "all"}`;
    compare.href = withQuery(`${path("experiments", experiment.name)}/compare`, { trials: [...chosen].join(",") });
  }

  function line(row) {
    return h("tr", { class: row.trial_id === experiment.best?.trial_id ? "best" : null, "data-trial": row.trial_id },
      h("td", null, h("input", { type: "checkbox", "aria-label": `Compare ${row.trial_id}`, checked: chosen.has(row.trial_id),
        onchange: (event) => tick(row.trial_id, event.target.checked) })),
      columns().map((column) => {
        const value = column.cell(row);
        const text = value instanceof Node ? value : words(value);
        return h("td", { class: typeof value === "number" ? "num" : "clip", title: typeof text === "string" ? text : null }, text);
      }));
  }

  function draw() {
    renew(heads, h("th", { scope: "col" }, h("span", { class: "hidden" }, "compare")), ...columns().map((column) => {
      const here = state.sort === column.name;
      return h("th", { scope: "col", class: typeof (rows.length ? column.cell(rows[0]) : "") === "number" ? "num" : null, "aria-sort": here ? (state.descending ? "descending" : "ascending") : "none" },
        h("button", { type: "button", "data-name": column.name, onclick: () => sortBy(column.name) },
          column.label, h("span", { "aria-hidden": "true" }, here ? (state.descending ? " ↓" : " ↑") : "")));
    }));
    renew(body, ...rows.map(line));
    const last = Math.min(total, state.offset + rows.length);
    count.textContent = total === 0 ? "no trial" : `${(state.offset + 1).toLocaleString()}–${last.toLocaleString()} of ${total.toLocaleString()}`;
    before.disabled = state.offset === 0;
    after.disabled = last >= total;
    comparing();
  }

  async function load() {
    if (context.signal.aborted) return;
    const mine = ++asked;
    const { offset, limit, sort, descending, search: text, status: only } = state;
    context.keep({ offset: offset || "", limit: limit === 100 ? "" : limit, sort: sort === "index" ? "" : sort, descending: descending ? 1 : "", search: text, status: only });
    try {
      const page = await get(experimentPath(experiment.name, "trials"), { offset, limit, sort, descending, search: text, status: only }, context.signal);
      if (mine !== asked || context.signal.aborted) return;
      problem.hidden = true;
      ({ rows, total } = page);
      draw();
    } catch (error) {
      if (error.name === "AbortError" || mine !== asked) return;
      problem.textContent = error.message;
      problem.hidden = false;
    }
  }

  const again = reloading(load, context.signal, 300);
  return {
    element: h("div", { class: "card" },
      h("div", { class: "head" }, search, status, count, compare, h("span", { class: "grow" }), before, after, size, chooser,
        ["csv", "json"].map((format) => h("button", { type: "button", class: "quiet",
          onclick: attempt(() => download(experimentPath(experiment.name, "export"), `${experiment.name}.${format}`, { format })) }, format.toUpperCase(), h("span", { class: "hidden" }, " of all trials")))),
      problem,
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Trials" }, h("table", null, h("thead", null, heads), body))),
    load,
    // Rows that changed are put in place; what may have moved between pages is asked for.
    renew(changed, more) {
      let unknown = more;
      for (const row of changed) {
        const place = rows.findIndex((each) => each.trial_id === row.trial_id);
        if (place === -1) { unknown = true; continue; }
        rows[place] = row;
        const there = body.children[place];
        renew(there, ...line(row).children);
        there.classList.toggle("best", row.trial_id === experiment.best?.trial_id);
        there.classList.add("fresh");
        setTimeout(() => there.classList.remove("fresh"), 1600);
      }
      if (unknown || state.sort !== "index" || state.search || state.status) again();
    },
    redraw: draw,
  };
}
