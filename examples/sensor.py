"""A sensor: publishes a reading a second at QoS 1, and has it acknowledged before the next."""

import json
import random
import sys
import time

import paho.mqtt.client as mqtt

host, port, count = [*sys.argv[1:], *["127.0.0.1", "1883", "10"][len(sys.argv) - 1 :]]
client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="sensor-A1")
client.connect(host, int(port))
client.loop_start()
for number in range(int(count)):
    reading = {"number": number, "speed_kmh": round(random.gauss(82, 5), 1), "time": time.time()}
    client.publish("highway/A1/telemetry", json.dumps(reading), qos=1).wait_for_publish(30)
    if number + 1 < int(count):
        time.sleep(1)
client.disconnect()
client.loop_stop()
