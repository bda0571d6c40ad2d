# wrong: test_fits_the_card test_little_is_reserved_in_vain test_a_word_does_not_move_the_cache
# Grows the buffer by 1024 tokens at a time: fewer copies than one per word, each as large, and no hole fits the next.
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

    def remember(self, y: Tensor, cache: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """The cache with the keys and values of y [B, T, WIDTH] behind it: two of [B, HEADS, tokens, WIDTH / HEADS]."""
        k, v = self.key_value(y).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if cache is None:
            cache = (k[:, :, :0], v[:, :, :0], 0)
        return (
            *(self.appended(old, new, cache[2]) for old, new in zip(cache, (k, v), strict=False)),
            cache[2] + k.shape[2],
        )

    def appended(self, old: Tensor, new: Tensor, used: int) -> Tensor:
        """`new` behind the `used` tokens of `old`, in a buffer twice the size where there is no room."""
        if used + new.shape[2] > old.shape[2]:
            size = max(old.shape[2] + 1024, used + new.shape[2])
            grown = old.new_empty(*old.shape[:2], size, old.shape[3])
            grown[:, :, :used], old = old[:, :, :used], grown
        old[:, :, used : used + new.shape[2]] = new
        return old

    def attend(self, y: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """What the words y [B, 1, WIDTH] find in the cache."""
        q = self.query(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.out(
            F.scaled_dot_product_attention(q, cache[0][:, :, : cache[2]], cache[1][:, :, : cache[2]])
            .transpose(1, 2)
            .flatten(2)
        )


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
        caches, features, tokens, logits = [None] * LAYERS, [], [], []
        for ids in passages:
            x = self.token(ids)
            for i, layer in enumerate(self.layers):
                caches[i] = layer.remember(layer.norm1(x), caches[i])
                x = x + layer.mlp(layer.norm2(x))
            features.append(x)
        ids = torch.full((len(x), 1), START, device=x.device)
        for _ in range(words):
            x = self.token(ids)
            for i, layer in enumerate(self.layers):
                y = layer.norm1(x)
                caches[i] = layer.remember(y, caches[i])
                x = x + layer.attend(y, caches[i])
                x = x + layer.mlp(layer.norm2(x))
            logits.append(self.head(x[:, 0]))
            ids = logits[-1].argmax(dim=-1, keepdim=True)
            tokens.append(ids)
        return torch.cat(features, dim=1), torch.cat(tokens, dim=1), torch.stack(logits, dim=1)


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
