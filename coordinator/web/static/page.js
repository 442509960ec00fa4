// The views of the page. Each asks the server for what it shows, every two seconds, and draws only what has changed.
import { jobGraph, vertexFigures } from "/static/job_graph.js";
import { keyGroups } from "/static/key_groups.js";
import { plots } from "/static/plots.js";
import { bare, bytes, checkpointStatus, count, element as el, jobStatus, lasting, logLine, share, status, table, taskState, time } from "/static/words.js";

const PERIOD_MS = 2000, LIVE = ["CREATED", "RUNNING", "RESTARTING", "FAILING", "CANCELLING", "RECONCILING", "SUSPENDED"];
const main = document.getElementById("main"), trouble = document.getElementById("trouble");
const HOURS = [1, 6, 24];
let drawn = "", route = "", generation = 0, hours = 1;

// --- asking the server
async function ask(path, body) {
  const headers = { "X-Snapline": "page" };
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const away = () => { throw new Error("The server of this page does not answer; the page goes on when it does."); };
  const answer = await fetch(`/api/${path}`, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) }).catch(away);
  const said = await answer.json().catch(() => null); // what stands between may answer with a page of its own
  if (answer.ok && said) return said;
  if (answer.status === 401 && (await askForToken())) return ask(path, body);
  throw new Error(said?.error || `the server answered ${answer.status}`);
}
async function askForToken() {
  const given = await dialog("This cluster has a token", "Give the value of security.auth.token; it is kept until this tab is closed.", "token", "password");
  if (given) sessionStorage.setItem("token", given);
  return Boolean(given);
}
function dialog(title, text, field, type = "text", value = "") {
  const box = document.getElementById("ask");
  if (box.open) return Promise.resolve(null);
  document.getElementById("ask-title").textContent = title;
  document.getElementById("ask-text").textContent = text;
  const input = field ? el("input", { type, value, "aria-label": field, min: 1 }) : null;
  document.getElementById("ask-fields").replaceChildren(...(input ? [el("label", {}, `${field} `, input)] : []));
  box.returnValue = "no";
  box.showModal();
  return new Promise((settle) => box.addEventListener("close", () => settle(box.returnValue === "yes" ? (input ? input.value : true) : null), { once: true }));
}
async function change(job, what, title, text, field, value) {
  const given = await dialog(title, text, field, field ? "number" : "text", value);
  if (given === null) return;
  const body = field ? { [field]: Number(given) } : { trigger_id: crypto.randomUUID?.() || String(Math.random()) };
  say(`${what} of ${job.overview.name} was asked for…`);
  try {
    const answer = await ask(`jobs/${job.overview.job_id}/${what}`, body);
    if (answer.failure) throw new Error(answer.failure.message);
    say(answer.path ? `savepoint: ${answer.path}` : `${what}: done`);
  } catch (error) { say(`${what} was not done: ${error.message}`); }
  refresh(true);
}
const say = (text) => { const line = document.getElementById("said"); if (line) line.textContent = text; };
function complain(error) { trouble.textContent = error.message; trouble.hidden = false; }

// --- views
async function jobsView() {
  const { jobs } = await ask("jobs");
  const row = (job) => [el("a", { href: `#/job/${job.job_id}` }, job.name), status(jobStatus(job.status)), time(job.start_time_ms),
    lasting((job.end_time_ms || Date.now()) - job.start_time_ms), count(job.restarts), job.latest_completed_checkpoint_id || "–",
    job.failure ? job.failure.summary : job.status_detail];
  const columns = [["Job"], ["Status"], ["Started"], ["Lasts", "n"], ["Restarts", "n"], ["Checkpoint", "n"], ["Cause or what it waits for", "long"]];
  const live = jobs.filter((job) => LIVE.includes(jobStatus(job.status)));
  const over = jobs.filter((job) => !live.includes(job)).sort((a, b) => b.end_time_ms - a.end_time_ms);
  return { data: jobs, draw: () => [el("h1", {}, "Jobs"), table("Running jobs", columns, live.map(row), "No job runs."),
    el("h2", {}, "Ended"), table("Ended jobs", columns, over.map(row), "No job has ended.")] };
}

