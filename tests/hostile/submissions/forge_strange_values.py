# attack: a frame whose numbers are texts, nan, nested lists and objects with lying names
import json
import os
import struct


def frame(head, arrays=b""):
    head = json.dumps(head).encode()
    return b"EBFX1" + struct.pack("<I", len(head)) + head + arrays


ZEROS = {"dtype": "float64", "shape": [64]}
HEAD = {"even.held": {"value": 1}, "ragged.held": {"value": 1}, "even.totals": ZEROS, "ragged.totals": ZEROS}

STRANGE = {"value": {"dict": {"__class__": "int", "__le__": True}}}
os.write(3, frame(HEAD | {"even.held": STRANGE, "ragged.held": {"value": {"float": "nan"}}}, bytes(2 * 64 * 8)))
os._exit(0)
