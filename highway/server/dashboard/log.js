// The page of a log: what comes in live, replay from anywhere, one message by its offset, and a field of it over time.

import { Problem, get, listen, records } from "./api.js";
import { Chart } from "./chart.js";
import { h, put, show } from "./dom.js";
import { day, hex, number, sizeText, time } from "./format.js";

const MAX_SHOWN = 500;
const REPLAY_LIMIT = 500;
const NOTHING_CHOSEN = "Choose a message to see all of it.";

function bytesOf(record) {
  if (record.payload !== undefined) return new TextEncoder().encode(record.payload);
  return Uint8Array.from(atob(record.payload_base64), (letter) => letter.charCodeAt(0));
}

function jsonOf(record) {
  if (record.json === undefined) {
    try {
      record.json = record.payload === undefined ? null : JSON.parse(record.payload);
    } catch {
      record.json = null;
    }
  }
  return record.json;
}

// Numbers of a payload by their path: {"speed": 3, "gps": {"lat": 1}} has `speed` and `gps.lat`.
function* numbersOf(value, path = "", depth = 0) {
  if (typeof value === "number") yield [path || "(value)", value];
  else if (value && typeof value === "object" && depth < 4) {
    for (const [key, inner] of Object.entries(value)) yield* numbersOf(inner, path ? `${path}.${key}` : key, depth + 1);
  }
}

export class LogPage {
  constructor(page, name, topic = "") {
    document.title = `${topic || name} · Highway`;
    this.name = name;
    this.found = []; // oldest first
    this.rows = new Map(); // offset -> row
    this.chosen = null;
    this.asHex = false;
    this.field = "";
    this.of = null; // topic of the plot: that of the first message, until another is chosen
    this.reading = null;
    this.build(page);
    this.topic.value = topic;
    this.loadFacts();
    this.follow();
  }

  build(page) {
    this.facts = h("dl", { class: "facts" });
    this.gaps = h("ul", { class: "attention", id: "gaps" });
    this.topic = h("input", { class: "wide mono", placeholder: "#", id: "topic", spellcheck: "false", autocomplete: "off" });
    this.from = h("input", { value: "-100", id: "from", list: "starts", spellcheck: "false", autocomplete: "off" });
    this.offset = h("input", { inputmode: "numeric", placeholder: "offset", id: "offset", autocomplete: "off" });
    this.tail = h("button", { type: "button", id: "tail", onclick: () => (this.following ? this.pause() : this.follow()) }, "Live tail");
    this.problem = h("p", { class: "problem", role: "alert" });
    this.state = h("span", { class: "muted", id: "state" });
    const starts = ["earliest", "-100", "15m", "1h", "1d", new Date().toISOString().replace(/^/, "@").slice(0, 17) + ":00Z"];
    const controls = h("section", { class: "card" },
      h("div", { class: "controls" },
        h("label", {}, "Topic filter", this.topic),
        h("div", { class: "group" }, this.tail),
        this.form("replay", h("label", {}, "Replay from", this.from), "Replay", () => this.replay(this.from.value)),
        this.form("fetch", h("label", {}, "Fetch one", this.offset), "Fetch", () => this.fetchOne()),
        h("datalist", { id: "starts" }, starts.map((value) => h("option", { value })))),
      this.problem);
    this.topic.addEventListener("change", () => (this.following ? this.follow() : this.replay(this.from.value)));
    this.body = h("tbody");
    const table = h("table", {},
      h("thead", {}, h("tr", {}, h("th", { class: "offset" }, "Offset"), h("th", { class: "time" }, "Time"), h("th", { class: "topic" }, "Topic"), h("th", {}, "Payload"))),
      this.body);
    this.more = h("button", { type: "button", id: "more", hidden: true, onclick: () => this.goOn() }, "Go on");
    this.json = h("button", { type: "button", "aria-pressed": "true", onclick: () => this.view(false) }, "JSON");
    this.hexButton = h("button", { type: "button", id: "hex", "aria-pressed": "false", onclick: () => this.view(true) }, "Hex");
    this.about = h("p", { class: "note" }, NOTHING_CHOSEN);
    this.payload = h("pre", { id: "payload", hidden: true });
    this.fields = h("select", { id: "field", onchange: () => { this.field = this.fields.value; this.draw(); } });
    this.topics = h("select", { id: "plot-topic", class: "wide-select mono", onchange: () => { this.of = this.topics.value; this.draw(); } });
    this.plotBox = h("div", { class: "plot", id: "plot" });
    this.plotCard = h("section", { class: "card", hidden: true },
      h("div", { class: "head" }, h("h2", {}, "Over time"), this.fields, h("span", { class: "muted" }, "of"), this.topics, h("span", { class: "now", id: "last-value" })), this.plotBox);
    show(page,
      h("section", { class: "card" },
        h("div", { class: "head" }, h("a", { href: "#/", class: "muted" }, "Overview"), h("strong", {}, this.name)), this.facts),
      this.gaps, controls, this.plotCard,
      h("div", { class: "split" },
        h("section", { class: "card" },
          h("div", { class: "head" }, h("h2", {}, "Messages"), this.state, h("span", { class: "spacer" }), this.more),
          h("div", { class: "messages" }, table)),
        h("section", { class: "card detail" },
          h("div", { class: "head" }, h("h2", {}, "Message"), h("span", { class: "spacer" }), h("div", { class: "group" }, this.json, this.hexButton)),
          this.about, this.payload)));
    this.chart = new Chart(this.plotBox, { stroke: "in", points: true, format: (value) => (Number.isInteger(value) ? number(value) : String(+value.toPrecision(6))) });
  }

