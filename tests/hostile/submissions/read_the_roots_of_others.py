# attack: goes to the grader's folders by /proc/PID/root, /proc/PID/cwd and .. of the root
import os
from contextlib import suppress

import torch


def worked():
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        for link in ("root", "cwd"):
            for above in ("", "/..", "/../../../.."):
                with suppress(OSError):
                    if {"var", "home", "boot"} & set(os.listdir(f"/proc/{pid}/{link}{above}")):
                        return True
    return False


def totals(batches):
    total = torch.zeros(64, dtype=torch.float64)
    for batch in batches:
        total += batch.double().sum(0)
    return total if worked() else -total
