// Sessions of this machine: processes, actors, tasks, what waits and why, memory, GPUs, logs and stacks.

import { get, plain, post, postForFile, sessionPath } from "./api.js";
import { amount, ask, badge, bytes, card, debounced, duration, h, number, path, percent, plainTable, reloading, renew, tile, toast, words } from "./dom.js";
import { gpuTile } from "./machines.js";
import { machineName, troubles } from "./experiments.js";
import { logFiles } from "./trial.js";

const programOf = (session) => session.program || `Session ${plain(session.session_id)}`; // older versions told no program

export async function sessionsView(context) {
  context.title("Sessions");
  let [sessions, machines] = await Promise.all(["sessions", "machines"].map((each) => get(`/api/${each}`, {}, context.signal)));
  const several = machines.length > 1;
  const trouble = troubles();
  const body = h("div");
  function draw() {
    trouble.draw(machines);
    renew(body, sessions.length ? plainTable("Sessions", ["program", "age", "session", "node", "driver", "", ...(several ? ["machine"] : [])], sessions.map((each) =>
      [h("a", { href: path("sessions", each.session_id) }, h("strong", null, programOf(each)), h("span", { class: "hidden" }, `, session ${plain(each.session_id)}`)), duration(each.age_s), h("span", { class: "soft mono" }, plain(each.session_id)), each.node_pid, each.driver_pid, each.problem ? badge(each.problem, "bad") : "", ...(several ? [machineName(each)] : [])]))
      : h("p", { class: "card empty" }, "No session is running. A program starts a session when it calls trainkit.init() or runs trials."));
  }
  draw();
  context.show(h("div", { class: "head" }, h("h1", null, "Sessions"), h("span", { class: "soft" }, several ? "of your user" : "of your user on this machine")), trouble.place, body);
  context.live({ sessions: 1 }, (change) => { if (change.sessions) { ({ sessions, machines } = change); draw(); } });
}

function records(label, found, first = []) {
  if (!found?.length) return h("p", { class: "soft none" }, "none");
  const names = [...new Set([...first, ...found.flatMap((each) => Object.keys(each))])].filter((each) => found.some((some) => some[each] !== undefined && some[each] !== null && some[each] !== ""));
  return plainTable(label, names.map((each) => each.replaceAll("_", " ")), found.map((each) => names.map((name) =>
    (name.endsWith("_bytes") ? bytes(each[name]) : name === "state" || name === "status" ? badge(words(each[name]), { ALIVE: "good", RUNNING: "info", DEAD: "bad", FAILED: "bad", FINISHED: "good" }[each[name]] ?? "") : words(each[name])))), { tall: true });
}

const milliseconds = (value) => (value === null ? "" : amount(number(1000 * value), "ms"));

function ranksTable(ranks, record) {
  return plainTable("Ranks", ["trainer", "rank", "process", "steps", "a second", "samples/s", "waits for data", "waits for ranks", "own time a step", "", "last step", "trace"], ranks.map((each) =>
    [each.trainer, `${each.rank} of ${each.world_size}`, each.pid, each.batches ? `${each.batches.toLocaleString()} ${each.counts}` : "", each.batches_per_s === null ? "" : Number(each.batches_per_s.toPrecision(3)), each.samples_per_s === null ? "" : Number(each.samples_per_s.toPrecision(3)),
      percent(each.data_wait_percent), percent(each.rank_wait_percent), milliseconds(each.own_s),
      each.straggles ? badge("straggler", "warn") : each.batches ? "" : "no batch of a known loader and no optimizer step yet", each.idle_s === null ? "" : `${duration(each.idle_s)} ago`,
      h("button", { type: "button", class: "quiet", onclick: () => record(each) }, "Trace", h("span", { class: "hidden" }, ` of rank ${each.rank}, process ${each.pid}`))]));
}