  form(id, label, text, act) {
    const form = h("form", { id }, label, h("button", { class: "main" }, text));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      act();
    });
    return form;
  }

  // Of the page of one topic of this log.
  address(topic) {
    return `#/log/${encodeURIComponent(this.name)}/${encodeURIComponent(topic)}`;
  }

  get filter() {
    return this.topic.value.trim() || "#";
  }

  async loadFacts() {
    try {
      const log = await get(`logs/${encodeURIComponent(this.name)}`);
      this.setFacts(log);
      show(this.gaps, log.gaps.map((gap) => h("li", { class: gap.reason === "corruption" ? "error" : "warning" },
        h("b", {}, gap.reason), h("span", {}, gap.from === gap.to ? `offset ${gap.from}` : `offsets ${gap.from} to ${gap.to}`),
        gap.when_ms ? h("span", { class: "when" }, day(gap.when_ms).slice(0, 16)) : null)));
    } catch (error) {
      this.fail(error);
    }
  }

  setFacts(log) {
    const facts = {
      Topics: log.topics.join("  ") || "none now",
      Durability: log.durability,
      Offsets: log.high_watermark > log.log_start_offset ? `${number(log.log_start_offset)} to ${number(log.high_watermark - 1)}` : "none yet",
      Records: number(log.records),
      "On the disk": `${sizeText(log.bytes)} in ${number(log.segments)} ${log.segments === 1 ? "segment" : "segments"}`,
      Compression: log.ratio === null ? "–" : `${log.ratio.toFixed(1)} : 1`,
      Oldest: log.oldest_ms ? day(log.oldest_ms).slice(0, 19) : "–",
    };
    show(this.facts, Object.entries(facts).map(([name, value]) => h("div", { class: name === "Topics" ? "wide" : null },
      h("dt", {}, name), h("dd", { class: name === "Topics" ? "mono" : null }, value))));
  }

  update({ state }) {
    const log = state.logs.find((one) => one.log === this.name);
    if (log) this.setFacts(log);
  }

  fail(error) {
    if (error.name === "AbortError") return;
    const range = error instanceof Problem && error.body.high_watermark !== undefined && error.body.title === "OFFSET_NOT_FOUND"
      ? ` There are offsets ${error.body.log_start_offset} to ${error.body.high_watermark - 1}.` : "";
    put(this.problem, error.message + range);
  }

  // One thing is read at a time: a tail, or a replay.
  begin() {
    if (this.reading) this.reading.abort();
    this.reading = new AbortController();
    this.found = [];
    this.rows.clear();
    this.body.replaceChildren();
    this.topics.replaceChildren();
    this.of = null;
    this.more.hidden = true;
    put(this.problem, "");
    this.following = false;
    this.tail.setAttribute("aria-pressed", "false");
    return this.reading.signal;
  }

  follow() {
    const signal = this.begin();
    this.following = true;
    this.skipped = 0;
    this.tail.setAttribute("aria-pressed", "true");
    put(this.state, "waiting for the next message");
    const query = new URLSearchParams({ log: this.name, topic: this.filter });
    const onEvent = (event, value) => {
      if (event === "skipped") this.skipped += value;
      if (event === "records") this.add(value);
      put(this.state, `live${this.skipped ? `, ${number(this.skipped)} left out, too fast to show` : ""}`);
    };
    listen(`events?${query}`, signal, onEvent, (connected, error) => {
      if (error) this.fail(error);
      else if (connected) put(this.problem, "");
    });
  }

  pause() {
    this.reading.abort();
    this.following = false;
    this.tail.setAttribute("aria-pressed", "false");
    put(this.state, "stopped");
  }

  async replay(from) {
    const signal = this.begin();
    await this.read(from, signal);
  }

  goOn() {
    this.read(String(this.found.at(-1).offset + 1), this.reading.signal);
  }

  async read(from, signal) {
    put(this.state, "reading");
    let count = 0;
    let batch = [];
    try {
      for await (const record of records(this.name, { from, topic: this.filter, limit: REPLAY_LIMIT }, signal)) {
        batch.push(record);
        count += 1;
        if (batch.length === 100) {
          this.add(batch);
          batch = [];
        }
      }
      if (signal.aborted) return;
      this.add(batch);
      this.more.hidden = count < REPLAY_LIMIT;
      put(this.state, count ? `${number(count)} replayed${count < REPLAY_LIMIT ? ", to the end" : ""}` : "nothing there");
    } catch (error) {
      put(this.state, "");
      this.fail(error);
    }
  }

  async fetchOne() {
    put(this.problem, "");
    const offset = this.offset.value.trim();
    try {
      this.choose(await get(`logs/${encodeURIComponent(this.name)}/records/${encodeURIComponent(offset)}`));
    } catch (error) {
      this.fail(error);
    }
  }

  // Newest on top.
  add(fresh) {
    if (!fresh.length) return;
    this.found.push(...fresh);
    this.body.prepend(...fresh.map((record) => this.row(record)).reverse());
    for (const old of this.found.splice(0, Math.max(0, this.found.length - MAX_SHOWN))) {
      this.rows.get(old.offset)?.remove();
      this.rows.delete(old.offset);
    }
    this.offerFields(fresh);
    this.draw();
    if (!this.chosen) this.choose(fresh.at(-1), false);
  }

  row(record) {
    const payload = record.payload === undefined ? hex(bytesOf(record).subarray(0, 24)).slice(8) : record.payload.slice(0, 300);
    const topic = h("td", { class: "mono topic", title: record.topic }, record.topic);
    const row = h("tr", { "data-offset": record.offset, onclick: () => this.choose(record) },
      h("td", { class: "offset" }, String(record.offset)), h("td", { class: "time muted" }, time(record.timestamp)), topic,
      h("td", { class: "mono" }, payload));
    this.rows.set(record.offset, row);
    return row;
  }

  choose(record, byHand = true) {
    if (this.chosenRow) this.chosenRow.classList.remove("chosen");
    if (byHand) this.chosen = record;
    this.shownRecord = record;
    this.chosenRow = this.rows.get(record.offset);
    if (this.chosenRow && byHand) this.chosenRow.classList.add("chosen");
    this.view(this.asHex);
  }

  view(asHex) {
    this.asHex = asHex;
    this.json.setAttribute("aria-pressed", String(!asHex));
    this.hexButton.setAttribute("aria-pressed", String(asHex));
    const record = this.shownRecord;
    if (!record) return;
    const bytes = bytesOf(record);
    const flags = [`QoS ${record.qos}`, record.retain ? "retained" : "", `${number(bytes.length)} B`].filter(Boolean).join(", ");
    show(this.about, h("a", { class: "mono", href: this.address(record.topic), title: "Only this topic" }, record.topic), h("br"), `offset ${record.offset} · ${day(record.timestamp)} · ${flags}`);
    this.payload.hidden = false;
    const binary = asHex || record.payload === undefined;
    this.payload.classList.toggle("hex", binary);
    const value = binary ? null : jsonOf(record);
    put(this.payload, binary ? hex(bytes) : value === null ? record.payload : JSON.stringify(value, null, 2));
  }

  offerFields(fresh) {
    const known = new Set([...this.fields.options].map((option) => option.value));
    for (const record of fresh.slice(-20)) {
      for (const [path] of numbersOf(jsonOf(record))) {
        if (known.has(path) || known.size >= 60) continue;
        known.add(path);
        this.fields.append(h("option", { value: path }, path));
      }
      this.offerTopic(record);
    }
    if (!this.field && this.fields.options.length) this.field = this.fields.options[0].value;
  }

  offerTopic(record) {
    if (jsonOf(record) === null || this.topics.options.length >= 100) return;
    if ([...this.topics.options].some((option) => option.value === record.topic)) return;
    this.topics.append(h("option", { value: record.topic }, record.topic));
    if (this.of === null) this.of = record.topic;
  }

  draw() {
    if (!this.field) return;
    this.plotCard.hidden = false;
    const times = [];
    const values = [];
    for (const record of this.found) {
      if (record.topic !== this.of) continue;
      for (const [path, value] of numbersOf(jsonOf(record))) {
        if (path !== this.field) continue;
        times.push(record.timestamp / 1000);
        values.push(value);
      }
    }
    this.chart.set(times, values);
    if (values.length) put(document.getElementById("last-value"), String(values.at(-1)));
  }

  close() {
    if (this.reading) this.reading.abort();
    this.chart.close();
  }
}
