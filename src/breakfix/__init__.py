"""breakfix: PyTorch failures you can run, fix and prove fixed."""

from importlib.metadata import version

__version__ = version("breakfix")
