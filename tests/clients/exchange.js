// mqtt.js against a broker: `node exchange.js URL VERSION [CAFILE]` with protocol version 4 or 5 and a URL of mqtt, mqtts,
// ws or wss. Prints what was received as lines of JSON and ends with code 0, or with the error and code 1.
"use strict";

const fs = require("node:fs");
const mqtt = require("mqtt");

const [url, versionText, cafile] = process.argv.slice(2);
const version = Number(versionText);
const QOS = [0, 1, 2];

function settingsFor(clientId, settings) {
  const trust = cafile ? { ca: fs.readFileSync(cafile) } : {};
  return { protocolVersion: version, clientId, reconnectPeriod: 0, ...trust, ...settings };
}

function connect(clientId, settings = {}) {
  return mqtt.connectAsync(url, settingsFor(clientId, settings));
}

function report(situation, topic, payload, packet) {
  console.log(
    JSON.stringify({
      situation,
      topic,
      payload: payload.toString(),
      qos: packet.qos,
      retain: packet.retain,
      properties: packet.properties ?? {},
    }),
  );
}

async function received(client, situation, count) {
  for (let left = count; left > 0; left -= 1) {
    const [topic, payload, packet] = await client.inbox.next();
    report(situation, topic, payload, packet);
  }
}

// Messages may come before anybody asks for them.
function withInbox(client) {
  const waiting = [];
  const arrived = [];
  client.on("message", (...message) => (waiting.length ? waiting.shift()(message) : arrived.push(message)));
  client.inbox = {
    next: () => (arrived.length ? Promise.resolve(arrived.shift()) : new Promise((resolve) => waiting.push(resolve))),
  };
  return client;
}

async function main() {
  const base = `mqttjs/${version}`;
  const lasting = version === 5 ? { clean: false, properties: { sessionExpiryInterval: 60 } } : { clean: false };
  const publisher = await connect(`mqttjs-pub-${version}`);
  const properties = {
    contentType: "text/plain",
    responseTopic: `${base}/answer`,
    correlationData: Buffer.from("42"),
    messageExpiryInterval: 100,
    userProperties: { name: "value" },
  };
  let subscriber = withInbox(await connect(`mqttjs-sub-${version}`, lasting));
  await subscriber.subscribeAsync(`${base}/#`, { qos: 2 });
  for (const qos of QOS) {
    await publisher.publishAsync(`${base}/live`, `live ${qos}`, version === 5 ? { qos, properties } : { qos });
  }
  await received(subscriber, "live", QOS.length);
  await subscriber.endAsync();
  await publisher.publishAsync(`${base}/kept`, "missed", { qos: 1, retain: true });
  const away = mqtt.connect(url, settingsFor(`mqttjs-sub-${version}`, lasting));
  subscriber = withInbox(away);
  await new Promise((resolve, reject) => {
    away.once("connect", (connack) => (connack.sessionPresent ? resolve() : reject(new Error("no session"))));
    away.once("error", reject);
  });
  await received(subscriber, "missed", 1);
  await subscriber.unsubscribeAsync(`${base}/#`);
  await subscriber.subscribeAsync(`${base}/kept`, { qos: 0 });
  await received(subscriber, "retained", 1);
  await publisher.publishAsync(`${base}/kept`, "", { qos: 1, retain: true });
  await Promise.all([subscriber.endAsync(), publisher.endAsync()]);
}

setTimeout(() => {
  console.error("no end within 20 s");
  process.exit(1);
}, 20_000).unref();
main().catch((error) => {
  console.error(error);
  process.exit(1);
});