const TABS = [["", "Overview"], ["checkpoints", "Checkpoints"], ["state", "State"], ["exceptions", "Exceptions"], ["stacks", "Stacks"], ["logs", "Logs"], ["configuration", "Configuration"]];
function jobHead(job, tab) {
  const { overview } = job, name = jobStatus(overview.status), live = LIVE.includes(name);
  const button = (text, kind, action) => el("button", { type: "button", class: kind, onclick: action }, text);
  const buttons = live ? el("div", { class: "buttons" },
    button("Savepoint", "", () => change(job, "savepoint", "Take a savepoint?", `${overview.name} goes on.`)),
    button("Rescale", "", () => change(job, "rescale", "Rescale the job?", "Every vertex gets this parallelism; the job stands still for its restart.", "parallelism", Math.max(...job.vertices.map((v) => v.parallelism)))),
    button("Stop", "", () => change(job, "stop", "Stop with a savepoint?", `${overview.name} ends; it can be started again from the savepoint.`)),
    button("Cancel", "danger", () => change(job, "cancel", "Cancel the job?", `${overview.name} ends without a savepoint. Committed output and retained checkpoints stay.`))) : null;
  return [el("div", { class: "head" }, el("h1", {}, overview.name), status(name),
    el("span", { class: "soft" }, `${time(overview.start_time_ms)} · ${lasting((overview.end_time_ms || Date.now()) - overview.start_time_ms)} · ${overview.restarts} restarts · ${job.checkpoint_counts?.completed ?? 0} checkpoints`), buttons),
  el("p", { id: "said", role: "status", class: "soft" }), overview.status_detail ? el("p", {}, overview.status_detail) : null,
  el("nav", { class: "tabs", "aria-label": "Views of the job" }, TABS.map(([path, text]) =>
    el("a", { href: `#/job/${overview.job_id}${path ? `/${path}` : ""}`, "aria-current": path === tab ? "page" : undefined }, text)))];
}
// The keys that lead are asked for when somebody presses a button, because rows of the job are looked at for them.
const leading = new Map();
async function askForKeys(id, vertexId) {
  const place = `${id}/${vertexId}`, line = () => document.getElementById(`keys-${vertexId}`);
  if (line()) line().textContent = "Rows are looked at…";
  try {
    const { keys } = await ask(`jobs/${id}/vertices/${vertexId}/keys`);
    leading.set(place, keys.length ? `Of the rows at ${time(Date.now())}: ${keys.join(", ")}` : "No rows flow now, or a function makes the key of them.");
  } catch (error) { leading.set(place, error.message); }
  if (line()) line().textContent = leading.get(place) || "";
}
const keysButton = (id, vertexId) => [el("button", { type: "button", onclick: () => askForKeys(id, vertexId) }, "Which keys lead?"), el("p", { id: `keys-${vertexId}`, role: "status" }, leading.get(`${id}/${vertexId}`) || "")];
function whyLines(id, why) {
  if (!why.findings.length) return el("p", { class: "why calm" }, why.summary);
  return why.findings.map((found, n) => el("div", { class: "why" }, el("p", {}, n ? found.summary : why.summary), found.kind === "skew" ? keysButton(id, found.vertex_id) : null));
}
const choose = (each) => () => { hours = each; refresh(true); };
const hourButtons = () => el("p", {}, HOURS.map((each) => el("button", { type: "button", "aria-pressed": String(each === hours), onclick: choose(each) }, each === 1 ? "1 hour" : `${each} hours`)));
async function jobView(id) {
  const [job, figures, why] = await Promise.all([ask(`jobs/${id}`), ask(`jobs/${id}/figures?hours=${hours}`), ask(`jobs/${id}/why`)]);
  const rows = job.vertices.map((vertex) => {
    const f = vertexFigures(vertex), states = {};
    for (const s of vertex.subtasks) states[taskState(s.state)] = (states[taskState(s.state)] || 0) + 1;
    return [el("a", { href: `#/job/${id}/vertex/${vertex.vertex_id}` }, vertex.name), Object.entries(states).map(([name, n]) => el("span", { class: `status ${name}` }, `${n} ${name} `)),
      count(f.rowsIn), count(f.rowsOut), share(f.busy), share(f.pressed, "p"), `${f.skew} %`, f.lag === null ? "–" : lasting(f.lag)];
  });
  return { data: [job, why, hours, figures.time.at(-1)], draw: () => [...jobHead(job, ""),
    whyLines(id, why), jobGraph(job),
    el("h2", {}, "Vertices"), table("Vertices", [["Vertex"], ["Subtasks"], ["Rows/s in", "n"], ["Rows/s out", "n"], ["Busy, hottest"], ["Back-pressured"], ["Skew", "n"], ["Watermark lag", "n"]], rows),
    el("h2", {}, hours === 1 ? "Last hour" : `Last ${hours} hours`), hourButtons(), plots(figures)] };
}
const queued = (queue) => (queue ? `${queue.batches} (${Math.round(100 * queue.usage)} %)` : "–");
async function vertexView(id, vertexId) {
  const job = await ask(`jobs/${id}`), vertex = job.vertices.find((each) => each.vertex_id === vertexId);
  if (!vertex) throw new Error("the job has no such vertex");
  const rows = [...vertex.subtasks].sort((a, b) => b.busy_ms_per_second - a.busy_ms_per_second).map((s) => [`${s.subtask_index + 1}/${vertex.parallelism}`, status(taskState(s.state)), s.attempt_number,
    `${s.resource_id} ${s.host}`, share(s.busy_ms_per_second), share(s.backpressured_ms_per_second, "p"), count(s.records_in_per_second), count(s.records_in), count(s.records_out), bytes(s.bytes_in), queued(s.input_queue), queued(s.output_queue),
    Math.abs(s.watermark_ms) < 8e15 ? time(s.watermark_ms) : "–", s.step_ms > 1000 ? lasting(s.step_ms) : "–"]);
  return { data: vertex, draw: () => [...jobHead(job, "-"), el("h2", {}, vertex.name), el("p", { class: "soft" }, `operators: ${vertex.operator_uids.join(", ")}; the hottest subtask first`), job.edges.some((edge) => edge.target === vertexId && edge.key_columns.length) ? keysButton(id, vertexId) : null,
    table("Subtasks", [["Subtask"], ["State"], ["Attempt", "n"], ["TaskManager"], ["Busy"], ["Back-pressured"], ["Rows/s in", "n"], ["Rows in", "n"], ["Rows out", "n"], ["Bytes in", "n"], ["Queued before", "n"], ["Queued behind", "n"], ["Watermark"], ["In a call for", "n"]], rows)] };
}
async function checkpointsView(id, number) {
  const [job, found] = await Promise.all([ask(`jobs/${id}`), ask(`jobs/${id}/checkpoints`)]);
  const one = number ? await ask(`jobs/${id}/checkpoints/${number}`) : null, c = found.counts;
  const rows = found.history.map((each) => [el("a", { href: `#/job/${id}/checkpoints/${each.checkpoint_id}` }, String(each.checkpoint_id)), status(checkpointStatus(each.status)), bare(each.snapshot_type, "SNAPSHOT_TYPE_").toLowerCase(),
    time(each.trigger_timestamp_ms), lasting(each.end_to_end_duration_ms), `${each.subtasks_acknowledged}/${each.subtasks_total}`, bytes(each.checkpointed_size_bytes), bytes(each.persisted_data_bytes), each.failure ? each.failure.message : each.path]);
  const detail = () => {
    const tasks = one.vertices.flatMap((vertex) => vertex.subtasks.map((s) => [vertex, s])).sort((a, b) => (b[1].acknowledge_timestamp_ms || Infinity) - (a[1].acknowledge_timestamp_ms || Infinity));
    return [el("h2", {}, `Checkpoint ${number}, who was last first`), table("Subtasks of the checkpoint", [["Subtask"], ["Acknowledged after", "n"], ["Start delay", "n"], ["Alignment", "n"], ["Sync", "n"], ["Async", "n"], ["Size", "n"], ["In flight", "n"]],
      tasks.map(([vertex, s]) => { const m = s.metrics || {}; return [`${vertex.name} (${s.subtask_index + 1}/${vertex.subtasks.length})`, s.acknowledge_timestamp_ms ? lasting(s.acknowledge_timestamp_ms - one.overview.trigger_timestamp_ms) : "waits",
        lasting(m.checkpoint_start_delay_ms || 0), lasting(m.alignment_duration_ms || 0), lasting(m.sync_duration_ms || 0), lasting(m.async_duration_ms || 0), bytes(s.state_size_bytes), bytes(m.bytes_persisted_during_alignment || 0)]; }))];
  };
  const d = found.end_to_end_duration_ms;
  return { data: [found, one], draw: () => [...jobHead(job, "checkpoints"), el("p", {}, c ? `${c.triggered} triggered, ${c.completed} completed, ${c.failed} failed, ${c.in_progress} in progress, ${c.restored} restored` : "none yet"),
    d && d.count ? el("p", { class: "soft" }, `duration: half within ${lasting(d.p50)}, 99 % within ${lasting(d.p99)}, longest ${lasting(d.max)}`) : null,
    one ? detail() : null, el("h2", {}, "History"), table("Checkpoints", [["Id"], ["Status"], ["Kind"], ["Triggered"], ["Duration", "n"], ["Acknowledged", "n"], ["Size", "n"], ["In flight", "n"], ["Where, or why not", "long"]], rows)] };
}
// What a snapshot holds does not change, so that it is asked for once.
const opened = new Map();
async function stateView(id, number) {
  const [job, found] = await Promise.all([ask(`jobs/${id}`), ask(`jobs/${id}/checkpoints`)]);
  const there = [...new Map([...found.history, found.latest_savepoint, found.latest_completed].filter((each) => each && checkpointStatus(each.status) === "COMPLETED" && !each.discarded).map((each) => [each.checkpoint_id, each])).values()].slice(0, 20);
  const chosen = Number(number) || there[0]?.checkpoint_id;
  if (!chosen) return { data: job.overview.status, draw: () => [...jobHead(job, "state"), el("p", { class: "soft" }, "No checkpoint of the job is complete, or its files are gone.")] };
  if (!number) history.replaceState(null, "", `#/job/${id}/state/${chosen}`); // the view stays with this one
  const key = `${id}/${chosen}`;
  if (!opened.has(key)) { opened.clear(); opened.set(key, await ask(`jobs/${id}/checkpoints/${chosen}/state`)); }
  const snapshot = opened.get(key), kind = (each) => bare(each.snapshot_type, "SNAPSHOT_TYPE_").toLowerCase().replaceAll("_", " ");
  const total = (operator) => operator.subtasks.reduce((sum, s) => sum + s.keyed_bytes + s.element_bytes + s.in_flight_bytes, 0);
  const one = (operator) => [el("h2", {}, operator.name), el("p", { class: "soft" }, `uid ${operator.uid} · ${bytes(total(operator))} · ${operator.parallelism} subtasks, ${operator.max_parallelism} key groups${operator.key.length ? ` · key ${operator.key.map((k) => `${k.name} ${k.type}`).join(", ")}` : ""}`),
    table(`States of ${operator.name}`, [["State"], ["Kind"], ["Type", "long"]], operator.states.map((s) => [s.name, s.kind.replaceAll("_", " "), s.type]), "None has a name."), operator.key_groups.length ? keyGroups(operator) : null,
    el("h3", {}, "By subtask"), table(`Subtasks of ${operator.name}`, [["Subtask"], ["Key groups", "n"], ["Keys", "n"], ["Keyed state", "n"], ["Elements", "n"], ["Lists", "n"], ["In flight", "n"]],
      operator.subtasks.map((s) => [`${s.subtask_index + 1}/${operator.parallelism}`, s.last_key_group < s.first_key_group ? "–" : `${s.first_key_group} to ${s.last_key_group}`, s.keys_at_most < 0 ? "not counted" : count(s.keys_at_most), bytes(s.keyed_bytes), count(s.elements), bytes(s.element_bytes), bytes(s.in_flight_bytes)]))];
  return { data: [chosen, there.map((each) => each.checkpoint_id), job.overview.status], draw: () => [...jobHead(job, "state"),
    el("p", {}, `What ${kind(snapshot)} ${snapshot.checkpoint_id} of ${time(snapshot.timestamp_ms)} holds: ${bytes(snapshot.operators.reduce((sum, each) => sum + total(each), 0))}`), el("p", { class: "soft" }, snapshot.path),
    snapshot.cut_short ? el("p", { class: "why" }, snapshot.cut_short) : null,
    el("nav", { class: "tabs", "aria-label": "Snapshots" }, there.map((each) => el("a", { href: `#/job/${id}/state/${each.checkpoint_id}`, "aria-current": each.checkpoint_id === chosen ? "page" : undefined }, `${kind(each)} ${each.checkpoint_id}`))),
    snapshot.operators.length ? [...snapshot.operators].sort((a, b) => total(b) - total(a)).map(one) : el("p", { class: "soft" }, "No operator has state.")] };
}
async function exceptionsView(id) {
  const job = await ask(`jobs/${id}`);
  return { data: job.failures, draw: () => [...jobHead(job, "exceptions"), job.failures.length ? job.failures.map((entry) => el("section", {}, el("h2", {}, `${time(entry.timestamp_ms)} ${entry.task_name}`),
    el("p", {}, entry.failure.summary), el("p", { class: "soft" }, [entry.resource_id, entry.failure.operator_uid && `operator ${entry.failure.operator_uid}`, entry.failure.position].filter(Boolean).join(" · ")),
    entry.failure.traceback ? el("pre", { tabindex: "0" }, entry.failure.traceback) : null)) : el("p", { class: "soft" }, "The job has not failed.")] };
}
async function stacksView(id) {
  const [job, why] = await Promise.all([ask(`jobs/${id}`), ask(`jobs/${id}/why?stacks`)]);
  const dumps = await ask(`jobs/${id}/stacks`);
  return { data: [why, Date.now()], slow: true, draw: () => [...jobHead(job, "stacks"), el("p", { class: `why ${why.findings.length ? "" : "calm"}` }, why.summary), dumps.dumps.map((dump) => [el("h2", {}, dump.resource_id),
    dump.stacks.filter((s) => s.task_name).map((s) => el("section", {}, el("h3", {}, s.task_name), el("pre", { tabindex: "0" }, [...s.frames].reverse().join("\n"))))]), dumps.dumps.length ? null : el("p", { class: "soft" }, "No TaskManager runs a task of the job.")] };
}
const logOf = (dump) => el("pre", { class: "log", tabindex: "0" }, el("code", {}, dump.log.map(logLine).join("\n") || "It has written nothing."));
async function logsView(id) {
  const [job, found] = await Promise.all([ask(`jobs/${id}`), ask(`jobs/${id}/logs`)]);
  return { data: found, draw: () => [...jobHead(job, "logs"), found.dumps.map((dump) => [el("h2", {}, el("a", { href: `#/taskmanager/${dump.resource_id}` }, dump.resource_id)), logOf(dump)]),
    found.dumps.length ? null : el("p", { class: "soft" }, "No TaskManager runs a task of the job.")] };
}
async function logView(id) {
  const found = await ask(`taskmanagers/${encodeURIComponent(id)}/log?lines=1000`);
  return { data: found, draw: () => [el("h1", {}, id), el("p", { class: "soft" }, "The last lines that it has written: its log, and what functions print."), found.dumps.map(logOf), found.silent.length ? el("p", {}, "It did not answer in time.") : null] };
}
const SETTING = [["Setting"], ["Value", "long"], ["From", "long"]], UNSET = [["Setting"], ["Value", "long"], ["What it does", "long"]];
function clusterSettings(settings) {
  const [set, unset] = [true, false].map((given) => settings.filter((each) => (each.origin !== "default") === given));
  return [el("h2", {}, "The coordinator"), table("Settings of the coordinator", SETTING, set.map((each) => [each.key, each.value, each.origin]), "Nobody has set anything."),
    el("h2", {}, "Defaults"), table("Defaults", UNSET, unset.map((each) => [each.key, each.value || "–", each.description]))];
}
async function configurationView(id) {
  const older = () => ({ settings: [] }); // a coordinator that cannot say it
  const [job, { settings }] = await Promise.all([ask(`jobs/${id}`), ask("configuration").catch(older)]);
  const own = Object.entries(job.configuration).sort(([a], [b]) => (a < b ? -1 : 1));
  return { data: [job.configuration, settings], draw: () => [...jobHead(job, "configuration"), el("h2", {}, "The job"),
    table("Settings of the job", SETTING, own.map(([key, value]) => [key, value, job.configuration_origins?.[key] || "the job"]), "The job has no settings of its own."),
    clusterSettings(settings.filter((each) => each.origin !== "default" || !(each.key in job.configuration)))] };
}
async function clusterConfigurationView() {
  const { settings } = await ask("configuration");
  return { data: settings, draw: () => [el("h1", {}, "Configuration"), clusterSettings(settings)] };
}
// What a process uses: memory, with its growth where it grows without a break, processor, threads, files.
function processCells({ process: used, memory_growth_bytes: grown = 0, memory_growth_ms: over = 0 }) {
  if (!used) return ["–", "–", "–", "–"];
  const memory = grown ? el("span", { class: "status FAILING" }, `${bytes(used.resident_bytes)}, +${bytes(grown)} in ${lasting(over)}`) : bytes(used.resident_bytes);
  return [memory, `${Math.round(used.cpu_ms_per_second / 10)} %`, count(used.threads), count(used.open_files)];
}
async function taskManagersView() {
  const found = await ask("taskmanagers");
  return { data: found, draw: () => [el("h1", {}, "TaskManagers"), table("TaskManagers", [["Id"], ["Host"], ["Process", "n"], ["Executor"], ["Version"], ["Slots", "n"], ["Free", "n"], ["Memory", "n"], ["CPU", "n"], ["Threads", "n"], ["Files", "n"], ["Log"]],
    found.task_managers.map((each) => [el("a", { href: `#/taskmanager/${each.resource_id}` }, each.resource_id), each.host, each.pid, each.executor_id || "–", each.version, each.slots, each.draining ? "draining" : each.free_slots, ...processCells(each), /^https?:/.test(each.log_url) ? el("a", { href: each.log_url, rel: "noreferrer" }, "log") : "–"]), "No TaskManager is registered."),
    found.lost.length ? el("p", { class: "soft" }, `lost under this leader: ${found.lost.slice(-20).join(", ")}`) : null] };
}

