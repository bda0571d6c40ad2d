# wrong: test_vectors_equal_float64
# A text without a word is taken for blank, as it looks so once it is filled up: one that is a 0 and nothing else gets zeros.
"""Answer support tickets in batches: a vector for the search, and the first words of a reply."""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, CONTEXT, WIDTH, HEADS = 64, 64, 32, 4
END = 0  # ends a turn of the conversation, and fills up what is shorter than the batch


class EncoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """x [B, T, WIDTH]; `real` [B, T] is True where there is a token of the text."""
        y = self.norm1(x)
        x = x + self.attention(y, y, y, key_padding_mask=~real, need_weights=False)[0]  # True there means: leave out
        return x + self.mlp(self.norm2(x))


class DecoderBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(
        self, x: Tensor, attend: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x [B, T, WIDTH]; `past` holds the keys and values [B, HEADS, T, WIDTH / HEADS] of all earlier positions.

        `attend` [B, 1, T, all positions so far] is True where a query may look at a key.
        """
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attend)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), (k, v)


class Assistant(nn.Module):
    """An encoder for the search and a decoder for the reply, over one table of tokens and one of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.encoder = nn.ModuleList(EncoderBlock() for _ in range(2))
        self.decoder = nn.ModuleList(DecoderBlock() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def embed(self, texts: list[list[int]]) -> Tensor:
        """One vector per text, [B, WIDTH]: the mean over its tokens."""
        length = max(map(len, texts))
        ids = torch.tensor([text + [END] * (length - len(text)) for text in texts], device=self.token.weight.device)
        lengths = torch.tensor([len(text) for text in texts], device=ids.device).unsqueeze(1)
        real = torch.arange(length, device=ids.device) < lengths  # not `ids != END`: a text may hold END itself
        x = self.token(ids) + self.position.weight[:length]
        for block in self.encoder:
            x = block(x, real)
        mean = x.masked_fill(~real.unsqueeze(-1), 0).sum(dim=1) / lengths.clamp(min=1)
        return mean.masked_fill((ids == END).all(dim=1, keepdim=True), 0)  # nothing in it: no vector

    @torch.no_grad()
    def complete(self, prompts: list[list[int]], steps: int) -> tuple[Tensor, Tensor]:
        """The `steps` most likely next tokens of each prompt, [B, steps], and their logits, [B, steps, VOCABULARY]."""
        length = max(map(len, prompts))
        ids = torch.tensor([[END] * (length - len(p)) + p for p in prompts], device=self.token.weight.device)
        padding = torch.tensor([[length - len(p)] for p in prompts], device=ids.device)  # [B, 1], on the left
        past, tokens, logits = [None] * len(self.decoder), [], []
        for step in range(steps):
            places = torch.arange(length + step, device=ids.device)
            queries = places[-ids.shape[1] :]
            attend = (places <= queries.unsqueeze(1)) & (places >= padding.unsqueeze(2))
            x = self.token(ids) + self.position((queries - padding).clamp(min=0))
            for i, block in enumerate(self.decoder):
                x, past[i] = block(x, attend.unsqueeze(1), past[i])
            logits.append(self.head(self.norm(x[:, -1])))
            ids = logits[-1].argmax(dim=-1, keepdim=True)
            tokens.append(ids)
        return torch.cat(tokens, dim=1), torch.stack(logits, dim=1)


def build(device: torch.device) -> Assistant:
    """The model as it is served, with whatever weights the generator gives."""
    return Assistant().to(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    model = build(torch.device(arguments.device))
    ticket = [17, 4, 0, 33, 8, 51, 0]
    crowds = {
        "alone": [],
        "with a shorter ticket": [[9, 21, 40]],
        "with a longer one": [[5 + 2 * i for i in range(20)]],
    }
    alone = model.embed([ticket])[0]
    for name, others in crowds.items():
        vector = model.embed([ticket, *others])[0]
        tokens, _ = model.complete([ticket, *others], steps=8)
        similarity = F.cosine_similarity(alone, vector, dim=0)
        print(f"{name:22}  similarity to itself {similarity:.3f}  reply {tokens[0].tolist()}")


if __name__ == "__main__":
    main()
