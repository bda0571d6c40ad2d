"""Found by every Python process under `breakfix examine`: has the probes attached once torch has been imported.

It takes itself out of the way, and runs the sitecustomize that it hides. Whatever goes wrong here, the script runs.
"""

import importlib
import importlib.util
import os
import sys
import time
import types
from importlib.machinery import PathFinder

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.dirname(HERE))  # of breakfix, which this Python may not have installed
FOLDER = "BREAKFIX_EXAMINE"  # where records go; absent means that nobody examines


def run_hidden():
    """Run the sitecustomize that would have been found without this one."""
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec and spec.loader:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class TorchFinder:
    """Sees that torch is about to be imported, leaves the import to the others, and attaches when it is done."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec and spec.loader:
            attach_after(spec.loader)
        return spec


def attach_after(loader):
    run = loader.exec_module

    def exec_module(module):
        del loader.exec_module
        run(module)
        attach()

    loader.exec_module = exec_module


def attach():
    """Install the probes; a failure is told in the report, not in the script."""
    started = time.perf_counter()
    try:
        if importlib.util.find_spec("breakfix") is None:
            package = types.ModuleType("breakfix")
            package.__path__ = [PACKAGE]
            sys.modules["breakfix"] = package
        importlib.import_module("breakfix.examine.attach").install(os.environ[FOLDER], started)
    except Exception as error:
        try:
            with open(os.path.join(os.environ[FOLDER], f"{os.getpid()}.failed"), "w", encoding="utf-8") as file:
                file.write(f"{type(error).__name__}: {error}")
        except OSError:
            pass


if os.environ.get(FOLDER):
    sys.meta_path.insert(0, TorchFinder())
run_hidden()
