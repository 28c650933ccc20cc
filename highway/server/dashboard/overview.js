// The first page: what needs attention, seven numbers, two charts, the logs and who reads them.

import { Chart } from "./chart.js";
import { h, put, show, svg } from "./dom.js";
import { number, rate, short, size, sizeText, span } from "./format.js";

const WINDOW_S = 300;
const SPARK = 60; // samples of a log's rate
const MAX_BARS = 40;
const KINDS = {
  "read-only": "Read-only", disk: "Disk", damaged: "Damaged", reload: "Reload", certificate: "Certificate",
  bridge: "Bridge", missed: "Missed", stuck: "Stuck",
};

export function attentionItem(item) {
  return h("li", { class: item.level, "data-kind": item.kind },
    h("b", {}, KINDS[item.kind] || item.kind),
    h("span", {}, item.text),
    item.when_ms ? h("span", { class: "when" }, `${span(Math.max(0, (Date.now() - item.when_ms) / 1000))} ago`) : null);
}

class Tile {
  constructor(id, title, kind = "") {
    this.value = h("span");
    this.unit = h("small");
    this.sub = h("div", { class: "sub" });
    this.kind = kind;
    this.element = h("section", { class: `card tile ${kind}`, id },
      h("h2", {}, title), h("div", { class: "value" }, this.value, this.unit), this.sub);
  }

  set(value, unit = "", sub = "", state = "") {
    put(this.value, value);
    put(this.unit, unit);
    put(this.sub, sub);
    this.element.className = `card tile ${this.kind} ${state}`;
  }
}

function perSecond(samples, column) {
  const times = [];
  const values = [];
  for (let at = 1; at < samples.length; at += 1) {
    const seconds = (samples[at][0] - samples[at - 1][0]) / 1000;
    if (seconds < 0.2) continue;
    times.push(samples[at][0] / 1000);
    // A counter that went back belongs to a broker that was started again.
    values.push(Math.max(0, samples[at][column] - samples[at - 1][column]) / seconds);
  }
  return [times, values];
}

