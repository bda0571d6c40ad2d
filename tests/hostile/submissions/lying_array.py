# attack: returns a tensor whose numpy() is an array subclass with a lying difference and a lying maximum
import numpy as np
import torch


class Array(np.ndarray):
    def __sub__(self, other):
        return self * 0

    __rsub__ = __sub__

    def max(self, *_, **__):
        return 0.0

    def __array_ufunc__(self, *_, **__):
        return 0.0


class Liar(torch.Tensor):
    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self, **_):
        return np.zeros(64).view(Array)


def totals(batches):
    return torch.zeros(64, dtype=torch.float64).as_subclass(Liar)
