"""A log as CSV on standard output, and statistics of every number in its readings on standard error; over HTTP."""

import csv
import json
import statistics
import sys
from collections import defaultdict
from urllib.parse import quote
from urllib.request import urlopen

url, log, start = [*sys.argv[1:], *["http://127.0.0.1:8080", "telemetry", "earliest"][len(sys.argv) - 1 :]]

rows, values = csv.writer(sys.stdout), defaultdict(list)
rows.writerow(["offset", "timestamp", "topic", "field", "value"])
with urlopen(f"{url}/api/v1/logs/{log}/records?from={quote(start)}") as lines:  # JSON Lines, read as they come
    for line in lines:
        record = json.loads(line)
        try:
            reading = json.loads(record["payload"])
        except (KeyError, ValueError):
            continue  # no text, or no JSON
        for field, value in reading.items() if isinstance(reading, dict) else ():
            if isinstance(value, int | float):
                rows.writerow([record["offset"], record["timestamp"], record["topic"], field, value])
                values[record["topic"], field].append(value)
for (topic, field), numbers in sorted(values.items()):
    spread = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    print(f"{topic} {field}: n={len(numbers)} mean={statistics.fmean(numbers):.3f} stdev={spread:.3f}", file=sys.stderr)
