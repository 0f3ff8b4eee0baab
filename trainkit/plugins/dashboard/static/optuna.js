// The token for Optuna's pages, which know of none: kept in the tab, and sent as a header with what they ask for.
const KEY = "trainkit-optuna-token";
const here = new URL(location.href);
if (here.searchParams.has("token")) {
  sessionStorage.setItem(KEY, here.searchParams.get("token"));
  here.searchParams.delete("token");
  history.replaceState(history.state, "", here);
}
const token = sessionStorage.getItem(KEY) ?? "";

const ask = window.fetch;
window.fetch = (what, options) => {
  const request = new Request(what, options);
  if (new URL(request.url).origin === location.origin) request.headers.set("Authorization", `Bearer ${token}`);
  return ask(request);
};

// A download is a link, which takes no header.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[download]");
  if (!link) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin) return;
  to.searchParams.set("token", token);
  link.href = to;
}, { capture: true });
