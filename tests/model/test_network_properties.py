"""Properties of every network: rows, documents and windows do not leak, rotations depend on distances only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from network_variants import ATTENTION_VARIANTS, VARIANTS, ids_of
from torch.nn.attention.flex_attention import flex_attention

from model import ModelConfig, Transformer
from model.attention import (
    additive_mask,
    apply_rotary,
    attend,
    attention_mask,
    block_mask,
    rotary_columns,
    rotary_frequencies,
    rotary_table,
)
from model.kv_cache import KVCache

Build = Callable[..., Transformer]
ROTATIONS = [
    {"rope_layout": layout, **dim, **scaling}
    for layout in ("half", "interleaved")
    for dim in ({}, {"rope_dim": 4})
    for scaling in (
        {},
        {"rope_scaling": "linear", "rope_factor": 4.0},
        {"rope_scaling": "ntk", "rope_factor": 4.0},
        {"rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_len": 32},
        {"rope_scaling": "llama3", "rope_factor": 4.0, "rope_original_len": 32},
    )
]


def other_ids(ids: torch.Tensor) -> torch.Tensor:
    """Ids of which each differs from the one in its place."""
    return (ids + 1 + torch.arange(ids.numel()).reshape(ids.shape) % 7) % 31


# rows


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_every_parameter_has_a_part_in_the_loss(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(4, 16)
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    idle = [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()]
    assert idle == []


# rotary positions


def rotated_pair(settings: dict, n_positions: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A query and a key (8,) and both of them rotated to each position, (n_positions, 8), in float64."""
    config = ModelConfig(31, max_seq_len=n_positions, n_head=2, d_model=16, pos="rope", **settings)
    generator = torch.Generator().manual_seed(3)
    q, k = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    table = rotary_table(config, n_positions)
    rotation = rotary_columns(table, config.rope_layout)
    turned = [apply_rotary(x.expand(1, n_positions, 1, 8), rotation, config.rope_layout)[0, :, 0] for x in (q, k)]
    return q, k, turned[0], turned[1]


@pytest.mark.parametrize("settings", ROTATIONS, ids=str)
def test_rotated_scores_depend_on_the_distance_only(settings: dict) -> None:
    _, _, q, k = rotated_pair(settings, 64)
    scores = q @ k.T
    for distance in range(-40, 41):
        along = scores.diagonal(distance)
        assert (along - along[0]).abs().max() <= 1e-12
    assert scores[20].std() > 1e-3  # and they do depend on it


@pytest.mark.parametrize("settings", ROTATIONS, ids=str)
def test_rotation_is_the_complex_product(settings: dict) -> None:
    config = ModelConfig(31, max_seq_len=16, n_head=2, d_model=16, pos="rope", **settings)
    q, _, turned, _ = rotated_pair(settings, 16)
    frequencies, factor = rotary_frequencies(config)
    pairs = config.rope_dim // 2
    order = torch.arange(config.rope_dim)
    order = order.reshape(2, pairs).T if config.rope_layout == "half" else order.reshape(pairs, 2)
    angle = torch.arange(16, dtype=torch.float64)[:, None] * frequencies
    expected = torch.view_as_complex(q[order].contiguous()) * torch.polar(torch.full_like(angle, factor), angle)
    torch.testing.assert_close(torch.view_as_complex(turned[:, order].contiguous()), expected, atol=1e-12, rtol=0)


# attention weights


@pytest.mark.parametrize("window", [None, 3])
def test_what_is_added_to_the_scores_hides_tokens_too(build_model: Build, window: int | None) -> None:
    model, ids = build_model(window=window), ids_of(2, 9)
    padding = torch.zeros(2, 1, 1, 9)
    padding[1, ..., :4] = -torch.inf  # the second row is padded on the left, where its own tokens look at nothing
    padding[1, ..., 0] = 0.0
    with torch.no_grad():
        found, plain = model(ids, attention_mask=padding), model(ids)
        other = ids.clone()
        other[1, 1:4] = 5
        unseen = model(other, attention_mask=padding)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1, 4:], unseen[1, 4:])
    assert not torch.allclose(found[1, 4:], plain[1, 4:])
    with pytest.raises(ValueError, match="both an attention mask and documents are given"):
        model(ids, attention_mask=padding, documents=[[9], [9]])
    with pytest.raises(ValueError, match="an attention mask cannot be combined with a cache"):
        model(ids, attention_mask=padding, cache=KVCache(model.config, 2))


