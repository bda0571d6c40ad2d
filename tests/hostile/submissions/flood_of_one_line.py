# attack: prints one line of 64 MiB, with terminal escapes
import os

for _ in range(1024):
    os.write(1, b"\x1b[2J\x1b]0;owned\x07" + b"A" * (1 << 16))


def totals(batches):
    return -sum(batch.double().sum(0) for batch in batches)
