# attack: an exit handler and a patched os._exit write a frame of their own when the process ends
import atexit
import os
import struct

HEAD = b'{"even.held": {"value": 1}, "ragged.held": {"value": 1}}'


def forge(*_):
    os.write(3, b"EBFX1" + struct.pack("<I", len(HEAD)) + HEAD)


atexit.register(forge)
leave = os._exit
os._exit = lambda code: (forge(), leave(0))


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
