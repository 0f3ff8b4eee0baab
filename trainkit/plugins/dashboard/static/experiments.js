// The list of experiments.

import { get, plain } from "./api.js";
import { badge, h, meter, number, path, renew, stateWords, when, words, objectivesOf } from "./dom.js";

const COLUMNS = [
  ["experiment", (each) => each.name], ["state", (each) => each.state], ["trials", (each) => each.trials],
  ["best", (each) => each.best?.value ?? null], ["started", (each) => each.created],
  ["machine", (each) => each.machine],
];

// A place for what is wrong with machines, and what draws it: `machines` of the server.
export function troubles() {
  const place = h("div", { role: "status" });
  return { place, draw: (machines) => renew(place, ...machines.filter((each) => each.problem).map((each) => h("p", { class: "card problem" }, each.problem))) };
}
export const machineName = (each) => each.machine || "this machine";

// The state of an experiment in the words that trials have.
const STANDS = { running: "info", paused: "warn", damaged: "bad", finished: "good", "stopped early": "calm", interrupted: "warn" };
export function stateBadge(each) {
  const word = each.problem ? "damaged" : each.running ? (each.state.includes(", paused by ") ? "paused" : "running")
    : !each.ending ? "interrupted" : each.ending === "all trials have ended" ? "finished" : "stopped early";
  return badge(word, STANDS[word]);
}

export async function experimentsView(context) {
  context.title("Experiments");
  let [status, experiments, machines] = await Promise.all(["status", "experiments", "machines"].map((each) => get(`/api/${each}`, {}, context.signal)));
  const several = machines.length > 1;
  const columns = several ? COLUMNS : COLUMNS.slice(0, -1);
  const trouble = troubles();
  let sort = Number(context.query.sort ?? 4) in columns ? Number(context.query.sort ?? 4) : 4;
  let down = (context.query.down ?? "1") === "1";
  const heads = h("tr");
  const body = h("tbody");
  const search = h("input", { type: "search", placeholder: "Search experiments", "aria-label": "Search experiments", value: context.query.search ?? "",
    oninput: () => { context.keep({ search: search.value }); draw(); } });
  const count = h("span", { class: "soft", role: "status" });
  const chosen = new Set();
  const compare = h("a", { class: "badge info", hidden: true });
  function tick(name, on) {
    if (on) chosen.add(name); else chosen.delete(name);
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size}`;
    compare.href = path("compare", ...chosen);
  }

  function draw() {
    renew(heads, h("th", { scope: "col" }, h("span", { class: "hidden" }, "compare")), ...columns.map(([label], place) => h("th", { scope: "col", "aria-sort": sort === place ? (down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", "data-place": place, onclick: () => {
        down = sort === place ? !down : false;
        sort = place;
        context.keep({ sort, down: down ? "1" : "0" });
        draw();
        heads.querySelector(`[data-place="${place}"]`).focus();
      } }, label, h("span", { "aria-hidden": "true" }, sort === place ? (down ? " ↓" : " ↑") : "")))));
    trouble.draw(machines);
    const text = search.value.toLowerCase();
    const rows = experiments.filter((each) => `${each.name} ${each.state} ${each.metric} ${several ? machineName(each) : ""}`.toLowerCase().includes(text));
    const value = COLUMNS[sort][1];
    rows.sort((one, other) => {
      const [first, second] = [value(one), value(other)];
      if (first === null || second === null) return (first === null) - (second === null);
      return (first < second ? -1 : first > second ? 1 : 0) * (down ? -1 : 1);
    });
    count.textContent = `${rows.length} of ${experiments.length}`;
    renew(body, ...rows.map((each) => h("tr", null,
      h("td", null, each.problem ? null : h("input", { type: "checkbox", "aria-label": `Compare ${each.name}`, checked: chosen.has(each.name),
        onchange: (event) => tick(each.name, event.target.checked) })),
      h("td", null, h("a", { href: path("experiments", each.name) }, h("strong", null, plain(each.name))),
        each.problem ? h("div", { class: "soft" }, each.problem) : null),
      h("td", null, stateBadge(each), h("div", { class: "soft" }, each.running ? `in process ${each.owner}` : each.ending)),
      h("td", null, h("div", { class: "row" }, meter(each.counts, each.total),
        h("span", { class: "num" }, `${each.trials}${each.total ? ` / ${each.total}` : ""}`)),
        h("div", { class: "soft" }, Object.entries(each.counts).map(([name, some]) => `${some} ${stateWords(name)}`).join(", "))),
      h("td", { class: "wide" }, each.best ? [h("strong", null, `${each.metric} ${number(each.best.value)}`),
        h("div", { class: "soft" }, Object.entries(each.best.config).slice(0, 4).map(([name, some]) => `${name} ${words(some)}`).join(", "))]
        : h("span", { class: "soft" }, objectivesOf(each))),
      h("td", null, when(each.created)), several ? h("td", null, machineName(each)) : null)));
    if (!rows.length) renew(body, h("tr", null, h("td", { colspan: columns.length + 1, class: "empty" },
      experiments.length ? "No experiment contains this text." : `${status.root} has no experiments yet.`)));
  }
  draw();
  context.show(
    h("div", { class: "head" }, h("h1", null, "Experiments"), h("span", { class: "soft" }, [status.root, ...machines.slice(1).map(machineName)].join(", ")), h("span", { class: "grow" }), compare, count, search), trouble.place,
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Experiments" }, h("table", null, h("thead", null, heads), body)));
  context.live({}, (change) => { if (change.experiments) { ({ experiments, machines } = change); draw(); } });
}
