"""Products by the library that is the faster one on a processor, against torch's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from model import ModelConfig, Transformer, kernels
from model.kernels import Linear, Packed, linears, product


@pytest.fixture(params=["onednn", "torch"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each of the two libraries, whatever the processor is."""
    if request.param == "onednn" and not (torch.backends.mkldnn.is_available() and hasattr(torch.ops, "mkldnn")):
        pytest.skip("torch was built without oneDNN")
    monkeypatch.setattr(kernels, "has_fast_products", lambda: request.param == "onednn")
    yield request.param


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def test_product_takes_tensors_of_any_strides(library: str) -> None:
    wide, b, one, bias = (x.detach() for x in tensors((6, 10), (4, 5), (), (8,), dtype=torch.float32))
    for a in (wide[:, ::2], wide[:, 2:7], wide[:, :1].expand(6, 5), one.expand(6, 5), wide[:0, :5], wide[:5].T[:, :5]):
        for shift in (bias[::2], one.expand(4)):
            torch.testing.assert_close(product(a, b, shift), a @ b.T + shift)
    torch.testing.assert_close(product(wide.T, wide.T), wide.T @ wide)


def test_inference_mode_takes_the_faster_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_fast_products", lambda: True)
    taken: list[tuple[int, ...]] = []

    def note(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        taken.append(tuple(x.shape))
        return F.linear(x, weight, bias)

    monkeypatch.setattr(kernels, "product", note)
    layer, (x,) = Linear(256, 256).eval(), tensors((2, 16, 256), dtype=torch.float32)
    with torch.no_grad():
        plain = layer(x)
    assert not taken
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), plain)
        torch.testing.assert_close(layer(x[:1]), plain[:1])  # a small product, in which the call would cost more
    assert taken == [(32, 256)]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attn_bias": False, "ffn_bias": False, "norm_bias": False},
        {"pos": "rope", "norm": "rmsnorm", "act": "swiglu", "qk_norm": True, "n_kv_head": 1, "vocab_multiple": 64},
        {"norm_order": "post", "act": "relu2", "head_bias": True, "tie_weights": False},
    ],
    ids=str,
)
def test_gradients_of_a_network_in_training_are_those_of_the_plain_graph(library: str, settings: dict) -> None:
    torch.manual_seed(0)
    network = Transformer(ModelConfig(31, max_seq_len=70, n_layer=2, n_head=2, d_model=16, init_std=0.2, **settings))
    exact = Transformer(network.config).double()
    exact.load_state_dict(network.state_dict())
    generator = torch.Generator().manual_seed(1)
    ids, labels = (torch.randint(31, (3, 70), generator=generator) for _ in range(2))
    network.train().nll(ids, labels).backward()
    exact.eval()
    F.cross_entropy(exact(ids).flatten(0, 1), labels.flatten(), reduction="sum").backward()
    for (name, one), other in zip(network.named_parameters(), exact.parameters(), strict=True):
        # a bias of the keys shifts all scores of a query alike: its gradient is 0, and what is left is rounding
        like = exact.get_parameter(name.replace(".k.bias", ".q.bias"))
        scale = float(like.grad.abs().max())
        torch.testing.assert_close(
            one.grad.double(), other.grad, atol=2e-5 * scale, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("least", [0, kernels.LEAST_PACKED])
@pytest.mark.parametrize("n_rows", [1, 2, 7])
def test_packed_weights_give_the_products_of_all_layers_of_one_input(
    library: str, n_rows: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "LEAST_PACKED", least)
    first, second = Linear(8, 5).eval(), Linear(8, 3).eval()
    (x,) = (x.detach() for x in tensors((n_rows, 1, 8), dtype=torch.float32))
    other = torch.cat([x, x])
    with torch.inference_mode(), Packed([[(first.weight, first.bias), (second.weight, second.bias)]], n_rows):
        for rows in (x, other):  # packed for n_rows; others go the usual way
            for layer, found in zip((first, second), linears(rows, first, second), strict=True):
                torch.testing.assert_close(found, F.linear(rows, layer.weight, layer.bias))


def test_an_unknown_operator_leaves_torch_its_own_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "processor_vendor", lambda: "AuthenticAMD")
    monkeypatch.setattr(torch.ops, "mkldnn", object(), raising=False)
    assert kernels.has_fast_products.__wrapped__() is False


def test_a_copy_of_a_network_has_nothing_compiled(build_model: Callable[..., Transformer]) -> None:
    import copy

    network = build_model()
    network.compiled["read"] = network.read
    assert copy.deepcopy(network).compiled == {}
    assert network.compiled
