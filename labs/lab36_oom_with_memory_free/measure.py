"""Measure lab36: what one answer allocates, in order; what of it stays; and how a card of 160 MiB would pack it."""

from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor, nn

from breakfix.contract import PARAMETERS_OF_TODAY, describe, expect, expect_tensors, function
from breakfix.probes.segments import MIB, Event, Trace, live_bytes, measured, replay

VOCABULARY, WIDTH, LAYERS = 512, 64, 2
CARD = 160 * MIB  # what the card has for this process
SAMPLES = 256  # tokens whose features become evidence
ROW = 3  # the file of a batch that the checks recompute


@dataclass(frozen=True)
class Regime:
    """A batch of files: the lengths of their passages, and how many words are answered."""

    files: int
    passages: tuple[int, ...]
    words: int

    @property
    def length(self) -> int:
        return sum(self.passages)

    @property
    def cache_bytes(self) -> int:
        """Of the keys and values of all tokens, in float32."""
        return self.files * (self.length + self.words) * WIDTH * 4 * 2 * LAYERS


REGIMES = {
    "even": Regime(16, (512,) * 10, 8),
    "ragged": Regime(16, (300, 800, 140, 620, 470, 800, 256, 710, 90, 540, 394), 8),
    "short": Regime(5, (3, 1, 9, 4), 6),
    "long": Regime(4, (900, 37, 1100) * 5, 6),  # of twice as many tokens: a room that fits 5120 is one for 5120
}
LARGE = ("even", "ragged")  # whose memory is looked at


def shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's parameters."""
    found = {"token.weight": (VOCABULARY, WIDTH), "head.weight": (VOCABULARY, WIDTH), "head.bias": (VOCABULARY,)}
    linear = {"query": (WIDTH, WIDTH), "key_value": (2 * WIDTH, WIDTH), "out": (WIDTH, WIDTH)}
    linear |= {"mlp.0": (2 * WIDTH, WIDTH), "mlp.2": (WIDTH, 2 * WIDTH)}
    for i in range(LAYERS):
        for part in ("norm1", "norm2"):
            found |= {f"layers.{i}.{part}.{kind}": (WIDTH,) for kind in ("weight", "bias")}
        for part, shape in linear.items():
            found |= {f"layers.{i}.{part}.weight": shape, f"layers.{i}.{part}.bias": shape[:1]}
    return found


def inputs(seed: int) -> dict:
    """`weights` by name; by regime the token ids of the `files` and the `places` whose features become evidence."""
    g = torch.Generator().manual_seed(seed)
    weights = {name: _weight(name, shape, g) for name, shape in shapes().items()}
    files = {name: torch.randint(VOCABULARY, (r.files, r.length), generator=g) for name, r in REGIMES.items()}
    places = {name: torch.randint(r.length, (SAMPLES,), generator=g) for name, r in REGIMES.items()}
    return {"weights": weights, "files": files, "places": places}


def _weight(name: str, shape: tuple[int, ...], g: torch.Generator) -> Tensor:
    drawn = torch.randn(shape, generator=g)
    if len(shape) == 1:
        return 0.1 * drawn + (".norm" in name and name.endswith("weight"))
    sharp = 3 if "query" in name else 1  # so that a word attends to some tokens, not to the mean of thousands
    return drawn if name == "token.weight" else sharp * drawn / shape[1] ** 0.5


def measure(subject, seed: int, device: torch.device) -> dict:
    build = function(subject, "build(device) -> nn.Module")
    given, evidence = inputs(seed), {"card_mib": CARD / MIB}
    for name, regime in REGIMES.items():
        found = _Run(_built(build, given["weights"], device), regime, device).through(given, name)
        evidence |= {f"{name}.{key}": value for key, value in found.items()}
    return evidence


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


class _Counted(Trace):
    """A trace that also counts the bytes that operators write: into new storages, and into old ones."""

    SCATTERING = ("index_copy_", "index_put_", "_index_put_impl_", "index_add_", "scatter_", "scatter_add_")

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = len(self.events)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        name, _, overload = func.name().removeprefix("aten::").partition(".")
        if name in self.SCATTERING:
            self.written += _bytes([a for a in args if isinstance(a, Tensor)][-1:])  # the source, not all of the target
        elif name.endswith("_") or overload.endswith("out"):
            self.written += _bytes(out)
        else:
            self.written += sum(event.nbytes for event in self.events[before:])
        return out

    def empty_cache(self) -> None:
        """Stands in for `torch.cuda.empty_cache` where there is none."""
        self.mark()
        self.events.append(Event(-1, 0, "empty_cache"))


