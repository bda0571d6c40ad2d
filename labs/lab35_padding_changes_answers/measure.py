"""Measure lab35: the same texts and prompts in many batches, in two dtypes, and what a batch costs."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from breakfix.contract import PARAMETERS_OF_TODAY, describe, expect, expect_tensors, function
from breakfix.probes import _torch
from breakfix.probes.flops import flop_counter

VOCABULARY, CONTEXT, WIDTH, LAYERS = 64, 64, 32, 2
STEPS = 10
LOUD = (ArithmeticError, RuntimeError, ValueError, AssertionError)
CROWDS = ("alone", "with shorter ones", "with longer ones", "in another order")


@dataclass(frozen=True)
class Regime:
    """The lengths of the texts of a batch; whether token 0 is among them; the dtype of the weights."""

    lengths: tuple[int, ...]
    turns: bool = False
    dtype: torch.dtype = torch.float32


REGIMES = {
    "mixed": Regime((5, 19, 1, 11, 3, 8)),
    "equal": Regime((9, 9, 9, 9)),
    "turns": Regime((7, 1, 16, 5, 10, 7), turns=True),  # the text of one token is a 0, and not blank
    "half": Regime((6, 17, 2, 12), dtype=torch.bfloat16),
    "blank": Regime((4, 0, 13, 7)),
}
PROMPTED = [name for name, regime in REGIMES.items() if min(regime.lengths)]  # a prompt is never blank


def _block(name: str, attention: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one block's parameters, as `attention` has them and as both kinds have them."""
    mlp = {"mlp.0": (4 * WIDTH, WIDTH), "mlp.2": (WIDTH, 4 * WIDTH)}
    shapes = {f"{part}.{kind}": (WIDTH,) for part in ("norm1", "norm2") for kind in ("weight", "bias")}
    for part, shape in {**attention, **mlp}.items():
        joined = "_" if part.endswith("in_proj") else "."
        shapes |= {f"{part}{joined}weight": shape, f"{part}{joined}bias": shape[:1]}
    return {f"{name}.{key}": shape for key, shape in shapes.items()}


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's parameters."""
    found = {"token.weight": (VOCABULARY, WIDTH), "position.weight": (CONTEXT, WIDTH)}
    for i in range(LAYERS):
        square, wide = (WIDTH, WIDTH), (3 * WIDTH, WIDTH)
        found |= _block(f"encoder.{i}", {"attention.in_proj": wide, "attention.out_proj": square})
        found |= _block(f"decoder.{i}", {"qkv": wide, "out": square})
    norm = {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,)}
    return found | norm | {"head.weight": (VOCABULARY, WIDTH), "head.bias": (VOCABULARY,)}


def inputs(seed: int) -> dict:
    """`weights` by name, `texts` by regime, the `probe`, its `crowds`, and a `direction` for a gradient."""
    g = torch.Generator().manual_seed(seed)
    weights = {name: _weight(name, shape, g) for name, shape in shapes().items()}
    texts = {name: [_text(n, regime.turns, g) for n in regime.lengths] for name, regime in REGIMES.items()}
    probe, shorter, longer = ([_text(n, True, g) for n in lengths] for lengths in ((7,), (3, 6), (24, 15)))
    crowds = [probe, probe + shorter, probe + longer, longer[::-1] + probe + shorter]
    direction = torch.randn(len(REGIMES["blank"].lengths), WIDTH, generator=g)
    return {"weights": weights, "texts": texts, "probe": probe[0], "crowds": crowds, "direction": direction}


def _weight(name: str, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=g)
    if len(shape) == 1:
        return 0.1 * drawn + (".norm" in f".{name}" and name.endswith("weight"))
    # queries and keys a little larger than a fresh model's, as training makes them: then it matters who attends to whom
    return drawn if name in ("token.weight", "position.weight") else 1.5 * drawn / shape[1] ** 0.5


def _text(length: int, turns: bool, g: torch.Generator) -> list[int]:
    """Tokens other than 0, or with 0 at the end and here and there."""
    text = torch.randint(1, VOCABULARY, (length,), generator=g).tolist()
    return [0 if i == length - 1 or i % 5 == 2 else token for i, token in enumerate(text)] if turns else text


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    given, evidence = inputs(seed), _known()
    for name, regime in REGIMES.items():
        model = _built(build, given["weights"], device).to(regime.dtype)
        evidence |= {f"{name}.{key}": value for key, value in _answers(model, given["texts"][name]).items()}
    model = _built(build, given["weights"], device)
    evidence |= _crowds(model, given) | _gradient(model, given)
    return evidence | _work(model, given["texts"]["turns"]) | _poisoned(build, given, device)


def _known() -> dict:
    """What PyTorch itself does: one query after four keys, with is_causal; and with two of the four keys True."""
    query, keys = torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 4, 1)
    values, true = torch.arange(4.0).view(1, 1, 4, 1), torch.tensor([False, False, True, True])
    causal = F.scaled_dot_product_attention(query, keys, values, is_causal=True)
    shares = F.scaled_dot_product_attention(query, keys, true.float().view(1, 1, 4, 1), attn_mask=true.view(1, 1, 1, 4))
    return {"known.one_causal_query": causal.item(), "known.share_of_true_keys": shares.item()}


