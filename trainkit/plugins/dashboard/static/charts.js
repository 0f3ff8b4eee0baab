// Charts: figures of the server, drawn by Plotly in the colours of the page. Plotly is loaded with the first one.

import { experimentPath, get, save } from "./api.js";
import { attempt, h, reloading } from "./dom.js";

let loading;
function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: "/static/plotly.min.js", onload: () => resolve(window.Plotly),
      onerror: () => { loading = undefined; script.remove(); reject(new Error("The chart library can't be loaded from the dashboard.")); } });
    document.head.append(script);
  });
  return loading;
}

function themed(layout, width) {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", colorway: undefined, autosize: true,
    margin: { l: 58, r: 16, t: 22, b: 46 }, ...structuredClone(layout),
    font: { family: color("--font"), size: 12, color: color("--soft") },
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--text"), family: color("--font") }, align: "left" },
    legend: { ...(layout.legend ?? {}), ...(width < 520 ? { orientation: "h", y: -0.28, x: 0 } : { orientation: "v" }), bgcolor: "rgba(0,0,0,0)", font: { size: 11 } },
    uirevision: "same",
  };
  for (const name of Object.keys(made)) {
    if (!/^[xy]axis\d*$/.test(name)) continue;
    made[name] = { gridcolor: color("--line"), linecolor: color("--line"), zerolinecolor: color("--line"), ...made[name] };
    if (made[name].title) made[name].title = { ...made[name].title, font: { size: 12 }, standoff: 8 };
  }
  made.annotations = (layout.annotations ?? []).map((each) => ({ bgcolor: color("--card"), borderpad: 1, ...each }));
  return made;
}

export const drawn = new Set(); // what is drawn again in other colours
export function redrawAll() { for (const each of drawn) each.redraw(); }

// Text as Plotly shows it literally, as the server does for the names in its figures.
export const literal = (text) => text.replace(/[&<>%$]/g, (each) => `&#${each.charCodeAt(0)};`);

// One chart: `element` to put into the page, `load(query)` to draw it, `again()` to draw it with what is new, `end()`.
// Its figure is the experiment's, or what `ask(query, signal)` returns.
export function chart(name, kind, { big = false, label, onpick, ask = (query, signal) => get(experimentPath(name, "charts", kind), query, signal) } = {}) {
  const place = h("div", { class: `chart${big ? " big" : ""}`, role: "figure", "aria-label": label ?? kind, "data-kind": kind });
  const message = h("p", { class: "empty" });
  const element = h("div", null, place);
  let figure = null;
  let query = {};
  let asked = null;
  const stop = new AbortController();
  const self = {
    element,
    async load(wanted = query) {
      query = wanted;
      asked?.abort();
      const mine = new AbortController();
      asked = mine;
      if (figure === null) place.dataset.state = "loading";
      try {
        const [library, answer] = await Promise.all([plotly(), ask(query, mine.signal)]);
        if (mine.signal.aborted) return;
        figure = answer;
        message.remove();
        place.hidden = false;
        await draw(library);
        place.dataset.state = "drawn";
      } catch (error) {
        if (mine.signal.aborted) return;
        place.dataset.state = "failed";
        place.hidden = true;
        message.textContent = error.message;
        element.append(message);
      }
    },
    again: reloading(() => self.load(), stop.signal),
    redraw: attempt(async () => { if (figure !== null) await draw(await plotly()); }),
    picture: attempt(async (format) => {
      const library = await plotly();
      const style = getComputedStyle(document.documentElement);
      const layout = { ...place.layout, paper_bgcolor: style.getPropertyValue("--card").trim() };
      const url = await library.toImage({ data: place.data, layout }, { format, width: 1200, height: Math.max(600, place.clientHeight), scale: format === "png" ? 2 : 1 });
      const blob = format === "svg" ? new Blob([decodeURIComponent(url.slice(url.indexOf(",") + 1))], { type: "image/svg+xml" })
        : new Blob([Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (each) => each.charCodeAt(0))], { type: "image/png" });
      save(blob, `${name}-${kind}.${format}`);
    }),
    data() { save(new Blob([JSON.stringify(figure, null, 1)], { type: "application/json" }), `${name}-${kind}.json`); },
    end() {
      stop.abort();
      asked?.abort();
      drawn.delete(self);
      resizes.disconnect();
      if (!place._fullLayout) return; // nothing was drawn
      window.Plotly.Fx.unhover(place); // what the mouse is over may be shown a moment later, and would miss what purge takes away
      window.Plotly.purge(place);
    },
  };
  async function draw(library) {
    const layout = themed(figure.layout, place.clientWidth);
    if (big) layout.height = Math.max(layout.height ?? 0, Math.min(560, Math.max(420, innerHeight - 420)));
    await library.react(place, structuredClone(figure.data), layout, { displayModeBar: false, responsive: false, scrollZoom: false });
    if (!place.dataset.listens && onpick) {
      place.dataset.listens = "yes";
      place.on("plotly_click", (event) => { const trial = event.points[0]?.customdata; if (typeof trial === "string" && trial) onpick(trial); });
    }
  }
  const resizes = new ResizeObserver(() => { if (figure !== null && place.clientWidth) window.Plotly.Plots.resize(place); });
  resizes.observe(element);
  drawn.add(self);
  return self;
}

export const tools = (made) => h("span", { class: "tools" }, ["png", "svg"].map((format) => h("button", { type: "button", class: "quiet", onclick: () => made.picture(format) },
  format.toUpperCase(), h("span", { class: "hidden" }, " of this chart"))).concat(
  h("button", { type: "button", class: "quiet", onclick: () => made.data() }, "JSON", h("span", { class: "hidden" }, " of this chart"))));
