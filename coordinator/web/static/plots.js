// Plots of the last hours, by uPlot; figures come from the server that serves the page.
import uPlot from "/static/vendor/uPlot.esm.js";
import { element } from "/static/words.js";
const PLOTS = [
  ["Rows a second", [["rows_in", "sources", "#0b63ce"], ["rows_out", "sinks", "#17803d"]]],
  ["Hottest subtask, %", [["busy", "busy", "#e25822"], ["backpressured", "back-pressured", "#5a82ff"]]],
  ["Checkpoint duration, ms", [["checkpoint_duration", "latest", "#8a4fd0"]]],
  ["Checkpoint size, bytes", [["checkpoint_size", "latest", "#9a5b00"]]],
];
export function plots(figures) {
  if (figures.time.length < 2) return element("p", { class: "soft" }, "Plots begin when this server has looked twice; it looks every five seconds.");
  const color = getComputedStyle(document.body).color, grid = "#8885";
  return element("div", { class: "plots" }, PLOTS.map(([title, series]) => {
    const place = element("div");
    queueMicrotask(() => requestAnimationFrame(() => {
      if (!place.isConnected) return;
      new uPlot({ width: Math.max(280, place.clientWidth), height: 190, legend: { live: false }, cursor: { drag: { x: false } },
        axes: [{ stroke: color, grid: { stroke: grid } }, { stroke: color, grid: { stroke: grid }, size: 62 }], scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
        series: [{}, ...series.map(([, label, stroke]) => ({ label, stroke, width: 2, points: { show: false } }))] },
      [figures.time, ...series.map(([name]) => figures[name])], place);
    }));
    const last = series.map(([name, label]) => `${label} ${Math.round(figures[name].at(-1))}`).join(", ");
    return element("figure", { class: "plot", "aria-label": `${title}: now ${last}` }, element("h3", {}, title), place);
  }));
}
