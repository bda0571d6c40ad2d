# attack: a frame in which every name stands twice, the second time with other content
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

twice = json.dumps(HEAD)[:-1] + ", " + json.dumps(HEAD)[1:]
os.write(3, b"EBFX1" + struct.pack("<I", len(twice)) + twice.encode() + bytes(4 * 64 * 8))
os._exit(0)
