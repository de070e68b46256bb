"""Matrix products of a few rows with the same weights, again and again, together with what follows each of them.

The weights of a decoding step are read from memory once per token, so their layout decides how fast it is. oneDNN has
one of its own for float32 on a CPU, twice as fast as the plain one for up to some dozen rows, and adds or activates
while the result is still in registers. Everywhere else the plain product is taken.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernels import has_fast_products

LEAST_ROWS = 2  # for a single row oneDNN has a kernel that adds up in another order, and is no faster

# activation -> oneDNN's name of it, and the variant
_FUSED = {"relu": ("relu", ""), "gelu": ("gelu", "none"), "gelu_tanh": ("gelu", "tanh")}


class Product:
    """x @ weight.T + bias.

    Args:
        weight: (M, K).
        bias: (M,).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """The product (N, M) of x (N, K)."""
        return F.linear(x, self.weight, self.bias)

    def added(self, x: Tensor, rest: Tensor) -> Tensor:
        """rest + product."""
        return self(x).add_(rest)

    def activated(self, x: Tensor, act: str) -> Tensor:
        """The activation of the product; `act` is one of ModelConfig.act that needs no gate."""
        product = self(x)
        if act in ("relu", "relu2"):
            positive = product.relu_()
            return positive.square_() if act == "relu2" else positive
        return F.gelu(product, approximate="tanh" if act == "gelu_tanh" else "none")


class PackedProduct(Product):
    """The same with a copy of the weights in oneDNN's layout; x has at least LEAST_ROWS rows.

    Args:
        weight: (M, K) float32 on a CPU.
        bias: (M,).
        n_rows: about how many rows x will have.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, n_rows: int) -> None:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), max(n_rows, LEAST_ROWS))
        super().__init__(packed, None if bias is None else bias.detach())

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
        return product

    def added(self, x: Tensor, rest: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, rest, self.weight, self.bias, "add")
        return product

    def activated(self, x: Tensor, act: str) -> Tensor:
        if act not in _FUSED:
            return super().activated(x, act)
        name, variant = _FUSED[act]
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, name, [], variant)
        return product


def can_pack(weight: Tensor) -> bool:
    """Whether weights like these gain from oneDNN's layout."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and has_fast_products()


def build_product(weight: Tensor, bias: Tensor | None, n_rows: int) -> Product:
    """The faster one of the two."""
    return PackedProduct(weight, bias, n_rows) if can_pack(weight) else Product(weight, bias)


class Gated:
    """silu(x @ gate.T + gate_bias) * (x @ up.T + up_bias), as one product where the weights are copied anyway.

    Args:
        gate, up: (M, K).
        biases: (M,) of the gate and of the other; both or none.
        n_rows: about how many rows x will have.
    """

    def __init__(self, gate: Tensor, up: Tensor, biases: tuple[Tensor, Tensor] | None, n_rows: int) -> None:
        self.width = len(gate)
        if can_pack(gate):  # a product of few rows costs more to begin than to compute
            bias = None if biases is None else torch.cat(biases)
            self.products = [build_product(torch.cat((gate, up)), bias, n_rows)]
        else:
            pairs = zip((gate, up), biases or (None, None), strict=True)
            self.products = [build_product(weight, bias, n_rows) for weight, bias in pairs]

    def __call__(self, x: Tensor) -> Tensor:
        """(N, M) of x (N, K)."""
        found = [product(x) for product in self.products]
        gate, up = found[0].split(self.width, dim=1) if len(found) == 1 else found
        return F.silu(gate).mul_(up)