def _built(build, weights: dict[str, Tensor], device: torch.device) -> nn.Module:
    """The subject's model with our weights. Raises Contract."""
    model = build(device)
    expect(isinstance(model, nn.Module), "build", wanted="an nn.Module", got=describe(model))
    found = {name: tuple(p.shape) for name, p in model.named_parameters()}
    expect_tensors(found, shapes(), "build", PARAMETERS_OF_TODAY)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights[name])
    return model


def _embed(model: nn.Module, texts: list[list[int]]) -> Tensor:
    vectors = model.embed([list(text) for text in texts])
    fits = isinstance(vectors, Tensor) and vectors.shape == (len(texts), WIDTH)
    expect(fits, "embed", wanted=f"a tensor [{len(texts)}, {WIDTH}]", got=describe(vectors))
    return vectors


def _complete(model: nn.Module, prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    made = model.complete([list(prompt) for prompt in prompts], STEPS)
    pair = isinstance(made, tuple) and len(made) == 2 and all(isinstance(t, Tensor) for t in made)
    expect(pair, "complete", wanted="tokens and logits", got=describe(made))
    shapes = [list(t.shape) for t in made]
    wanted = [[len(prompts), STEPS], [len(prompts), STEPS, VOCABULARY]]
    expect(shapes == wanted, "complete", wanted=f"shapes {wanted}", got=f"{shapes}")
    return made


def _answers(model: nn.Module, texts: list[list[int]]) -> dict:
    """Vectors of a batch as the service asks for them, and what is said after it where no text is blank."""
    model.eval()
    with torch.no_grad():
        found = {"vectors": _embed(model, texts).float()}
    if all(texts):
        tokens, logits = _complete(model, texts)
        found |= {"tokens": tokens, "logits": logits.float(), "likeliest": _likeliest(tokens, logits)}
    return found


def _likeliest(tokens: Tensor, logits: Tensor) -> float:
    """The share of tokens than which no other has a larger logit."""
    chosen = logits.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return float((chosen >= logits.amax(-1)).float().mean())


def _crowds(model: nn.Module, given: dict) -> dict:
    """The probe's answers in each of its crowds."""
    vectors, tokens, logits = [], [], []
    for crowd in given["crowds"]:
        place = crowd.index(given["probe"])
        vectors.append(_embed(model, crowd)[place].detach())
        for kept, answer in zip((tokens, logits), _complete(model, crowd), strict=True):
            kept.append(answer[place])
    moves = [float((v - vectors[0]).norm() / vectors[0].norm()) for v in vectors]
    return {
        "crowds.vectors": torch.stack(vectors),
        "crowds.tokens": torch.stack(tokens),
        "crowds.logits": torch.stack(logits),
        "crowds.moves": torch.tensor(moves),
    }


def _gradient(model: nn.Module, given: dict) -> dict:
    """The gradient of the vectors along a direction, in the order of `shapes`; zero where there is none."""
    model.train()
    model.zero_grad()
    vectors = _embed(model, given["texts"]["blank"])
    expect(vectors.requires_grad, "embed", wanted="vectors with a graph", got="vectors without one")
    (vectors * given["direction"].to(vectors)).sum().backward()
    grads = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    return {"blank.gradient": torch.cat([grads[name].reshape(-1) for name in shapes()])}


class _Products(_torch.dispatch_mode()):
    """Counts the operators that multiply matrices or attend."""

    NAMES = ("mm", "addmm", "bmm", "baddbmm", "linear", "_addmm_activation")

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        self.calls[name] += name in self.NAMES or name.startswith(("_scaled_dot", "_native_multi"))
        return func(*args, **(kwargs or {}))


def _work(model: nn.Module, texts: list[list[int]]) -> dict:
    """Floating point operations and products of one batch."""
    found = {}
    for name, call in (("embed", lambda: _embed(model, texts)), ("complete", lambda: _complete(model, texts))):
        with flop_counter() as flops:
            call()
        with _Products() as products:
            call()
        found |= {f"{name}.flops": flops.get_total_flops(), f"{name}.products": sum(products.calls.values())}
    return found


def one_pass(texts: list[list[int]]) -> dict[str, tuple[int, int]]:
    """Operations in linear layers, and products, of `texts` padded to the longest and of a reply with a cache."""
    per_position = 2 * 12 * WIDTH * WIDTH * LAYERS
    positions, heads = len(texts) * max(map(len, texts)), len(texts) * STEPS
    later = len(texts) * (STEPS - 1)
    reply = (positions + later) * per_position + heads * 2 * WIDTH * VOCABULARY
    return {"embed": (positions * per_position, 5 * LAYERS), "complete": (reply, STEPS * (5 * LAYERS + 1))}


def _poisoned(build, given: dict, device: torch.device) -> dict:
    """How many vectors and logits are finite though a weight is nan; a model that raises then is as loud as can be."""
    weights = {name: w.clone() for name, w in given["weights"].items()}
    for part in ("encoder", "decoder"):
        weights[f"{part}.0.norm1.weight"][3] = float("nan")
    model = _built(build, weights, device)
    calls = {"vectors": lambda: _embed(model, given["texts"]["mixed"])}
    calls |= {"logits": lambda: _complete(model, given["texts"]["mixed"])[1]}
    return {f"poisoned.finite_{name}": _finite(call) for name, call in calls.items()}


def _finite(call) -> int:
    try:
        return int(torch.isfinite(call()).sum())
    except LOUD:
        return 0
