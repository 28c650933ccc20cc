// A reader that keeps its own place: copies a topic into a file, each message once, whatever is killed and when.
//
// `$log/<offset>/<filter>` starts at an offset, and each message comes under `$log/<offset>/<topic>`. A line of the file
// begins with that offset, so the last whole line says where to go on: what is written and where we are can't differ.

import fs from "node:fs";
import mqtt from "mqtt";

const FILTER = "highway/A1/telemetry";
const [path, host = "127.0.0.1", port = "1883", count = "0"] = process.argv.slice(2);
let left = Number(count) || Infinity;

const file = fs.openSync(path, "a+");
const whole = fs.readFileSync(path).toString("latin1").replace(/[^\n]*$/, ""); // a crash may have left half a line
fs.ftruncateSync(file, whole.length);
const last = /(\d+) [^\n]*\n$/.exec(whole);
let start = last ? BigInt(last[1]) + 1n : "earliest";

const client = mqtt.connect({ host, port: Number(port), protocolVersion: 4, resubscribe: false });

client.on("connect", () => {
  client.subscribe(`$log/${start}/${FILTER}`, { qos: 1 }, (error, granted) => {
    if (error || granted[0].qos === 128) {
      console.error(`offset ${start} is refused: is this file from another broker?`);
      process.exit(1);
    }
  });
});

client.on("message", (name, payload) => {
  const [kind, offset, ...topic] = name.split("/");
  if (kind === "$gap") {
    console.error(`gone for good: ${payload}`); // what retention deleted, or a crash took
    return;
  }
  if (left === 0 || (start !== "earliest" && BigInt(offset) < start)) return; // sent again
  fs.writeSync(file, Buffer.concat([Buffer.from(`${offset} ${topic.join("/")} `), payload, Buffer.from("\n")]));
  start = BigInt(offset) + 1n; // where a connection that breaks goes on
  left -= 1;
  if (left === 0) {
    client.end();
  }
});
