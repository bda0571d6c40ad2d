# attack: sys.exit(0) inside the function that is measured
import sys


def totals(batches):
    sys.exit(0)
