"""Which line of a person's own code is running: not torch's, not a library's, not breakfix's."""

import os
import sys
import sysconfig
from functools import lru_cache
from typing import NamedTuple

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep


class Line(NamedTuple):
    """A place in a file, and the function that it is in."""

    path: str
    number: int
    function: str


NOWHERE = Line("", 0, "")


@lru_cache(maxsize=1)
def _torch() -> str:
    return os.path.dirname(sys.modules["torch"].__file__) + os.sep


@lru_cache(maxsize=4096)
def kind(path: str) -> str:
    """ "own", "library" or "torch"; breakfix counts as torch, which nobody looks at."""
    if path.startswith((_torch(), _HERE)) or "<frozen" in path:
        return "torch"
    library = "site-packages" in path or "dist-packages" in path or path.startswith((_STDLIB, "<"))
    return "library" if library else "own"


def own_frame(frame=None):
    """The innermost frame of somebody's own code; of a library where there is none; None where there is neither."""
    frame, library = frame or sys._getframe(1), None
    while frame:
        what = kind(frame.f_code.co_filename)
        if what == "own":
            return frame
        if what == "library" and library is None:
            library = frame
        frame = frame.f_back
    return library


def own_line(frame=None) -> Line:
    """The line of that frame."""
    found = own_frame(frame or sys._getframe(1))
    if found is None:
        return NOWHERE
    return Line(found.f_code.co_filename, found.f_lineno, found.f_code.co_name)
