"""What claims/ledger.jsonl says about memory, as far as a CPU and bytes can show it; the labs show the rest."""

import inspect
import random

import pytest
import torch
import torchvision
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from breakfix.probes.memory import Card


def step_shares(model: nn.Module, batch: torch.Tensor) -> float:
    """The parameters' share of the peak of a training step with AdamW."""
    with Card("cpu") as card:
        card.add(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        for _ in range(2):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            card.end_step()
    return sum(p.nbytes for p in model.parameters()) / card.peak.bytes


def test_parameters_are_a_share_of_the_peak_that_depends_on_the_batch():
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    few, many = step_shares(model, torch.randn(2, 64)), step_shares(model, torch.randn(4096, 64))
    assert 0.15 < few <= 0.25  # one of P + gradients + two averages, and a little rounding
    assert many < 0.02


def test_moving_a_large_vit_takes_its_parameters_and_no_more():
    with torch.device("meta"):
        model = torchvision.models.vit_b_16(weights=None)
    size = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    assert 80e6 < size / 4 < 100e6
    assert size < 0.02 * 24 * 2**30


def test_adam_keeps_two_numbers_for_each_and_a_count_per_tensor():
    model = nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(3, 100)).sum().backward()
    optimizer.step()
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
        assert state["exp_avg"].nbytes == state["exp_avg_sq"].nbytes == parameter.grad.nbytes == parameter.nbytes
        assert state["step"].nbytes == 4
    assert 2 * 100e6 * torch.float32.itemsize == 800e6  # 100 M parameters: 200 M numbers, and 800 MB


def saved_by(function, *inputs) -> list[torch.Tensor]:
    """What autograd keeps for backward."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        function(*inputs)
    return kept


KEEPS = [(F.relu, False), (torch.sigmoid, False), (F.gelu, True), (F.silu, True)]


@pytest.mark.parametrize(("activation", "keeps"), KEEPS)
def test_who_keeps_the_pre_activation(activation, keeps):
    x, w, b = torch.randn(5, 3), torch.randn(3, 4, requires_grad=True), torch.randn(4, requires_grad=True)
    before = []
    kept = saved_by(lambda: activation(before.append(x @ w + b) or before[0]))
    assert any(t.shape == before[0].shape and torch.equal(t, before[0]) for t in kept) is keeps


def test_an_output_can_be_far_larger_than_the_layers_parameters():
    layer = nn.Linear(64, 64)
    assert layer(torch.randn(4096, 64)).nbytes > 60 * sum(p.nbytes for p in layer.parameters())


def test_fcn_resnet50_exists_and_how_many_parameters_it_has():
    build = torchvision.models.segmentation.fcn_resnet50
    with torch.device("meta"):
        sizes = [
            sum(p.numel() for p in build(weights=None, weights_backbone=None, aux_loss=head).parameters())
            for head in (False, True)
        ]
    assert sizes == [32_957_013, 35_322_218]


def test_at_one_setting_training_it_peaks_near_18_gb_and_hardly_any_of_it_is_adams():
    with Card("meta") as card, torch.device("meta"):
        model = torchvision.models.segmentation.fcn_resnet50(weights=None, weights_backbone=None, aux_loss=True)
        card.add(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            out = model(torch.zeros(16, 3, 512, 512))
            (out["out"].square().mean() + out["aux"].square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            card.end_step()
    held = {name: size / card.peak.bytes for name, size in card.peak.held.items()}
    assert 16e9 < card.peak.bytes < 20e9
    assert held["optimizer state"] == pytest.approx(2 * held["parameters"], rel=0.01)
    assert held["parameters"] < 0.01


def test_no_counter_of_memory_summary_knows_what_the_bytes_are_for():
    text = inspect.getsource(torch.cuda.memory_summary)
    assert "Allocated memory" in text
    assert not any(word in text.lower() for word in ("optimizer", "gradient", "activation", "intermediate"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it works")
def test_memory_summary_raises_without_cuda():
    with pytest.raises(KeyError):
        torch.cuda.memory_summary()


def test_pinned_memory_has_counters_of_its_own():
    assert not hasattr(torch.cuda, "pinned_memory_allocated")
    assert callable(torch.cuda.host_memory_stats)
    if not torch.cuda.is_available():
        assert torch.cuda.memory_allocated() == 0  # the card's bytes; that is all it can count


# ------------------------------------------------------------------------------------------------- checkpoints


def gradients(run, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    torch.manual_seed(3)
    random.seed(3)
    run(x).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_a_checkpoint_replays_torchs_randomness_unless_told_not_to():
    model, x = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.3), nn.Linear(32, 32)), torch.randn(8, 32)
    plain = gradients(model, model, x)
    assert torch.equal(plain, gradients(lambda x: checkpoint(model, x, use_reentrant=False), model, x))
    loose = {"use_reentrant": False, "preserve_rng_state": False}
    assert not torch.allclose(plain, gradients(lambda x: checkpoint(model, x, **loose), model, x))


class PythonDropout(nn.Linear):
    def forward(self, x):
        return super().forward(torch.sin(x) * random.random())


def test_a_checkpoint_does_not_replay_pythons_randomness():
    model, x = nn.Sequential(nn.Linear(32, 32), PythonDropout(32, 32)), torch.randn(8, 32)
    plain = gradients(model, model, x)
    assert not torch.allclose(plain, gradients(lambda x: checkpoint(model, x, use_reentrant=False), model, x))


def test_checkpoint_sequential_is_exact_with_encoder_layers_and_their_dropout():
    layers = nn.Sequential(*(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(4)))
    x = torch.randn(2, 5, 16)
    plain = gradients(layers, layers, x)
    assert torch.equal(plain, gradients(lambda x: checkpoint_sequential(layers, 2, x, use_reentrant=False), layers, x))


def test_checkpoint_sequential_warns_without_use_reentrant():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="use_reentrant"):
        checkpoint_sequential(model, 2, torch.randn(2, 4, requires_grad=True))


def test_dropout_p_is_no_argument_of_the_encoder_layer():
    assert "dropout_p" in F.scaled_dot_product_attention.__doc__
    with pytest.raises(TypeError):
        nn.TransformerEncoderLayer(16, 2, dropout_p=0.0)


def test_what_a_loss_had_saved_is_gone_after_backward():
    w = torch.randn(1000, requires_grad=True)
    losses = [(w * w).exp().sum() for _ in range(2)]  # as kept in a list
    losses[0].backward()
    with pytest.raises(RuntimeError):
        losses[0].backward()
    losses[1].backward()  # that of the other is there still


def peak(batch: int, autocast: bool) -> int:
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())))
    x = torch.randn(batch, 64)
    with Card("cpu") as card:
        card.add(model)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(x).float().square().mean()
            loss.backward()
            del loss
            card.end_step()
    return card.peak.bytes


def test_what_autocast_saves_depends_on_the_share_of_activations():
    few, many = (peak(batch, True) / peak(batch, False) for batch in (2, 4096))
    assert few > 0.95
    assert many < 0.8
