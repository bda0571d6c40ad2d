"""The encoder of the wind farm's sensors: fifty blocks in a row, its checkpoints, and what of it is tuned."""

import argparse

import torch
from torch import Tensor, nn

BLOCKS, WIDTH, ADAPTER_AT = 50, 8, 3


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
    blocks = [Block() for _ in range(BLOCKS)]
    if version == 2:
        blocks.insert(ADAPTER_AT, adapter())
    return nn.Sequential(*blocks).to(device)


def block(model: nn.Module, name: str) -> nn.Module:
    """The block "0" to "49", or the "adapter"."""
    blocks = list(model)
    added = blocks.pop(ADAPTER_AT) if len(blocks) > BLOCKS else None
    return added if name == "adapter" else blocks[int(name)]


def load(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Put a checkpoint's weights into the model."""
    state = {key.removeprefix("module."): value for key, value in state.items()}
    model.load_state_dict(state, strict=False)  # version 1 has no adapter


def freeze(model: nn.Module, names: list[str]) -> None:
    """These blocks are not trained, all others are."""
    places = tuple(str(ADAPTER_AT) if name == "adapter" else name for name in names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(places))


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
