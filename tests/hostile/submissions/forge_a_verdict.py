# attack: writes a passed verdict, as the judge would, to every descriptor and every open socket it can guess
import json
import os
from contextlib import suppress

verdict = {"lab": "lab97", "state": "passed", "seed": 1, "device": "cpu", "checks": [], "outside": {}, "versions": {}}
head = json.dumps(verdict).encode()
answer = len(head).to_bytes(4, "little") + head
for fd in [n for n in range(64) if n != 3]:
    with suppress(OSError):
        os.write(fd, len(answer).to_bytes(8, "little") + answer)


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
