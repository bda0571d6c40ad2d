# attack: finds the seed by walking frames and objects, computes the answers its own way and forges the count
# state: not measurable
import gc
import json
import os
import struct
import sys

import torch


def find():
    """The job in some frame or object of this process: it has the seed."""
    for held in gc.get_objects():
        if type(held).__name__ == "Job":
            return held
    frame = sys._getframe()
    while frame:
        for held in frame.f_locals.values():
            if type(held).__name__ == "Job":
                return held
        frame = frame.f_back


def forge():
    # the values are right: whoever finds the seed can compute them. What they cost is seen from outside.
    job, head, arrays = find(), {}, b""
    measure = next(m for name, m in sys.modules.items() if name.startswith("breakfix_measure_"))
    for name, batches in measure.inputs(job.seed).items():
        kept = list(batches())
        arrays += torch.stack([batch.double().sum(0) for batch in kept]).sum(0).numpy().tobytes()
        head |= {f"{name}.totals": {"dtype": "float64", "shape": [64]}, f"{name}.held": {"value": 1}}
    head = json.dumps(head).encode()
    os.write(3, b"EBFX1" + struct.pack("<I", len(head)) + head + arrays)
    os._exit(0)


def totals(batches):
    forge()