def _bytes(out) -> int:
    tensors = [t for t in (out if isinstance(out, list | tuple) else [out]) if isinstance(t, Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)


class _Run:
    """One answer, watched."""

    def __init__(self, model: nn.Module, regime: Regime, device: torch.device):
        self.model, self.regime, self.device = model, regime, device
        self.trace = _Counted(device)
        self.read_until = self.written_until = 0  # events, and bytes written, when the last passage had been read
        self.encoded = []  # by passage: bytes written before the next one was asked for, next to those of its features

    def through(self, given: dict, name: str) -> dict:
        """Read the files, write the answers; the evidence."""
        ids = given["files"][name].to(self.device)
        before = _before_cuda(self.device)
        with mock.patch("torch.cuda.empty_cache", self._emptied()), self.trace:
            self.trace.add(self.model)
            weights = live_bytes(self.trace.events)[-1]
            made = self.model.answer(self._passages(ids), self.regime.length, self.regime.words)
        features, tokens, logits = self._checked(made)
        found = {
            "features": features[ROW, given["places"][name].to(features.device)],
            "device": features.device.type,
            "dtype": str(features.dtype),
            "tokens": tokens[ROW],
            "logits": logits[ROW],
            "encoded": min(self.encoded, default=0.0),
            "likeliest": float((logits.gather(2, tokens.unsqueeze(2)).squeeze(2) >= logits.amax(2)).float().mean()),
        }
        del made, tokens, logits
        return found | (self._memory(weights, before) if name in LARGE else {})

    def _passages(self, ids: Tensor) -> Iterator[Tensor]:
        """The passages as they come from the disk, each when it is asked for."""
        for passage in ids.split(self.regime.passages, dim=1):
            ids, before = passage.clone(), self.trace.written
            yield ids
            self.read_until, self.written_until = self.trace.mark(), self.trace.written
            self.encoded.append((self.written_until - before) / (passage.numel() * WIDTH * 4))

    def _emptied(self):
        real = torch.cuda.empty_cache if self.device.type == "cuda" else lambda: None
        return lambda: (real(), self.trace.empty_cache())

    def _checked(self, made) -> tuple[Tensor, Tensor, Tensor]:
        r = self.regime
        wanted = [[r.files, r.length, WIDTH], [r.files, r.words], [r.files, r.words, VOCABULARY]]
        fits = isinstance(made, tuple) and [list(t.shape) for t in made if isinstance(t, Tensor)] == wanted
        expect(fits, "answer", wanted=f"features, tokens and logits of shapes {wanted}", got=describe(made))
        return made

    def _memory(self, weights: int, before: int) -> dict:
        """Figures in MiB: alive, written and left are measured, reserved and refused modelled but on CUDA."""
        end = self.trace.mark()
        events, cache = self.trace.events[:end], self.regime.cache_bytes
        live = live_bytes(events)
        packed, capped = replay(events), replay(events, CARD)
        words = self.trace.written - self.written_until
        return {
            "live_peak_mib": max(live) / MIB,
            "left_mib": (live[-1] - weights) / MIB,
            "written_mib": self.trace.written / MIB,
            "written_per_word": words / self.regime.words / cache,
            "reserved_peak_mib": _reserved_on(self.device, before, packed.reserved_peak) / MIB,
            "modelled_reserved_mib": packed.reserved_peak / MIB,
            "retries": capped.retries,
            "refused": int(bool(capped.refused)),
            "refusal": capped.refused,
            "free_when_refused_mib": (capped.reserved - capped.allocated) / MIB if capped.refused else 0.0,
            "allocated_mib": _thinned([allocated for allocated, _ in packed.timeline]),
            "reserved_mib": _thinned([reserved for _, reserved in packed.timeline]),
            "source": "measured" if self.device.type == "cuda" else "modelled",
        }


def _thinned(sizes: list[int]) -> Tensor:
    """Bytes after each request, in MiB, at most 1000 of them."""
    return torch.tensor(sizes[:: 1 + len(sizes) // 1000], dtype=torch.float64).div(MIB).float()


def _before_cuda(device: torch.device) -> int:
    """On CUDA: start from an empty cache with cuBLAS warmed up; bytes reserved then. Not run on a GPU yet."""
    if device.type != "cuda":
        return 0
    torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_reserved(device)


def _reserved_on(device: torch.device, before: int, modelled: int) -> int:
    return measured(device)["reserved_peak"] - before if device.type == "cuda" else modelled
