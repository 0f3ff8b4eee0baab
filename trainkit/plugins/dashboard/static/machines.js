// All machines: processors, memory, GPUs, and the jobs and nodes of Slurm.

import { apiPath, get } from "./api.js";
import { badge, bytes, card, h, meter, number, percent, plainTable, reloading, renew, tile } from "./dom.js";
import { machineName, troubles } from "./experiments.js";

const EVERY_MS = 10000; // a controller of Slurm is not asked more often

const memoryTile = (name, used, total, value) => h("div", { class: "tile" }, h("b", null, value), meter({ RUNNING: used }, total),
  h("span", null, `${name}, ${bytes(used)} of ${bytes(total)}`));
export const gpuTile = (each) => memoryTile(`GPU ${each.index}`, each.used_bytes, each.total_bytes, percent(each.percent));

const stateKind = (state) => (/never|failed|ended at|ended because|lost/.test(state) ? "bad" : /^runs/.test(state) ? "info" : /code 0/.test(state) ? "good" : "");
const share = (used, total, shown = String) => (total ? `${shown(used)} of ${shown(total)}` : "");

// A cluster's jobs and nodes. Several machines of the cluster say the same: it is shown once.
function cluster(names, { problem, jobs, nodes, number_of_nodes: count }) {
  return card(`Slurm, seen from ${names.join(", ")}`, null, problem ? h("p", { class: "problem" }, problem) : [
    jobs.length ? plainTable("Jobs", ["job", "name", "state"], jobs.map((each) => [each.id, each.name, badge(each.state, stateKind(each.state))]))
      : h("p", { class: "soft" }, "You have no job. `trainkit submit` submits a script."),
    nodes.length < count ? h("p", { class: "soft" }, `The first ${nodes.length} of ${count} nodes are shown.`) : null,
    plainTable("Nodes", ["node", "state", "CPUs in use", "memory in use", "GPUs in use"], nodes.map((each) => [each.name, each.state,
      share(each.used_cpus, each.cpus), share(each.used_bytes, each.bytes, bytes), share(each.used_gpus, each.gpus)]), { tall: true })]);
}

export async function machinesView(context) {
  context.title("Machines");
  let machines = await get("/api/machines", {}, context.signal);
  const trouble = troubles();
  const body = h("div");
  const states = new Map();
  const loaders = new Map();

  function draw() {
    trouble.draw(machines);
    const clusters = new Map();
    const cards = machines.filter((each) => !each.problem).map((each) => {
      const state = states.get(each.machine);
      if (!state) return card(machineName(each), null, h("p", { class: "soft" }, "loading"));
      if (state.problem) return card(machineName(each), null, h("p", { class: "soft" }, state.problem));
      if (state.slurm) {
        const key = state.slurm.nodes.map((node) => node.name).join() || machineName(each);
        clusters.set(key, { names: [...(clusters.get(key)?.names ?? []), machineName(each)], slurm: state.slurm });
      }
      return card(machineName(each), h("span", { class: "soft" }, state.hostname), h("div", { class: "tiles" },
        tile(`${number(Math.round(10 * state.load) / 10)} of ${state.cpus}`, "CPUs busy"),
        memoryTile("memory", state.used_bytes, state.total_bytes, percent(Math.round((100 * state.used_bytes) / state.total_bytes))),
        ...state.gpus.map(gpuTile)));
    });
    renew(body, ...cards, ...[...clusters.values()].map((each) => cluster(each.names, each.slurm)));
  }

  // Each machine is asked by itself, so that a slow one does not hold up the others.
  function load(name) {
    if (!loaders.has(name)) loaders.set(name, reloading(async () => {
      try { states.set(name, await get(apiPath(name || null, "machine"), {}, context.signal)); } catch (error) {
        if (error.name === "AbortError") throw error;
        states.set(name, { problem: error.message });
      }
      if (!context.signal.aborted) draw();
    }, context.signal));
    loaders.get(name)();
  }
  const loadAll = () => { for (const each of machines) if (!each.problem) load(each.machine); };

  draw();
  context.show(h("div", { class: "head" }, h("h1", null, "Machines")), trouble.place, body);
  loadAll();
  const timer = setInterval(() => { if (!document.hidden) loadAll(); }, EVERY_MS);
  context.onend(() => clearInterval(timer));
  context.live({}, (change) => {
    const known = JSON.stringify(machines);
    ({ machines } = change);
    if (JSON.stringify(machines) !== known) { draw(); loadAll(); }
  });
}
