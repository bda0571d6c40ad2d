# attack: writes a whole frame of plausible evidence to the pipe at import and ends with status 0
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

os.write(3, frame(HEAD, bytes(2 * 64 * 8)))
os._exit(0)
