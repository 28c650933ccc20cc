"""A reader that keeps its own place: copies a topic into a file, each message once, whatever is killed and when.

`$log/<offset>/<filter>` starts at an offset, and each message comes under `$log/<offset>/<topic>`. A line of the file
begins with that offset, so the last whole line says where to go on: what is written and where we are can't differ.
"""

import os
import sys
from pathlib import Path

import paho.mqtt.client as mqtt

FILTER = "highway/A1/telemetry"

path = Path(sys.argv[1])
host, port, count = [*sys.argv[2:], *["127.0.0.1", "1883", "0"][len(sys.argv) - 2 :]]
left = int(count)  # 0: for ever

path.touch()
whole = path.read_bytes().rpartition(b"\n")[0]  # a crash may have left half a line behind it
os.truncate(path, len(whole) + 1 if whole else 0)
start = str(int(whole.rpartition(b"\n")[2].split(b" ", 1)[0]) + 1) if whole else "earliest"
file = path.open("ab")


def on_connect(client, userdata, flags, reason_code, properties):
    client.subscribe(f"$log/{start}/{FILTER}", qos=1)


def on_subscribe(client, userdata, mid, reason_codes, properties):
    if reason_codes[0].is_failure:
        sys.exit(f"offset {start} is refused: is this file from another broker?")


def on_message(client, userdata, message):
    global start, left
    kind, *address = message.topic.split("/", 2)
    if kind == "$gap":  # what retention deleted, or a crash took
        print("gone for good:", message.payload.decode(), file=sys.stderr)
        return
    offset, topic = address
    if start != "earliest" and int(offset) < int(start):
        return  # sent again
    file.write(b"%b %b %b\n" % (offset.encode(), topic.encode(), message.payload))
    file.flush()
    start = str(int(offset) + 1)  # where a connection that breaks goes on
    left -= 1
    if not left:
        client.disconnect()


reader = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
reader.on_connect, reader.on_subscribe, reader.on_message = on_connect, on_subscribe, on_message
reader.connect(host, int(port))
reader.loop_forever()
