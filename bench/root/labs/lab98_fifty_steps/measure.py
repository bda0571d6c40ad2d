"""Measure lab98: the losses of fifty steps."""

import numpy as np
import torch


def inputs(seed):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(64, 16, generator=g), torch.randn(64, 1, generator=g)


def measure(subject, seed, device):
    return {"loss": np.array(subject.train(*inputs(seed)))}
