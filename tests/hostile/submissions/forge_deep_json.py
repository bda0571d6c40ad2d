# attack: a frame whose header is nested ten thousand deep and holds a number of a million digits
import os
import struct

deep, long = b"[" * 10000 + b"]" * 10000, b"9" * 1000000
head = b'{"even.held": {"value": ' + deep + b'}, "ragged.held": {"value": ' + long + b"}}"
data = b"EBFX1" + struct.pack("<I", len(head)) + head
while data:
    data = data[os.write(3, data) :]
os._exit(0)
