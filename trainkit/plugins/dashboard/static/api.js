// The REST API and its streams. The token of the printed address stays in this tab, and is sent as a header.

const KEY = "trainkit-token";

export function takeToken() {
  const query = new URLSearchParams(location.search);
  const token = query.get("token");
  if (token === null) return;
  sessionStorage.setItem(KEY, token);
  query.delete("token");
  const rest = query.toString();
  history.replaceState(null, "", location.pathname + (rest ? `?${rest}` : "") + location.hash);
}

const heads = () => ({ Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` });

// An experiment or a session of another machine is named "MACHINE/NAME". No experiment, session or host has a slash in its name.
const divided = (key) => { const at = key.indexOf("/"); return at === -1 ? [null, key] : [key.slice(0, at), key.slice(at + 1)]; };
export const plain = (key) => divided(key)[1];
export const apiPath = (machine, ...parts) => ["", "api", ...(machine === null ? [] : ["machines", machine]), ...parts].map(encodeURIComponent).join("/");
const within = (kind) => (key, ...rest) => { const [machine, name] = divided(key); return apiPath(machine, kind, name, ...rest); };
export const experimentPath = within("experiments");
export const sessionPath = within("sessions");
export const trialPath = (name, trial, ...rest) => experimentPath(name, "trials", trial, ...rest);

async function call(method, address, { query, body, signal } = {}) {
  const given = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  const text = given.toString();
  let answer;
  try {
    answer = await fetch(text ? `${address}?${text}` : address, {
      method, signal, cache: "no-store",
      headers: body === undefined ? heads() : { ...heads(), "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The dashboard does not respond. If it was stopped, start it again with trainkit dashboard.");
  }
  if (answer.ok) return answer;
  let words = `${answer.status} ${answer.statusText}`;
  try { words = (await answer.json()).error ?? words; } catch (error) { if (!(error instanceof SyntaxError)) throw error; }
  throw new Error(words);
}

export const get = async (address, query, signal) => (await call("GET", address, { query, signal })).json();
export const getExperiment = async (name, signal) => ({ ...await get(experimentPath(name), {}, signal), name });
export const post = async (address, body) => (await call("POST", address, { body })).json();
export const postForFile = async (address, body, name) => save(await (await call("POST", address, { body })).blob(), name);
export const put = async (address, body) => (await call("PUT", address, { body })).json();

export function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

export async function download(address, name, query) {
  save(await (await call("GET", address, { query })).blob(), name);
}

async function visible(signal) {
  while (document.hidden && !signal.aborted) {
    await new Promise((resolve) => {
      document.addEventListener("visibilitychange", resolve, { once: true });
      signal.addEventListener("abort", resolve, { once: true });
    });
  }
}

// Say whether a page has to be loaded anew for a change of an experiment that ran, or runs now. The first change of a stream always says
// that there may be more; of one that stands still, nothing was missed.
export const renews = (change, runs) => (change.fresh ? change.again || runs : change.more);

// Follow server-sent events until `signal` ends them; a stream that breaks is opened again. The first change that each one tells
// is `fresh`, for more may have changed before it: `again` says that an earlier stream had ended. A page that nobody sees has
// none, as a browser opens few connections to one server.
export async function follow(query, told, signal, state) {
  const [machine, experiment] = divided(query.experiment ?? "");
  let wait = 500;
  let opened = 0;
  while (!signal.aborted) {
    await visible(signal);
    if (signal.aborted) return;
    const mine = new AbortController();
    const leave = () => { if (signal.aborted || document.hidden) mine.abort(); };
    signal.addEventListener("abort", leave, { signal: mine.signal });
    document.addEventListener("visibilitychange", leave, { signal: mine.signal });
    let why = "the dashboard has closed the connection";
    try {
      const answer = await call("GET", apiPath(machine, "stream"), { query: { ...query, experiment }, signal: mine.signal });
      state("on");
      let first = true;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const blocks = text.split("\n\n");
        text = blocks.pop();
        for (const block of blocks) {
          const lines = block.split("\n");
          const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
          if (!data) continue;
          const change = JSON.parse(data);
          if (change.summary) change.summary.name = query.experiment;
          if (lines.includes("event: problem")) throw new Error(change.error);
          told({ ...change, fresh: first, again: first && opened > 0 });
          if (first) { opened += 1; first = false; }
          wait = 500;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      why = error.message;
    }
    const hidden = mine.signal.aborted;
    mine.abort();
    if (signal.aborted) return;
    state("lost", why);
    if (hidden) continue;
    await new Promise((resolve) => { setTimeout(resolve, wait); });
    wait = Math.min(wait * 2, 10000);
  }
}
