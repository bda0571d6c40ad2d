"""What claims/ledger.jsonl says about losses, precision and training loops, tried."""

import inspect
import warnings
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn import functional as F

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it does not switch itself off")


def test_cross_entropy_has_no_temperature():
    assert "temperature" not in inspect.signature(nn.CrossEntropyLoss).parameters
    logits, target = torch.randn(6, 4), torch.randint(4, (6,))
    assert torch.equal(F.cross_entropy(logits, target), F.nll_loss(F.log_softmax(logits, 1), target))


def test_log_softmax_is_finite_where_softmax_and_log_are_not():
    logits = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    assert F.log_softmax(logits, 1).tolist() == [[0, -2000]]
    assert torch.softmax(logits, 1).log().tolist() == [[0, -torch.inf]]
    assert F.log_softmax(torch.tensor([1e38, -1e38]), 0).isfinite().all()
    loss = F.cross_entropy(logits, torch.tensor([1]))
    loss.backward()
    assert loss == 2000
    assert logits.grad.tolist() == [[1, -1]]  # never more than 1, however large the loss


def test_the_error_of_log_softmax_does_not_grow_with_the_logits():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for gain in (1, 1e3, 1e6):
        exact = F.log_softmax((gain * x).double(), 0)
        assert (F.log_softmax(gain * x, 0) - exact).norm() <= 3e-7 * exact.norm()


def test_the_learning_rate_decides_how_large_logits_grow():
    def largest(lr):
        torch.manual_seed(0)
        model, x, y = nn.Linear(8, 4), torch.randn(64, 8), torch.randint(4, (64,))
        optimizer = torch.optim.Adam(model.parameters(), lr)
        for _ in range(100):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        return model(x).abs().max().item()

    assert largest(10.0) > 10 * largest(0.01)


def test_label_smoothing_is_a_constant_mixture():
    logits, target = torch.randn(6, 4), torch.randint(4, (6,))
    smooth = F.cross_entropy(logits, target, label_smoothing=0.1)
    assert torch.equal(smooth, F.cross_entropy(logits, target, label_smoothing=0.1))  # nothing is drawn
    mixed = 0.9 * F.one_hot(target, 4) + 0.1 / 4
    assert torch.allclose(smooth, F.cross_entropy(logits, mixed))


def test_label_smoothing_and_a_mask_of_minus_infinity_make_the_loss_infinite():
    logits, target = torch.tensor([[1.0, 2.0, -torch.inf]]), torch.tensor([0])
    assert F.cross_entropy(logits, target).isfinite()
    assert F.cross_entropy(logits, target, label_smoothing=0.1).isinf()


