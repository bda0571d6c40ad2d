# right: The same buffer, written by index_copy_ at given places, as a compiled or captured step needs it: no slice whose bounds change. Costs a tensor of places.
"""Answer questions about long files: read a file passage by passage, then write the answer word by word."""

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, LAYERS = 512, 64, 4, 2
START = 0  # the token that an answer begins with


class Layer(nn.Module):
    """Keys and values of every token; a word of the answer attends to all tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key_value, self.out = (nn.Linear(WIDTH, n * WIDTH) for n in (1, 2, 1))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def remember(self, y: Tensor, cache: Tensor, start: int) -> None:
        """Write the keys and values of y [B, T, WIDTH] into the cache [2, B, HEADS, tokens, WIDTH / HEADS]."""
        end = start + y.shape[1]
        new = self.key_value(y).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        cache.index_copy_(3, torch.arange(start, end, device=y.device), new)

    def attend(self, y: Tensor, cache: Tensor) -> Tensor:
        """What the words y [B, 1, WIDTH] find in the cache."""
        q = self.query(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, *cache).transpose(1, 2).flatten(2))


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
        passages = iter(passages)
        ids, start, tokens, logits = next(passages), 0, [], []
        # What lives long is allocated first, and once: nothing grows, and nothing settles between the temporaries.
        like = {"device": ids.device, "dtype": self.token.weight.dtype}
        caches = torch.empty(LAYERS, 2, len(ids), HEADS, length + words, WIDTH // HEADS, **like)
        features = torch.empty(len(ids), length, WIDTH, **like)
        while ids is not None:
            x = self.token(ids)
            for layer, cache in zip(self.layers, caches, strict=True):
                layer.remember(layer.norm1(x), cache, start)
                x = x + layer.mlp(layer.norm2(x))
            features[:, start : start + x.shape[1]] = x
            start += x.shape[1]
            ids = next(passages, None)
        ids = torch.full((len(x), 1), START, device=x.device)
        for place in range(length, length + words):
            x = self.token(ids)
            for layer, cache in zip(self.layers, caches[..., : place + 1, :], strict=True):
                y = layer.norm1(x)
                layer.remember(y, cache, place)
                x = x + layer.attend(y, cache)
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
