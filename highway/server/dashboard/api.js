// Requests to the broker. A token, where one is asked for, lives as long as this tab.

const TOKEN = "highway-token";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `status ${status}`);
    this.status = status;
    this.body = body;
  }
}

export function setToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

export async function request(path, options = {}) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(`api/v1/${path}`, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
  return response;
}

export async function get(path) {
  return (await request(path)).json();
}

async function* linesOf(response, separator) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const parts = (rest + value).split(separator);
    rest = parts.pop();
    yield* parts;
  }
  if (rest) yield rest;
}

// Records as they arrive.
export async function* records(log, query, signal) {
  const response = await request(`logs/${encodeURIComponent(log)}/records?${new URLSearchParams(query)}`, { signal });
  for await (const line of linesOf(response, "\n")) {
    if (line) yield JSON.parse(line);
  }
}

// Server-sent events by fetch, as EventSource can't send a token. Connects again until `signal` says stop.
export async function listen(path, signal, onEvent, onState) {
  while (!signal.aborted) {
    try {
      const response = await request(path, { signal });
      onState(true);
      for await (const block of linesOf(response, "\n\n")) {
        const fields = Object.fromEntries(block.split("\n").map((line) => line.split(/: (.*)/s, 2)));
        if (fields.event) onEvent(fields.event, JSON.parse(fields.data));
      }
    } catch (error) {
      if (signal.aborted) return;
      onState(false, error);
      if (error instanceof Problem && error.status < 500) return;
    }
    if (!signal.aborted) {
      onState(false);
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
  }
}
