# attack: writes a frame by hand and then lets the honest one be written too
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

os.write(3, frame(HEAD, bytes(2 * 64 * 8)))


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
