"""Tensors on disk: the bytes that safetensors writes, with their digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.tensor_file import _DTYPES, _PIECE, write_tensors


def some_tensors() -> dict[str, Tensor]:
    """Every kind of element, names out of order, a number, nothing, a name to be escaped, one larger than a piece."""
    kinds = {f"kind/{dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in _DTYPES}
    large = torch.arange(_PIECE // 4 + 3, dtype=torch.float32)
    named = {"z": torch.tensor(1.5), "empty": torch.zeros(0, 3), 'a "ä"\n': torch.ones(1), "large": large}
    return {**named, **kinds}


def test_the_bytes_are_those_of_safetensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "ours", some_tensors())
    save_file(some_tensors(), tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    digest = write_tensors(tmp_path / "file", some_tensors())
    assert digest == hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest()


def test_tensors_that_lie_across_memory_are_written_in_their_own_order(tmp_path: Path) -> None:
    table = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(table[:, 1:3])
    write_tensors(tmp_path / "file", {"turned": table.T, "cut": parameter})
    found = load_file(tmp_path / "file")
    assert found["turned"].equal(table.T) and found["cut"].equal(table[:, 1:3])


def test_elements_that_the_format_does_not_know_are_refused_with_the_tensors_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tensor 'wave' holds torch\.complex64; expected one of torch\.int64"):
        write_tensors(tmp_path / "file", {"wave": torch.zeros(2, dtype=torch.complex64)})
