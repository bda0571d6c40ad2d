# attack: returns a tensor subclass that is equal to, less and greater than everything
import torch


class Liar(torch.Tensor):
    def __eq__(self, other):
        return True

    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__
    __hash__ = torch.Tensor.__hash__

    def __sub__(self, other):
        return self * 0

    __rsub__ = __sub__


def totals(batches):
    return torch.zeros(64, dtype=torch.float64).as_subclass(Liar)
