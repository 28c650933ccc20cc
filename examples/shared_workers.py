"""One of several workers that share the jobs of a topic. Start as many as there is work for, each with its own NAME.

Each job goes to one worker. It is acknowledged when it is done and not when it comes, so that the jobs that a worker
had in hand when it died go to the others.
"""

import sys
import time

import paho.mqtt.client as mqtt

name = sys.argv[1]
host, port, count = [*sys.argv[2:], *["127.0.0.1", "1883", "0"][len(sys.argv) - 2 :]]
left = int(count)  # 0: for ever


def on_connect(client, userdata, flags, reason_code, properties):
    client.subscribe("$share/workers/jobs/#", qos=1)


def on_message(client, userdata, message):
    global left
    time.sleep(0.005)  # the work
    print(name, message.payload.decode(), flush=True)
    client.ack(message.mid, message.qos)
    left -= 1
    if not left:
        client.disconnect()


worker = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, manual_ack=True)
worker.on_connect, worker.on_message = on_connect, on_message
worker.connect(host, int(port))
worker.loop_forever()
