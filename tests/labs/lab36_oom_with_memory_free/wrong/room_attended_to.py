# wrong: test_answers_equal_float64
# Room made once, and all of it attended to: the places that nothing has been written to yet take their share.
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

    def keys_values(self, y: Tensor) -> Tensor:
        """[2, B, HEADS, T, WIDTH / HEADS]."""
        return self.key_value(y).unflatten(-1, (2, HEADS, -1)).permute(2, 0, 3, 1, 4)

    def attend(self, y: Tensor, cache: Tensor) -> Tensor:
        q = self.query(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, cache[0], cache[1]).transpose(1, 2).flatten(2))


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
        device = self.token.weight.device
        cache = features = None
        end = 0
        for ids in passages:
            if cache is None:
                b = len(ids)
                cache = torch.zeros(LAYERS, 2, b, HEADS, length + words, WIDTH // HEADS, device=device)
                features = torch.empty(b, length, WIDTH, device=device)
            t = ids.shape[1]
            x = self.token(ids)
            for i, layer in enumerate(self.layers):
                cache[i, :, :, :, end : end + t] = layer.keys_values(layer.norm1(x))
                x = x + layer.mlp(layer.norm2(x))
            features[:, end : end + t] = x
            end += t
        tokens = torch.empty(b, words, dtype=torch.long, device=device)
        logits = torch.empty(b, words, VOCABULARY, device=device)
        ids = torch.full((b, 1), START, device=device)
        for w in range(words):
            x = self.token(ids)
            for i, layer in enumerate(self.layers):
                y = layer.norm1(x)
                cache[i, :, :, :, end : end + 1] = layer.keys_values(y)
                x = x + layer.attend(y, cache[i])
                x = x + layer.mlp(layer.norm2(x))
            end += 1
            logits[:, w] = self.head(x[:, 0])
            ids = logits[:, w].argmax(dim=-1, keepdim=True)
            tokens[:, w] = ids[:, 0]
        return features, tokens, logits


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
