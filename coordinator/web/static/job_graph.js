// The graph of a job as SVG: dagre places the vertices, colours say how busy and how back-pressured the hottest subtask is.
import { Graph, layout } from "/static/vendor/dagre.esm.js";
import { count } from "/static/words.js";
const WIDTH = 230, HEIGHT = 84, NAMESPACE = "http://www.w3.org/2000/svg";
function svg(tag, attributes, ...children) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const cut = (text, n) => (text.length > n ? `${text.slice(0, n - 1)}…` : text);
export function vertexFigures(vertex) {
  const hottest = (name) => Math.max(0, ...vertex.subtasks.map((s) => s[name]));
  const sum = (name) => vertex.subtasks.reduce((total, s) => total + s[name], 0);
  const rates = vertex.subtasks.map((s) => s.records_in_per_second);
  const average = rates.reduce((a, b) => a + b, 0) / Math.max(1, rates.length);
  const skew = average > 0 && rates.length > 1 ? Math.round(100 * (Math.max(...rates) - average) / (Math.max(...rates) || 1)) : 0;
  const watermarks = vertex.subtasks.map((s) => s.watermark_ms).filter((ms) => Math.abs(ms) < 8e15);
  return { busy: hottest("busy_ms_per_second"), pressed: hottest("backpressured_ms_per_second"), skew,
    rowsIn: sum("records_in_per_second"), rowsOut: sum("records_out_per_second"),
    lag: watermarks.length ? Date.now() - Math.min(...watermarks) : null };
}
export function jobGraph(job) {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: "LR", nodesep: 24, ranksep: 60, marginx: 6, marginy: 6 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const vertex of job.vertices) graph.setNode(vertex.vertex_id, { width: WIDTH, height: HEIGHT });
  for (const edge of job.edges) graph.setEdge(edge.source, edge.target, {}, edge.edge_id);
  layout(graph);
  const { width, height } = graph.graph();
  const drawing = svg("svg", { class: "graph", viewBox: `0 0 ${width || WIDTH} ${height || HEIGHT}`, role: "group", "aria-label": "Graph of the job" },
    svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: "8", refY: "4", markerWidth: "7", markerHeight: "7", orient: "auto" },
      svg("path", { d: "M0 0L8 4L0 8" }))));
  drawing.style.maxWidth = `${width}px`;
  for (const edge of graph.edges()) {
    const points = graph.edge(edge).points.map((p) => `${p.x} ${p.y}`);
    drawing.append(svg("path", { d: `M${points.join("L")}`, "marker-end": "url(#tip)" }));
  }
  for (const vertex of job.vertices) {
    const { x, y } = graph.node(vertex.vertex_id), figures = vertexFigures(vertex);
    const left = x - WIDTH / 2, top = y - HEIGHT / 2;
    const hot = figures.busy >= figures.pressed ? `rgba(var(--busy),${figures.busy / 1400})` : `rgba(var(--press),${figures.pressed / 1400})`;
    const box = svg("rect", { x: left, y: top, width: WIDTH, height: HEIGHT });
    box.style.fill = hot;
    const line = (n, text, kind = "s") => { const made = svg("text", { x: left + 10, y: top + 20 + n * 18, class: kind }); made.textContent = text; return made; };
    const title = svg("title", {}); title.textContent = vertex.name;
    drawing.append(svg("a", { href: `#/job/${job.overview.job_id}/vertex/${vertex.vertex_id}` }, title, box, line(0, cut(vertex.name, 28), ""),
      line(1, `${vertex.parallelism} subtasks · ${count(figures.rowsIn)} rows/s in`),
      line(2, `busy ${Math.round(figures.busy / 10)} % · back-pressured ${Math.round(figures.pressed / 10)} %`),
      line(3, `skew ${figures.skew} %${figures.lag === null ? "" : ` · watermark ${Math.round(figures.lag / 1000)} s behind`}`)));
  }
  return drawing;
}
