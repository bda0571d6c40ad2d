# attack: a segmentation fault, after asking for the largest core file
import ctypes
import resource
from contextlib import suppress

with suppress(ValueError, OSError):
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def totals(batches):
    ctypes.string_at(0)
