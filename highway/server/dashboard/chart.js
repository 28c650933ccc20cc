// Charts: uPlot with our colours, sized by its box, with a value under the pointer.
/* global uPlot */

import { color } from "./dom.js";
import { rate, time } from "./format.js";

const FONT = "12px system-ui, sans-serif";

function tip(text) {
  const box = document.createElement("div");
  box.className = "tip";
  box.hidden = true;
  return {
    hooks: {
      init: (plot) => plot.over.append(box),
      setCursor: (plot) => {
        const { idx, left, top } = plot.cursor;
        const value = idx === null || idx === undefined ? null : plot.data[1][idx];
        box.hidden = value === null || value === undefined || left < 0;
        if (box.hidden) return;
        box.textContent = text(plot.data[0][idx], value);
        box.style.left = `${Math.min(left + 10, plot.over.clientWidth - box.offsetWidth)}px`;
        box.style.top = `${Math.max(0, top - 28)}px`;
      },
    },
  };
}

export class Chart {
  constructor(box, { stroke, seconds = 0, points = false, format = rate }) {
    this.box = box;
    this.settings = { stroke, seconds, points, format };
    this.data = [[], []];
    this.build = this.build.bind(this);
    this.sizes = new ResizeObserver(() => this.plot && this.plot.setSize(this.size()));
    this.sizes.observe(box);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", this.build);
    this.build();
  }

  size() {
    return { width: Math.max(120, this.box.clientWidth), height: Math.max(80, this.box.clientHeight) };
  }

  build() {
    if (this.plot) this.plot.destroy();
    const { stroke, seconds, points, format } = this.settings;
    const line = color(stroke);
    const axis = { stroke: color("muted"), font: FONT, ticks: { show: false } };
    const grid = { stroke: color("line"), width: 1 };
    const x = seconds
      ? { range: (_, min, max) => [Math.max(max - seconds, Math.min(min, max - 60)), max] }
      : { range: (_, min, max) => (min === max ? [min - 1, max + 1] : [min, max]) };
    const y = seconds ? { range: (_, __, max) => [0, Math.max(10, max * 1.12)] } : {};
    const options = {
      ...this.size(),
      padding: [8, 22, 0, 0],
      cursor: { y: false, drag: { setScale: false, x: false }, points: { size: 7 } },
      legend: { show: false },
      scales: { x, y },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: points ? 96 : 70, values: [[3600, "{HH}:{mm}", null, null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1], [0.001, "{HH}:{mm}:{ss}.{fff}", null, null, null, null, null, null, 1]] },
        { ...axis, grid, size: 52, values: (_, splits) => splits.map((value) => format(value)) },
      ],
      series: [{}, { stroke: line, width: 1.75, fill: seconds ? `${line}22` : undefined, points: { show: points, size: 4, fill: line } }],
      plugins: [tip((at, value) => `${time(at * 1000).slice(0, points ? 12 : 8)}   ${format(value)}`)],
    };
    this.plot = new uPlot(options, this.data, this.box);
  }

  set(times, values) {
    this.data = [times, values];
    this.plot.setData(this.data);
  }

  close() {
    this.sizes.disconnect();
    this.dark.removeEventListener("change", this.build);
    this.plot.destroy();
  }
}