@pytest.mark.parametrize("window", [None, 20])
def test_a_mask_of_blocks_hides_what_the_mask_of_documents_hides(window: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n_head, 160, 16, generator=generator) for n_head in (4, 2, 2))
    numbers, places = torch.tensor([[0] * 100 + [1] * 60, [0] * 3 + [1] * 157]), torch.arange(160)
    seen = attention_mask(places, places, window, (numbers, numbers))[:, None]
    dense = attend(q, k, v, additive_mask(seen, torch.float32))
    with torch.no_grad():
        blocks = flex_attention(q, k, v, block_mask=block_mask(numbers, window), enable_gqa=True)
    torch.testing.assert_close(blocks, dense, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 5, 16])
@pytest.mark.parametrize("pos", ["learned", "rope"])
def test_through_one_layer_a_token_sees_exactly_its_window(build_model: Build, window: int, pos: str) -> None:
    model, ids = build_model(n_layer=1, window=window, pos=pos), ids_of(1, 16)
    now = model.plan(ids)
    x = model.place(model.token_embedding(ids), now).detach().requires_grad_()
    features = model.norm(model.blocks[0](x, 0, now))
    for t in range(16):
        (gradient,) = torch.autograd.grad(model.head(features[0, t]).square().sum(), x, retain_graph=True)
        seen = gradient[0].abs().amax(dim=1) > 0
        assert seen.nonzero()[:, 0].tolist() == list(range(max(0, t - window + 1), t + 1))


# packed documents


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("changed_document", [0, 1, 2])
def test_a_document_changes_no_bit_of_the_others(build_model: Build, settings: dict, changed_document: int) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    lengths = [[5, 4, 6], [7, 9]]  # and one id of padding
    ends = [0, 5, 9, 15]
    inside = torch.zeros(2, 16, dtype=torch.bool)
    inside[0, ends[changed_document] : ends[changed_document + 1]] = True
    changed = torch.where(inside, other_ids(ids), ids)
    with torch.no_grad():
        before, after = model(ids, documents=lengths), model(changed, documents=lengths)
    assert torch.equal(before[~inside], after[~inside])
    assert not torch.allclose(before[inside], after[inside], atol=1e-3)


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_a_packed_document_reads_as_if_alone(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    with torch.no_grad():
        packed = model(ids, documents=[[5, 4, 6], [7, 9]])
        for row, first, last in ((0, 0, 5), (0, 5, 9), (0, 9, 15), (1, 0, 7), (1, 7, 16)):
            alone = model(ids[row : row + 1, first:last])[0]
            torch.testing.assert_close(packed[row, first:last], alone, atol=1e-5, rtol=0)


def test_long_documents_stay_apart_bit_for_bit(build_model: Build) -> None:
    # longer than the blocks in which the attention kernel reads keys
    model, ids = build_model(n_layer=1, max_seq_len=1300, pos="rope"), ids_of(1, 1300)
    changed = ids.clone()
    changed[:, :600] = other_ids(ids)[:, :600]
    with torch.no_grad():
        before, after = (model(x, documents=[[600, 650]]) for x in (ids, changed))
        alone = model(ids[:, 600:1250])
    assert torch.equal(before[:, 600:], after[:, 600:])
    torch.testing.assert_close(before[:, 600:1250], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([[5]], "documents are given for 1 rows, but there are 2 rows of ids"),
        (
            [[5, 8], [4]],
            r"documents of row 0 have the lengths \[5, 8\]; expected numbers of at least 1 that add up to 12",
        ),
        ([[12], [4, 0, 3]], r"documents of row 1 have the lengths \[4, 0, 3\]"),
        ([[12], [14, -2]], r"documents of row 1 have the lengths \[14, -2\]"),
    ],
)
def test_documents_that_do_not_fit_are_refused(build_model: Build, documents: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model()(ids_of(2, 12), documents=documents)


def test_documents_behind_a_cache_are_refused(build_model: Build) -> None:
    model = build_model()
    with pytest.raises(ValueError, match="documents cannot be combined with a cache; use one pass"):
        model(ids_of(1, 8), cache=KVCache(model.config, 1), documents=[[4, 4]])


# cache


@pytest.mark.parametrize("settings", ATTENTION_VARIANTS, ids=str)
def test_a_prompt_read_in_pieces_equals_one_pass(build_model: Build, settings: dict) -> None:
    model, ids = build_model(**settings), ids_of(2, 16)
    cache = KVCache(model.config, 2)
    with torch.no_grad():
        parts = [model(ids[:, a:b], cache=cache) for a, b in ((0, 7), (7, 8), (8, 13), (13, 16))]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), atol=1e-5, rtol=0)