def largest_logit(smoothing: float, start: float) -> float:
    """After training a table of logits that starts with one far too large in each row, or with none."""
    torch.manual_seed(0)
    target = torch.arange(40) % 4
    logits = (start * F.one_hot(target, 4).float()).requires_grad_()
    optimizer = torch.optim.Adam([logits], 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        F.cross_entropy(logits, target, label_smoothing=smoothing).backward()
        optimizer.step()
    return logits.abs().max().item()


def test_label_smoothing_keeps_logits_small_and_does_not_bring_them_back():
    assert largest_logit(0.1, start=0.0) < 0.6 * largest_logit(0.0, start=0.0)
    assert largest_logit(0.1, start=500.0) > 450


def gradient_ratio(hidden: int) -> float:
    """The last layer's gradient against the embedding's, by root mean square."""
    torch.manual_seed(0)
    between = [layer for _ in range(hidden) for layer in (nn.Linear(32, 32), nn.Sigmoid())]
    model = nn.Sequential(nn.Embedding(100, 32), *between, nn.Linear(32, 100))
    tokens = torch.randint(100, (64,))
    F.cross_entropy(model(tokens), tokens).backward()
    last, first = (p.grad.square().mean().sqrt().item() for p in (model[-1].weight, model[0].weight))
    return last / first


def test_how_much_smaller_an_embeddings_gradient_is_depends_on_the_model():
    assert gradient_ratio(0) < 50
    assert gradient_ratio(4) > 5 * gradient_ratio(0)


def test_clamped_logits_get_no_gradient():
    logits = torch.tensor([[1000.0, -1000.0]], requires_grad=True)
    loss = F.cross_entropy(logits.clamp(-100, 100), torch.tensor([1]), reduction="none")
    loss.sum().backward()
    assert loss.tolist() == [200]
    assert logits.grad.tolist() == [[0, 0]]


def test_where_differentiates_both_arms():
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    torch.where(x > 0, x.sqrt(), torch.zeros(2)).sum().backward()
    assert x.grad[0].isnan()
    assert x.grad[1] == 0.25


def test_softmax_before_cross_entropy_changes_it_and_log_softmax_does_not():
    logits, target = 5 * torch.randn(6, 4), torch.randint(4, (6,))
    plain = F.cross_entropy(logits, target)
    assert torch.allclose(plain, F.cross_entropy(F.log_softmax(logits, 1), target), atol=1e-6)
    assert not torch.allclose(plain, F.cross_entropy(torch.softmax(logits, 1), target), atol=0.05)


# ---------------------------------------------------------------------------------------------------- mixed precision


def test_a_scaler_has_one_scale_and_its_default():
    arguments = inspect.signature(torch.amp.GradScaler).parameters
    assert arguments["init_scale"].default == 2.0**16
    assert not any("group" in name or "param" in name for name in arguments)
    assert torch.amp.GradScaler("cpu").get_scale() == 65536


def test_the_old_names_of_amp_are_deprecated():
    with pytest.warns(FutureWarning):
        torch.cuda.amp.GradScaler()
    with pytest.warns(FutureWarning):
        torch.cuda.amp.autocast()


def scaled_steps(update: bool) -> None:
    model, scaler = nn.Linear(2, 2), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        for _name, parameter in model.named_parameters():
            parameter.grad.data.mul_(1.0)
        scaler.step(optimizer)
        if update:
            scaler.update()


def test_a_loop_without_update_raises_at_its_second_step():
    scaled_steps(update=True)
    with pytest.raises(RuntimeError):
        scaled_steps(update=False)


def test_a_gradient_of_zero_stays_zero_whatever_it_is_multiplied_by():
    tiny = torch.tensor(1e-9).half()
    assert 10 * tiny == 0
    scaled = (torch.tensor(1e-9) * 65536).half()
    assert scaled.float() / 65536 == pytest.approx(1e-9, rel=1e-2)


def test_adam_hides_a_gradient_that_is_ten_times_too_large():
    def moved(factor):
        w = torch.ones(3, requires_grad=True)
        w.grad = factor * torch.tensor([1.0, -2.0, 3.0])
        torch.optim.Adam([w], lr=0.1).step()
        return w.detach()

    assert torch.allclose(moved(1.0), moved(10.0))


def test_what_autocast_leaves_in_float32():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
        loss = F.mse_loss(y, torch.zeros_like(y))
        soft = torch.softmax(y, 1)
    loss.backward()
    assert (y.dtype, soft.dtype) == (torch.bfloat16, torch.bfloat16)  # CUDA's list has softmax in float32
    assert (loss.dtype, model.weight.dtype, model.weight.grad.dtype) == (torch.float32,) * 3


@NO_CUDA
def test_without_cuda_the_snippet_for_amp_trains_in_float32():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cuda")
        with torch.amp.autocast("cuda"):
            assert nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.float32
    assert not scaler.is_enabled()


def test_softmax_in_half_precision_is_safe_unless_written_by_hand():
    x = torch.tensor([20.0, -20.0]).half()
    assert F.softmax(x, 0).isfinite().all()
    assert (x.exp() / x.exp().sum()).isnan().any()


def test_adam_with_half_parameters_is_nan_after_a_step():
    w = torch.ones(2, dtype=torch.float16, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=1e-3)
    w.grad = torch.tensor([0.0, 1e-4], dtype=torch.float16)
    optimizer.step()
    assert not w.isfinite().all()


# --------------------------------------------------------------------------------------------------------- training


def train(lr: float, make=torch.optim.SGD, loss=F.cross_entropy, steps: int = 60) -> float:
    """Accuracy on four clouds of points."""
    torch.manual_seed(0)
    y = torch.arange(4).repeat(32)
    x = 2 * F.one_hot(y, 8) + 0.5 * torch.randn(128, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = make(model.parameters(), lr)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        optimizer.step()
    return (model(x).argmax(1) == y).float().mean().item()


def test_a_learning_rate_can_be_too_large_and_too_small():
    assert train(1.0) > 0.95
    assert train(300.0) < 0.6
    assert train(1e-5) < 0.6


def test_adam_and_sgd_want_other_learning_rates():
    assert train(1e-2, torch.optim.Adam) > 0.95
    assert train(1e-3) < 0.95 < train(1.0)  # the best of SGD lies above the advised range


def test_squared_error_on_one_hot_targets_learns_as_well():
    assert train(1e-2, torch.optim.Adam, lambda out, y: F.mse_loss(out, F.one_hot(y, 4).float())) > 0.95


def test_clipping_bounds_the_update_and_spreads_a_nan():
    weights = [torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)]
    for w in weights:
        w.grad = torch.full((2,), 100.0)
    assert nn.utils.clip_grad_norm_(weights, 1.0) == pytest.approx(200)
    assert torch.cat([w.grad for w in weights]).norm() == pytest.approx(1, rel=1e-4)
    weights[0].grad[0] = torch.nan
    nn.utils.clip_grad_norm_(weights, 1.0)
    assert all(w.grad.isnan().all() for w in weights)


def first_gradient(*, norm: bool) -> float:
    torch.manual_seed(0)
    blocks = [[nn.Linear(16, 16), nn.BatchNorm1d(16) if norm else nn.Identity(), nn.Sigmoid()] for _ in range(12)]
    model = nn.Sequential(*chain(*blocks), nn.Linear(16, 4))
    F.cross_entropy(model(torch.randn(64, 16)), torch.randint(4, (64,))).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return model[0].weight.grad.norm().item()


def test_batch_norm_helps_a_vanishing_gradient_and_clipping_does_not():
    assert first_gradient(norm=False) < 1e-7
    assert first_gradient(norm=True) > 1e-4


def test_weights_of_zero_or_nearly_do_not_start_in_a_deep_net():
    def gradient(std):
        torch.manual_seed(0)
        model = nn.Sequential(*(layer for _ in range(14) for layer in (nn.Linear(16, 16), nn.ReLU())))
        for p in model.parameters():
            nn.init.zeros_(p) if p.dim() == 1 else nn.init.normal_(p, std=std)
        model(torch.randn(64, 16)).square().mean().backward()
        return model[0].weight.grad.norm().item()

    assert gradient(0.0) == 0
    assert gradient(0.01) < 1e-20
    assert gradient((2 / 16) ** 0.5) > 1e-4  # Kaiming's for ReLU


def test_the_units_of_a_cosine_schedule_are_those_of_its_steps():
    def rates(steps):
        optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)
        scheduler, seen = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5), []
        for _ in range(steps):
            optimizer.step()
            scheduler.step()
            seen.append(scheduler.get_last_lr()[0])
        return seen

    assert rates(5) == sorted(rates(5), reverse=True)
    assert rates(10)[4] == pytest.approx(0)
    assert rates(10)[9] == pytest.approx(1)  # stepped per batch with T_max in epochs it rises again


def test_a_weighted_loss_looks_at_the_rare_class():
    logits = torch.zeros(100, 2, requires_grad=True)
    target = torch.tensor([1] * 2 + [0] * 98)
    F.cross_entropy(logits, target, weight=torch.tensor([1.0, 49.0])).backward()
    rare, common = logits.grad[:2].abs().sum(), logits.grad[2:].abs().sum()
    assert rare == pytest.approx(common.item())
