# wrong: test_each_block_gets_its_own_weights
# Saves a copy: the parameters are the checkpoint's own tensors, and whoever writes into it writes into the model.
"""The encoder of the wind farm's sensors: fifty blocks in a row, its checkpoints, and what of it is tuned."""

import argparse
import re
from collections import OrderedDict

import torch
from torch import Tensor, nn

BLOCKS, WIDTH, ADAPTER_AT = 50, 8, 3
WRAPPERS = ("module.", "_orig_mod.")  # what DistributedDataParallel and torch.compile put before every name


class Block(nn.Module):
    """Readings [B, WIDTH], and something of them mixed in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, readings: Tensor) -> Tensor:
        return readings + 0.3 * torch.tanh(self.linear(readings))


def adapter() -> Block:
    """A block that changes nothing until it has been tuned."""
    block = Block()
    nn.init.zeros_(block.linear.weight)
    nn.init.zeros_(block.linear.bias)
    return block


def build(version: int, device: torch.device) -> nn.Module:
    """The encoder: version 1, or version 2 that has the adapter as well."""
    blocks = [(f"block{place}", Block()) for place in range(BLOCKS)]
    if version == 2:
        blocks.insert(ADAPTER_AT, ("adapter", adapter()))
    return nn.Sequential(OrderedDict(blocks)).to(device)  # names that stay when a block comes in between


def block(model: nn.Module, name: str) -> nn.Module:
    """The block "0" to "49", or the "adapter"."""
    return model.get_submodule(name if name == "adapter" else f"block{name}")


def unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same without the wrappers' prefixes, however many there are."""
    while state and any(all(key.startswith(wrapper) for key in state) for wrapper in WRAPPERS):
        state = {key.partition(".")[2]: value for key, value in state.items()}
    return state


def load(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put a checkpoint's weights into the model, all or none. Raises RuntimeError if they are not this model's."""
    state = {re.sub(r"^(\d+)\.", r"block\1.", key): value for key, value in unwrapped(state).items()}
    wanted = model.state_dict()
    new = [key for key in wanted if key.startswith("adapter.")]
    if not any(key.startswith("adapter.") for key in state):  # version 1's: the adapter stays as it is
        state = {key: wanted[key] for key in new} | state
    odd = sorted(wanted.keys() ^ state.keys())
    odd += [key for key in wanted.keys() & state.keys() if wanted[key].shape != state[key].shape]
    if odd:  # load_state_dict would say so too, but after it has copied what fits
        raise RuntimeError(f"not a checkpoint of this encoder: {', '.join(odd[:6])}")
    model.load_state_dict(state, assign=True)


def freeze(model: nn.Module, names: list[str]) -> None:
    """These blocks are not trained, all others are."""
    frozen = [block(model, name) for name in names]  # raises for a name that is none, before anything is done
    model.requires_grad_(True)
    for part in frozen:
        part.requires_grad_(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(31)
    readings, old = torch.randn(16, WIDTH, device=device), build(1, device)
    checkpoint = old.state_dict()
    for wrapped in ("", "module.", "_orig_mod."):
        new = build(2, device)
        load(new, {wrapped + key: value for key, value in checkpoint.items()})
        with torch.no_grad():
            off = (new(readings) - old(readings)).norm() / old(readings).norm()
        print(f"version 2 with version 1's weights, {wrapped or 'no prefix'}: loaded, answers differ by {off:.4f}")
    freeze(new, ["1"])
    frozen = sum(not parameter.requires_grad for parameter in new.parameters()) // 2
    print(f"blocks that are frozen, of one that was named: {frozen}")


if __name__ == "__main__":
    main()
