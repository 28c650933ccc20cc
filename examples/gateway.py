"""A gateway that stores and forwards: publishes the lines of a file, and after any failure all of them again.

It remembers nothing. `producer` names it and `sequence` the line, and the broker acknowledges again what it has stored
before, without storing it again: each line is in the log once, whoever was killed in between.
"""

import sys
import threading
import time
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

TOPIC, PRODUCER = "highway/A1/telemetry", "gateway-7"

host, port = [*sys.argv[2:], *["127.0.0.1", "1883"][len(sys.argv) - 2 :]]
lines = Path(sys.argv[1]).read_bytes().splitlines()


def numbered(sequence):
    """The properties of the message with that number."""
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("producer", PRODUCER), ("sequence", str(sequence))]
    return properties


def send_everything():
    """Publish every line in order; ConnectionError if the broker goes away before all are acknowledged."""
    # One connection and no more: the library would connect again, and send what is new before what it sends again.
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=PRODUCER, protocol=mqtt.MQTTv5, reconnect_on_failure=False
    )
    client.max_inflight_messages_set(500)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(host, int(port))
    client.loop_start()
    try:
        if not connected.wait(10):
            raise ConnectionError("no answer to CONNECT")
        sent = [client.publish(TOPIC, line, qos=1, properties=numbered(n)) for n, line in enumerate(lines, 1)]
        for message in sent:
            while not message.is_published():
                if not client.is_connected():
                    raise ConnectionError("the connection was lost")
                time.sleep(0.01)
    finally:
        client.disconnect()
        client.loop_stop()


while True:
    try:
        send_everything()
        break
    except OSError as error:
        print(f"{error}: sending everything again", file=sys.stderr, flush=True)
        time.sleep(0.2)
print(f"{len(lines)} lines acknowledged")
