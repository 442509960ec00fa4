// How figures and parts of the page are written; nothing here asks the server.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
export const count = (n) => Number(n).toLocaleString("en-US");
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${unit ? n.toFixed(1) : n} ${units[unit]}`;
}
export function lasting(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}
export const time = (ms) => (ms ? new Date(ms).toLocaleString() : "–");
export const bare = (name, prefix) => String(name).replace(prefix, "");
export function logLine(line) {
  let said;
  try { said = JSON.parse(line); } catch { return line; } // what a function printed, or a line that was too long
  if (!said?.ts || !said.msg) return line;
  const { ts, level, msg, context, exception } = said;
  const details = Object.entries(context ?? {}).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return [`${ts} ${level} ${msg}  ${details.join(" ")}`, exception?.stacktrace].filter(Boolean).join("\n");
}
export const jobStatus = (name) => bare(name, "JOB_STATUS_");
export const taskState = (name) => bare(name, "EXECUTION_STATE_");
export const checkpointStatus = (name) => bare(name, "CHECKPOINT_STATUS_");
export const status = (name) => element("span", { class: `status ${name}` }, name);
export function share(perSecond, kind = "") {
  const percent = Math.round(perSecond / 10);
  const fill = element("i");
  fill.style.width = `${percent}%`;
  return element("span", {}, element("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill), `${percent} %`);
}
export function table(caption, columns, rows, empty = "Nothing here.") {
  if (!rows.length) return element("p", { class: "soft" }, empty);
  const head = columns.map(([name, kind]) => element("th", { scope: "col", class: kind || "" }, name));
  const body = rows.map((row) => element("tr", {}, row.map((cell, n) => element("td", { class: columns[n][1] || "" }, cell ?? ""))));
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    element("table", {}, element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}
