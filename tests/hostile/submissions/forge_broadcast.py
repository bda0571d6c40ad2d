# attack: a frame whose array has a shape that makes a careless comparison take terabytes
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

TALL = {"dtype": "int8", "shape": [1 << 20, 1, 1]}
data = frame(HEAD | {"even.totals": TALL}, bytes((1 << 20) + 64 * 8))
while data:
    data = data[os.write(3, data) :]
os._exit(0)
