"""Claims on loss, optimisers and training."""

from __future__ import annotations

import pytest
import torch

from golden.registry import Entry, behaviour
from golden.shared import built, noise, same
from golden.training import clipped, optimizer_steps
from model import GenerationConfig, TrainConfig, Transformer, generate, preset
from model.attention import attention_mask
from model.data import IGNORE
from model.kernels import linear_nll
from model.schedule import cosine, learning_rate


@behaviour("s001-logit-meaning")
def only_log_softmax_gives_log_probabilities(entry: Entry) -> None:
    model = built(preset("tiny", 31, init_std=0.5))
    logits = model(torch.tensor([[1, 2, 3]]))[0, -1].detach()
    assert abs(logits.logsumexp(0).item()) > 0.1
    answer = generate(model, [[1, 2, 3]], GenerationConfig(1, temperature=0.0))[0]
    assert answer.logprobs[0] == pytest.approx(logits.log_softmax(0)[answer.ids[0]].item(), abs=1e-6)


@behaviour("s001-dWout")
def head_gradient_is_states_times_logit_gradient(entry: Entry) -> None:
    features, weight = noise(5, 4), noise(7, 4, seed=2).requires_grad_()
    labels = torch.tensor([0, 3, IGNORE, 6, 3])
    linear_nll(features, weight, labels).backward()
    d_logits = (features @ weight.detach().T).softmax(-1)
    d_logits[torch.arange(5), labels.clamp(min=0)] -= 1
    d_logits[labels == IGNORE] = 0
    assert same(weight.grad, (features.T @ d_logits).T)


@behaviour("s001-adam-vs-adamw")
def decay_scales_with_the_rate_or_joins_the_gradient(entry: Entry) -> None:
    settings = {"theta0": 0.5, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
    decoupled, coupled = (optimizer_steps(kind, **settings, grads=[0.0])[0]["theta"] for kind in ("adamw", "adam_l2"))
    assert decoupled == pytest.approx(0.5 * (1 - 1e-3 * 0.01), abs=1e-12)
    assert decoupled != pytest.approx(0.5 * (1 - 0.01), abs=1e-6)  # as printed
    gradient = 0.01 * 0.5
    assert coupled == pytest.approx(0.5 - 1e-3 * gradient / (gradient + 1e-8), abs=1e-12)


@behaviour("s000-cosine-adamw-clip")
def training_formulas_of_the_first_document(entry: Entry) -> None:
    decayed = optimizer_steps("adamw", 0.5, 1e-3, 0.9, 0.999, 1e-8, 0.01, [0.3])[0]
    assert decayed["theta"] == pytest.approx(0.5 - 1e-3 * (0.3 / (0.3 + 1e-8) + 0.01 * 0.5), abs=1e-12)
    config = TrainConfig(10_000, lr=1e-3, schedule="cosine", min_lr_ratio=0.1)
    rates = [learning_rate(step, config) for step in (0, 5_000, 10_000)]
    assert rates == pytest.approx([cosine(t, 1e-3, 1e-4, 10_000) for t in (0, 5_000, 10_000)], abs=1e-15)
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4], abs=1e-12)
    gradient, norm = clipped([3.0, 4.0], 1.0)
    assert (norm, gradient.norm().item()) == (5.0, pytest.approx(1.0, abs=1e-6))


@behaviour("s004-init-loss")
def an_untrained_tied_network_knows_nothing(entry: Entry) -> None:
    sizes = entry["inputs"]
    model = built(preset("fundamentals", sizes["V"], d_model=sizes["d"], n_head=4, n_layer=sizes["L"], max_seq_len=16))
    ids = torch.randint(0, sizes["V"], (8, 17), generator=torch.Generator().manual_seed(0))
    loss = model.loss(ids[:, :-1], ids[:, 1:]).item()
    assert loss == pytest.approx(entry["expected"]["uniform_loss"], abs=0.1)
    assert loss < entry["expected"]["initial_loss_observed"] - 10


@behaviour("s004-loss-view")
def the_loss_takes_a_slice_that_is_not_contiguous(entry: Entry) -> None:
    model = built(preset("tiny", 31))
    ids = torch.randint(0, 31, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1:]
    with pytest.raises(RuntimeError, match="view"):
        labels.view(-1)
    assert model.loss(ids[:, :-1], labels).item() == model.loss(ids[:, :-1].clone(), labels.clone()).item()


@behaviour("s004-mask-device")
def masks_live_where_the_ids_do(entry: Entry) -> None:
    config = preset("llama", 31, n_layer=1, max_seq_len=16, window=3)
    with torch.device("meta"):
        elsewhere, ids = Transformer(config), torch.zeros(2, 8, dtype=torch.int64)
    assert elsewhere(ids).device.type == "meta"  # an explicit mask from another device could not take part
    assert attention_mask(ids[0], ids[0]).device.type == "meta"
