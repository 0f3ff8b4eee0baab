// The page: its routes, what is live, light and dark.

import { follow, takeToken } from "./api.js";
import { redrawAll } from "./charts.js";
import { failure, h } from "./dom.js";
import { compareView, experimentsCompared } from "./compare.js";
import { experimentView } from "./experiment.js";
import { experimentsView } from "./experiments.js";
import { machinesView } from "./machines.js";
import { sessionView, sessionsView } from "./sessions.js";
import { trialView } from "./trial.js";

const ROUTES = [
  [/^$/, experimentsView, "experiments"],
  [/^experiments$/, experimentsView, "experiments"],
  [/^experiments\/([^/]+)$/, experimentView, "experiments"],
  [/^experiments\/([^/]+)\/compare$/, compareView, "experiments"],
  [/^experiments\/([^/]+)\/trials\/([^/]+)$/, trialView, "experiments"],
  [/^compare\/(.+)$/, experimentsCompared, "experiments"],
  [/^machines$/, machinesView, "machines"],
  [/^sessions$/, sessionsView, "sessions"],
  [/^sessions\/([^/]+)$/, sessionView, "sessions"],
];

const main = document.getElementById("main");
const live = document.getElementById("live");
let current = new AbortController();
let shown = null;

function standing(state, words = "") {
  live.dataset.state = state;
  live.title = words;
  live.lastElementChild.textContent = { on: "live", lost: "not connected", off: "" }[state];
}

async function show() {
  current.abort();
  const mine = new AbortController();
  current = mine;
  standing("off");
  const [raw, text = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const query = Object.fromEntries(new URLSearchParams(text));
  const route = ROUTES.map(([pattern, view, page]) => [raw.match(pattern), view, page]).find(([found]) => found);
  for (const link of document.querySelectorAll("#nav a")) {
    if (route && link.dataset.page === route[2]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const context = {
    query,
    signal: mine.signal,
    title(words) { document.title = `${words} · trainkit`; },
    show(...content) { if (!mine.signal.aborted) main.replaceChildren(...content.flat(Infinity).filter(Boolean)); },
    live(wanted, told) { follow(wanted, (change) => { if (!mine.signal.aborted) told(change); }, mine.signal, standing); },
    onend(action) { mine.signal.addEventListener("abort", action, { once: true }); },
    keep(changes) {
      if (mine.signal.aborted) return;
      for (const [name, value] of Object.entries(changes)) {
        if (value === "" || value === null || value === undefined || value === false) delete query[name];
        else query[name] = String(value);
      }
      const given = new URLSearchParams(query).toString();
      history.replaceState(null, "", `#/${raw}${given ? `?${given}` : ""}`);
    },
  };
  main.setAttribute("aria-busy", "true");
  main.inert = shown !== null && shown !== raw; // what is shown still is of another page, such as its Stop
  try {
    if (!route) throw new Error("This page does not exist. Go back to the list of experiments.");
    await route[1](context, ...route[0].slice(1).map((each) => (each.includes("/") ? each.split("/").map(decodeURIComponent) : decodeURIComponent(each))));
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    context.title("Page not available");
    context.show(h("h1", null, "Page not available"), failure(error));
  }
  if (mine.signal.aborted) return;
  main.inert = false;
  main.removeAttribute("aria-busy");
  if (shown !== null && shown !== raw) { main.focus({ preventScroll: true }); scrollTo(0, 0); }
  shown = raw;
}

function theme(wanted) {
  if (wanted) document.documentElement.dataset.theme = wanted;
  else delete document.documentElement.dataset.theme;
  redrawAll();
}

takeToken();
const dark = matchMedia("(prefers-color-scheme: dark)");
theme(localStorage.getItem("trainkit-theme"));
dark.addEventListener("change", redrawAll);
document.getElementById("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem("trainkit-theme", next);
  theme(next);
});
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName)) return;
  const search = main.querySelector("input[type=search]");
  if (search) { event.preventDefault(); search.focus(); }
});
addEventListener("hashchange", show);
show();