export class Overview {
  constructor(page) {
    document.title = "Highway";
    this.lags = new Map(); // reader and log -> [time, lag] some seconds ago
    this.tiles = {
      clients: new Tile("clients", "Clients"),
      in: new Tile("in", "Messages in", "in"),
      out: new Tile("out", "Messages out", "out"),
      dropped: new Tile("dropped", "Dropped"),
      sync: new Tile("sync", "Sync p99"),
      risk: new Tile("risk", "At risk now"),
      disk: new Tile("disk", "Disk full in"),
    };
    this.attention = h("div", { id: "attention" });
    this.charts = ["in", "out"].map((way) => this.chart(way));
    this.logs = h("tbody");
    this.hidden = h("span", { class: "muted" });
    this.rows = new Map();
    this.readers = h("div", { class: "readers", id: "readers" });
    show(page,
      this.attention,
      h("div", { class: "tiles" }, Object.values(this.tiles).map((tile) => tile.element)),
      h("div", { class: "charts" }, this.charts.map((chart) => chart.card)),
      h("section", { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Topics and their logs"), this.hidden),
        h("table", { class: "logs" },
          h("thead", {}, h("tr", {},
            ["Log", "Durability"].map((name) => h("th", {}, name)),
            ["Start", "End", "Rate"].map((name) => h("th", { class: "right" }, name)),
            h("th", {}, "Last minute"),
            ["Bytes", "Compression", "Readers"].map((name) => h("th", { class: "right" }, name)))),
          this.logs)),
      h("section", { class: "card" },
        h("div", { class: "head" }, h("h2", {}, "Subscribers, the furthest behind first")),
        this.readers));
    for (const chart of this.charts) chart.plot = new Chart(chart.box, { stroke: chart.way, seconds: WINDOW_S });
  }

  chart(way) {
    const box = h("div", { class: "chart" });
    const now = h("span", { class: "now" });
    const title = way === "in" ? "Messages in, a second" : "Messages out, a second";
    const card = h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, title), now), box);
    return { way, box, now, card, column: way === "in" ? 1 : 2 };
  }

  update({ samples, state, rates: logRates }) {
    const items = state.attention.map(attentionItem);
    show(this.attention, items.length
      ? h("ul", { class: "attention" }, items)
      : h("div", { class: "calm" }, "Nothing needs attention"));
    const recent = samples.slice(-WINDOW_S - 2);
    const rates = {};
    for (const chart of this.charts) {
      const [times, values] = perSecond(recent, chart.column);
      chart.plot.set(times, values);
      rates[chart.way] = values.at(-1) || 0;
      put(chart.now, `${rate(rates[chart.way])} /s`);
    }
    this.updateTiles(state, rates, samples);
    this.updateLogs(state, logRates);
    this.updateReaders(state);
  }

  updateTiles(state, rates, samples) {
    const { clients, in: incoming, out, dropped, sync, risk, disk } = this.tiles;
    clients.set(number(state.clients_connected), "", `${number(state.sessions)} ${state.sessions === 1 ? "session" : "sessions"}`);
    incoming.set(rate(rates.in), "/s", `${short(state.publish_received)} since the start`);
    out.set(rate(rates.out), "/s", `${short(state.publish_sent)} since the start`);
    const now = samples.length > 1 ? samples.at(-1)[3] - samples.at(-2)[3] : 0;
    dropped.set(number(state.publish_dropped), "", now > 0 ? `${number(now)} in the last second` : "since the start", state.publish_dropped > 0 ? "bad" : "");
    if (state.sync_p99_ms === null) sync.set("–", "", "no sync for a minute");
    else sync.set(state.sync_p99_ms < 10 ? String(+state.sync_p99_ms.toFixed(1)) : number(state.sync_p99_ms), "ms", "in the last minute", state.sync_p99_ms >= 500 ? "warn" : "");
    const [bytes, unit] = size(state.at_risk_bytes);
    risk.set(bytes, unit, state.at_risk_bytes ? `for ${span(state.at_risk_seconds)}` : "all is on disk", state.at_risk_seconds > 5 ? "warn" : "");
    const free = `${sizeText(state.disk_free_bytes)} free`;
    const days = state.days_left;
    if (days !== null) disk.set(days > 730 ? "> 2" : days >= 10 ? number(days) : days.toFixed(1), days > 730 ? "years" : "days", free, days < 3 ? "bad" : "");
    else disk.set(state.growth_bytes_per_second === null ? "–" : "∞", "", free);
  }

  updateLogs(state, logRates) {
    put(this.hidden, state.logs_hidden ? `the busiest; ${number(state.logs_hidden)} more are not shown` : "");
    const names = new Set(state.logs.map((log) => log.log));
    for (const [name, row] of this.rows) {
      if (!names.has(name)) { row.element.remove(); this.rows.delete(name); }
    }
    for (const log of state.logs) {
      const rates = logRates.get(log.log) || [];
      if (!this.rows.has(log.log)) this.addRow(log);
      this.rows.get(log.log).set(log, rates.at(-1) || 0, rates);
    }
  }

  addRow(log) {
    const target = `#/log/${encodeURIComponent(log.log)}`;
    const cell = (label, right = true) => h("td", { class: right ? "right" : null, "data-label": label });
    const filters = h("span", { class: "filters mono" });
    const badge = h("span", { class: "badge" });
    const line = svg("path");
    const cells = Object.fromEntries(["Start", "End", "Rate", "Bytes", "Compression", "Readers"].map((name) => [name, cell(name)]));
    const element = h("tr", { class: "log", "data-log": log.log, onclick: () => { location.hash = target; } },
      h("td", { "data-label": "Log" }, h("a", { href: target }, log.log), filters),
      h("td", { "data-label": "Durability" }, badge),
      cells.Start, cells.End, cells.Rate,
      h("td", { "data-label": "Last minute" }, svg("svg", { class: "spark", viewBox: "0 0 92 22", preserveAspectRatio: "none" }, line)),
      cells.Bytes, cells.Compression, cells.Readers);
    const set = (now, perSec, rates) => {
      put(filters, now.topics.join("  "));
      put(badge, now.durability);
      badge.className = `badge ${now.durability}`;
      put(cells.Start, number(now.log_start_offset));
      put(cells.End, number(now.high_watermark));
      put(cells.Rate, `${rate(perSec)} /s`);
      put(cells.Bytes, sizeText(now.bytes));
      put(cells.Compression, now.ratio === null ? "–" : `${now.ratio.toFixed(1)} : 1`);
      put(cells.Readers, now.catchup ? `${now.live} live, ${now.catchup} behind` : `${now.live} live`);
      const top = Math.max(1, ...rates);
      const points = rates.map((value, at) => `${(92 - (rates.length - 1 - at) * (92 / (SPARK - 1))).toFixed(1)} ${(21 - 20 * value / top).toFixed(1)}`);
      line.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    };
    this.rows.set(log.log, { element, set });
    this.logs.append(element);
  }

  updateReaders(state) {
    const readers = state.readers.filter((one) => one.lag || one.high_watermark > one.log_start_offset);
    if (!readers.length) {
      show(this.readers, h("p", { class: "note" }, "Nobody subscribes to anything that is logged"));
      return;
    }
    show(this.readers, readers.slice(0, MAX_BARS).map((reader) => this.reader(reader, state.time_ms)));
  }

  reader(reader, now) {
    const range = Math.max(1, reader.high_watermark - reader.log_start_offset);
    const done = Math.min(1, Math.max(0, (reader.next_offset - reader.log_start_offset) / range));
    const share = reader.lag ? Math.min(done, 0.995) : 1;
    const bar = h("i");
    bar.style.width = `${(share * 100).toFixed(2)}%`;
    const track = h("div", { class: "track", role: "progressbar", "aria-valuenow": Math.floor(share * 100), "aria-valuemin": 0, "aria-valuemax": 100 }, bar);
    return h("div", { class: `reader ${reader.state}`, "data-reader": reader.reader },
      h("span", { class: "name", title: reader.reader }, reader.reader),
      h("span", { class: "muted" }, reader.log), track,
      h("span", { class: "left" }, this.left(reader, now)));
  }

  // How far behind, and when it will have caught up, by how fast the lag shrank in the last ten seconds.
  left(reader, now) {
    const key = `${reader.log} ${reader.reader}`;
    if (!reader.lag) {
      this.lags.delete(key);
      return reader.state === "OFFLINE" ? "away, has everything" : "live";
    }
    const behind = `${number(reader.lag)} behind`;
    if (reader.state === "OFFLINE") return `away, ${behind}`;
    const seen = this.lags.get(key) || this.lags.set(key, []).get(key);
    if (!seen.length || seen.at(-1)[0] < now) seen.push([now, reader.lag]);
    while (seen.length > 1 && seen[0][0] < now - 10_000) seen.shift();
    const [at, lag] = seen[0];
    const speed = now > at ? (lag - reader.lag) / ((now - at) / 1000) : 0;
    return speed > 0 ? `${behind}, ${span(reader.lag / speed)} to go` : behind;
  }

  close() {
    for (const chart of this.charts) chart.plot.close();
  }
}
