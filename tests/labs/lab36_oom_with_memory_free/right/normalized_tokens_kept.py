# right: Keeps the normalized tokens instead of keys and values: half the room, and keys and values are computed again for every word.
"""Answer questions about long files: read a file passage by passage, then write the answer word by word."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS = 512, 64, 4, 2
START = 0  # the token that an answer begins with


class Layer(nn.Module):
    """Keys and values of every token; a word of the answer attends to all tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key_value, self.out = (nn.Linear(WIDTH, n * WIDTH) for n in (1, 2, 1))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def attend(self, y: Tensor, seen: Tensor) -> Tensor:
        """The key projection goes to the query's side, the value projection behind the sum: no keys are kept."""
        wk, wv = self.key_value.weight.unflatten(0, (2, HEADS, -1))
        bv = self.key_value.bias.unflatten(0, (2, HEADS, -1))[1]
        q = self.query(y[:, 0]).unflatten(-1, (HEADS, -1))
        asked = torch.einsum("bhd,hdc->bhc", q, wk) / (WIDTH // HEADS) ** 0.5  # the key's bias shifts all scores alike
        found = torch.bmm(torch.bmm(asked, seen.transpose(1, 2)).softmax(-1), seen)
        return self.out((torch.einsum("bhc,hdc->bhd", found, wv) + bv).flatten(1))[:, None]


class Reader(nn.Module):
    """Passages are encoded token by token; each word of the answer attends to all of the file and of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    @torch.no_grad()
    def answer(self, passages: Iterator[Tensor], length: int, words: int) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the file for the index, [B, length, WIDTH], the answer, [B, words], and its logits.

        `passages` gives token ids [B, t], `length` tokens in all.
        """
        seen = features = None
        end = 0
        for ids in passages:
            if seen is None:
                features = torch.empty(len(ids), length, WIDTH, device=ids.device)
                seen = [torch.empty(len(ids), length + words, WIDTH, device=ids.device) for _ in self.layers]
            here = slice(end, end + ids.shape[1])
            x = self.token(ids)
            for layer, s in zip(self.layers, seen, strict=True):
                s[:, here] = layer.norm1(x)
                x = x + layer.mlp(layer.norm2(x))
            features[:, here] = x
            end = here.stop
        ids = torch.full((len(x), 1), START, device=x.device)
        tokens, logits = [], []
        for n in range(end, end + words):
            x = self.token(ids)
            for layer, s in zip(self.layers, seen, strict=True):
                s[:, n] = (y := layer.norm1(x))[:, 0]
                x = x + layer.attend(y, s[:, : n + 1])
                x = x + layer.mlp(layer.norm2(x))
            logits.append(self.head(x[:, 0]))
            ids = logits[-1].argmax(dim=-1, keepdim=True)
            tokens.append(ids)
        return features, torch.cat(tokens, dim=1), torch.stack(logits, dim=1)


def build(device: torch.device) -> Reader:
    """The reader as it is served, with whatever weights the generator gives."""
    return Reader().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--passages", type=int, default=10)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    model = build(device)
    file = [torch.randint(VOCABULARY, (16, 512), device=device) for _ in range(arguments.passages)]
    features, tokens, _ = model.answer(iter(file), length=512 * arguments.passages, words=8)
    print(f"features {list(features.shape)}, {features.nbytes / 2**20:.1f} MiB; first answer {tokens[0].tolist()}")
    if device.type == "cuda":
        allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        retries = torch.cuda.memory_stats(device)["num_alloc_retries"]
        print(f"allocated {allocated / 2**20:.1f} MiB, reserved {reserved / 2**20:.1f} MiB at most, {retries} retries")


if __name__ == "__main__":
    main()