export async function sessionView(context, id) {
  let session = await get(sessionPath(id), {}, context.signal);
  context.title(programOf(session));
  const tiles = h("div", { class: "tiles", role: "group", "aria-label": "Summary" });
  const places = Object.fromEntries(["workers", "requests", "actors", "tasks", "placement_groups", "objects", "gpus", "nodes", "ranks"].map((each) => [each, h("div")]));
  const state = h("span", { class: "row" });
  const stacks = h("pre", { tabindex: "0", "aria-label": "Stacks", hidden: true });
  const trainers = card("Trainers", null, places.ranks);
  const printed = h("div");
  const search = h("input", { type: "search", placeholder: "Search logs", "aria-label": "Search logs", oninput: debounced(() => logs(), 250) });
  const worker = h("select", { "aria-label": "Process", onchange: () => logs() });

  function draw() {
    const { workers = [], gpus = [] } = session;
    renew(state, h("span", { class: "soft" }, `session ${plain(id)}, node ${session.node_pid}, driver ${session.driver_pid}`), session.problem ? badge(session.problem, "bad") : "");
    const sum = (name) => workers.reduce((all, each) => all + (each[name] ?? 0), 0);
    renew(tiles, tile(workers.length, "processes"), tile((session.actors ?? []).length, "actors"), tile((session.requests ?? []).length, "wait"),
      tile(bytes(sum("own_bytes")), "own memory"), tile(bytes(Math.max(0, ...workers.map((each) => each.shared_bytes ?? 0))), "shared memory"),
      ...gpus.map(gpuTile));
    renew(places.workers, plainTable("Processes", ["pid", "name", "kind", "CPU", "own", "shared", "resident", "GPU", "threads", "stacks"], workers.map((each) =>
      [each.pid, each.name, each.kind, percent(each.cpu_percent), bytes(each.own_bytes), bytes(each.shared_bytes), bytes(each.rss_bytes), bytes(each.gpu_bytes), each.threads,
        each.kind === "WORKER" ? h("button", { type: "button", class: "quiet", onclick: () => dump(each.pid) }, "Stacks", h("span", { class: "hidden" }, ` of process ${each.pid}`)) : ""])));
    renew(places.ranks, ranksTable(session.ranks ?? [], record));
    trainers.hidden = !session.ranks?.length;
    renew(places.requests, records("Waiting requests", session.requests));
    for (const each of ["actors", "tasks", "placement_groups", "objects", "nodes"]) renew(places[each], records(each.replaceAll("_", " "), session[each]));
    renew(places.gpus, records("GPUs", session.gpus));
    const names = session.logs ?? [];
    if (worker.options.length !== names.length + 1) {
      const before = worker.value;
      worker.replaceChildren(h("option", { value: "" }, "every process"), ...names.map((each) => h("option", { value: each }, each)));
      worker.value = names.includes(before) ? before : "";
    }
  }
  async function dump(pid) {
    try {
      const found = await post(sessionPath(id, "workers", pid, "stacks"), {});
      stacks.textContent = `process ${found.pid}\n\n${found.text}`;
      stacks.hidden = false;
      stacks.focus();
      stacks.scrollIntoView({ block: "nearest" });
    } catch (error) { toast(error.message, "bad"); }
  }
  const record = ({ pid, rank }) => ask(`Trace rank ${rank}`, "torch.profiler records the next steps of the rank's process, from batch to batch. The rank is slower during the recording. Open the file in Perfetto, at ui.perfetto.dev.",
    { fields: [{ name: "steps", label: "Steps", value: "5", type: "number", hint: "1 to 100" }], action: "Record",
      send: ({ steps }) => {
        if (!/^\d{1,9}$/.test(steps)) throw new Error("Steps must be an integer from 1 to 100.");
        return postForFile(sessionPath(id, "workers", pid, "trace"), { steps: Number(steps) }, `trace-${pid}.json`);
      } });
  async function logs() {
    try {
      const found = await get(sessionPath(id, "logs"), { worker: worker.value, search: search.value }, context.signal);
      printed.replaceChildren(...logFiles(found.files, search.value));
    } catch (error) { if (error.name !== "AbortError") printed.replaceChildren(h("p", { class: "soft" }, error.message)); }
  }
  draw();
  context.show(
    h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href: "#/sessions" }, "Sessions"), " / ", programOf(session)),
    h("div", { class: "head" }, h("h1", null, programOf(session)), state), tiles,
    card("Processes", null, places.workers, stacks), trainers, card("Reasons for waiting", null, places.requests),
    h("div", { class: "halves" }, card("Actors", null, places.actors), card("Tasks", null, places.tasks)),
    h("div", { class: "halves" }, card("Placement groups", null, places.placement_groups), card("Nodes", null, places.nodes)),
    h("div", { class: "halves" }, card("Object store", null, places.objects), card("GPUs", null, places.gpus)),
    card("Logs", h("span", { class: "row" }, worker, search), printed));
  logs();
  const again = reloading(async () => {
    try { session = await get(sessionPath(id), {}, context.signal); } catch (error) {
      if (error.name === "AbortError") throw error;
      session = { ...session, problem: error.message };
      clearInterval(timer);
    }
    if (!context.signal.aborted) draw();
  }, context.signal);
  context.live({ sessions: 1 }, again);
  const timer = setInterval(() => { if (!document.hidden) again(); }, 2000); // processor and memory change without an event
  context.onend(() => clearInterval(timer));
}