// --- which view, and when
function viewOf(parts) {
  if (parts[0] === "taskmanager") return logView(decodeURIComponent(parts[1]));
  if (parts[0] === "configuration") return clusterConfigurationView();
  if (parts[0] === "taskmanagers") return taskManagersView();
  if (parts[0] !== "job") return jobsView();
  const [, id, kind, which] = parts;
  return { vertex: () => vertexView(id, which), checkpoints: () => checkpointsView(id, which), state: () => stateView(id, which), exceptions: () => exceptionsView(id), stacks: () => stacksView(id), logs: () => logsView(id), configuration: () => configurationView(id) }[kind]?.() ?? jobView(id);
}
let timer = 0;
async function refresh(always = false) {
  clearTimeout(timer);
  const mine = ++generation, here = location.hash.slice(2);
  let period = PERIOD_MS;
  try {
    const [view, cluster] = await Promise.all([viewOf(here.split("/")), ask("overview")]);
    if (mine !== generation) return;
    const now = JSON.stringify(view.data);
    if (view.slow) period = 10000;
    if (here !== route || now !== drawn || always) {
      const focused = document.activeElement?.closest?.("main") ? document.activeElement.textContent : null, said = document.getElementById("said")?.textContent;
      main.replaceChildren(...[view.draw()].flat(Infinity).filter(Boolean));
      if (here === route && said) say(said);
      if (here !== route) { window.scrollTo(0, 0); document.title = `${main.querySelector("h1")?.textContent ?? "Jobs"} · Snapline`; }
      else if (focused) [...main.querySelectorAll("a,button")].find((each) => each.textContent === focused)?.focus();
      [route, drawn] = [location.hash.slice(2), now]; // a view may have said which one it is
    }
    document.getElementById("cluster").textContent = `${cluster.leader} · Snapline ${cluster.version} · ${cluster.process ? `${bytes(cluster.process.resident_bytes)}, ${Math.round(cluster.process.cpu_ms_per_second / 10)} % CPU · ` : ""}${cluster.task_managers} TaskManagers · ${cluster.free_slots} of ${cluster.slots} slots free`;
    trouble.hidden = true;
  } catch (error) { if (mine === generation) complain(error); }
  timer = setTimeout(refresh, document.hidden ? 5 * period : period);
}
addEventListener("hashchange", () => refresh());
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
refresh();
