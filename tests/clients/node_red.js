// An MQTT-in and an MQTT-out node of Node-RED joined by a wire, with the settings that its broker node gives to mqtt.js:
// `node node_red.js URL`. What comes in under in/# goes out under out/# at QoS 2; it runs until it is killed.
"use strict";

const mqtt = require("mqtt");

const STATUS = "node-red/status";
const client = mqtt.connect(process.argv[2], {
  clientId: "nodered_c2a1f0e4d5b6",
  keepalive: 60,
  clean: true,
  protocolVersion: 4,
  // Node-RED waits 15 s; a test doesn't.
  reconnectPeriod: 100,
  // Its nodes subscribe by themselves at each connect.
  resubscribe: false,
  will: { topic: STATUS, payload: "offline", qos: 1, retain: true },
});

client.on("connect", () => {
  client.subscribe({ "in/#": { qos: 2 } }, (error, granted) => {
    if (error || granted[0].qos !== 2) {
      console.error(error ?? granted);
      process.exit(1);
    }
    client.publish(STATUS, "online", { qos: 1, retain: true });
  });
});
client.on("message", (topic, payload) => {
  client.publish(topic.replace(/^in/, "out"), payload, { qos: 2, retain: false });
});
client.on("error", (error) => console.error(error.message));
