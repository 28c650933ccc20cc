// Which page is shown, and the one stream of state that all of them read.

import { Problem, listen, setToken } from "./api.js";
import { h, put, show } from "./dom.js";
import { span } from "./format.js";
import { LogPage } from "./log.js";
import { Overview } from "./overview.js";

const KEEP = 600; // samples: ten minutes

const KEEP_RATES = 60;

const page = document.getElementById("page");
const health = document.getElementById("health");
const uptime = document.getElementById("uptime");
// What the pages draw: `samples` are [time_ms, received, sent, dropped], `state` is the newest,
// `rates` are those of the last minute, by log.
const model = { samples: [], rates: new Map(), state: null };
let shown = null;

function route() {
  const [, kind, name, topic = ""] = location.hash.split("/");
  if (shown) shown.close();
  page.replaceChildren();
  shown = kind === "log" && name ? new LogPage(page, decodeURIComponent(name), decodeURIComponent(topic)) : new Overview(page, model);
  if (model.state) shown.update(model);
  scrollTo(0, 0);
}

function setHealth(text, kind) {
  put(health, text);
  health.className = `pill ${kind}`;
}

function onEvent(event, value) {
  if (event === "history") {
    model.samples = value;
    return;
  }
  if (event === "rates") model.rates = new Map(Object.entries(value));
  if (event !== "state") return;
  const before = model.state;
  model.state = value;
  const last = model.samples.at(-1);
  if (!last || value.time_ms > last[0]) {
    model.samples.push([value.time_ms, value.publish_received, value.publish_sent, value.publish_dropped]);
  }
  if (model.samples.length > KEEP) model.samples.splice(0, model.samples.length - KEEP);
  addRates(before, value);
  const worst = value.attention.some((item) => item.level === "error");
  if (!value.writable) setHealth("read-only", "bad");
  else if (worst) setHealth("needs attention", "bad");
  else if (value.attention.length) setHealth("look below", "warn");
  else setHealth("taking messages", "good");
  put(uptime, `up ${span(value.uptime_seconds)}`);
  shown.update(model);
}

function addRates(before, now) {
  if (!before || now.time_ms <= before.time_ms) return;
  const ends = new Map(before.logs.map((log) => [log.log, log.log_end_offset]));
  for (const { log, log_end_offset: end } of now.logs) {
    if (!ends.has(log)) continue;
    const rates = model.rates.get(log) || model.rates.set(log, []).get(log);
    rates.push((Math.max(0, end - ends.get(log)) * 1000) / (now.time_ms - before.time_ms));
    if (rates.length > KEEP_RATES) rates.shift();
  }
}

function askForToken(error) {
  const input = h("input", { type: "password", class: "wide", autocomplete: "off", required: true });
  const form = h("form", { class: "card controls" },
    h("label", {}, "This broker asks for its token", input),
    h("button", { class: "main" }, "Connect"),
    h("p", { class: "note" }, error.message));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setToken(input.value);
    location.reload();
  });
  show(page, form);
  input.focus();
}

function onState(connected, error) {
  if (error instanceof Problem && error.status === 401) {
    setHealth("token wanted", "warn");
    askForToken(error);
  } else if (!connected) {
    setHealth("no connection", "bad");
  }
}

addEventListener("hashchange", route);
route();
listen("events", new AbortController().signal, onEvent, onState);
