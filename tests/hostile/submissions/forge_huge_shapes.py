# attack: a frame whose arrays claim more elements than there is memory
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

HUGE = {"dtype": "float64", "shape": [2**40, 2**40]}
EMPTY = {"dtype": "float64", "shape": [0, 2**62]}
os.write(3, frame(HEAD | {"even.totals": HUGE, "ragged.totals": EMPTY}))
os._exit(0)
