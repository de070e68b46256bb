"""Claims on tokenisers, attention, blocks, generation and training, each with a check of its own.

Where the document is wrong, the corrected behaviour is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from golden.networks import (
    block_of,
    embedded,
    linear,
    norm_layer,
    pass_over,
    placed,
    projections,
    token_distances,
    toy_network,
)
from golden.registry import Entry, claim
from golden.shared import built, noise, numbers, same, watched
from model import GenerationConfig, ModelConfig, TrainConfig, Transformer, count_parameters, generate, preset
from model.attention import (
    apply_rotary,
    attention_mask,
    attention_weights,
    rotary_columns,
    rotary_table,
    wavelength_frequencies,
)
from model.data import IGNORE
from model.kv_cache import KVCache
from model.optim import adam_walk, clip_gradients
from model.sampling import filter_top_k, filter_top_p, token_probabilities
from model.schedule import cosine, learning_rate
from model.transformer import activate, linear_nll
from tasks.tokens.tokenizer_kinds import AsciiTokenizer, WordTokenizer


@claim("s000-tok-bijective")
def encoding_loses_unknown_characters(entry: Entry) -> None:
    tokenizer = AsciiTokenizer()
    ids = tokenizer.encode(entry["inputs"]["unknown_characters"])
    assert [one.tolist() for one in ids] == [[entry["inputs"]["unk_id"]]] * len(ids)
    known = "".join(map(chr, range(4, 128)))
    assert tokenizer.decode(tokenizer.encode([known])[0].tolist()) == known


@claim("s000-embed-values", "s001-embed-values")
def embedding_rows_are_looked_up(entry: Entry) -> None:
    """The stated columns of the stated rows are loaded, and the network's embedding gives them back."""
    columns = entry["inputs"].get("columns", [0, 1, -1])
    model = built(preset("sheepop", n_layer=1, pos="none"))
    rows = {ord(name) if len(name) == 1 else int(name): values for name, values in entry["expected"].items()}
    for index, values in rows.items():
        model.token_embedding.weight.data[index, columns] = numbers(values)
    ids = torch.tensor([[*rows, *rows]])
    assert placed(model, ids, slice(ids.shape[1]))[0][:, columns].tolist() == [*rows.values(), *rows.values()]


@claim("s003-completion")
def greedy_answer_completes_the_text(entry: Entry, others: Mapping[str, Entry]) -> None:
    """The document's output head scores the printed state of the last token; the rest of its network is withheld."""
    words = WordTokenizer(others["s003-tokenize"]["vocab"])
    stated = others["s003-logits"]["inputs"]
    token = int(linear(numbers(stated["x"]), numbers(stated["W"]).T).argmax())
    assert token == entry["inputs"]["next"]
    assert words.decode([*entry["inputs"]["prompt"], token]) == entry["expected"]


@claim("s000-distance")
def the_shown_columns_are_a_part_of_the_distance(entry: Entry) -> None:
    shown = token_distances(numbers([entry["inputs"]["a"], entry["inputs"]["b"]]))[0, 1].item()
    assert shown == pytest.approx(entry["partial_value"], abs=1e-9)
    assert shown < entry["expected"]  # the other columns make up the rest


@claim("s000-attn-transfer")
def values_pass_attention_then_the_output_projection(entry: Entry) -> None:
    n, d = entry["inputs"]["n"], entry["inputs"]["d"]
    model = built(preset("sheepop", n_layer=1, d_model=d))
    attention, x = model.blocks[0].attention, noise(1, n, d)
    now = pass_over(n)
    q, k, v = attention.project(x)
    weights = attention_weights(q, k)
    mixed = (weights @ v).transpose(1, 2).flatten(2)
    assert same(attention(x, 0, now), mixed @ attention.proj.weight.T)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = (x[0] @ attention.proj.weight.T) @ weights[0, 0]  # as printed: n x d times n x n


@claim("s001-dK")
def key_gradient_transposes_the_scores(entry: Entry) -> None:
    n, d_k = entry["inputs"]["n"], entry["inputs"]["d_k"]
    q, k, v, outer = (noise(1, n, d_k, seed=seed) for seed in range(4))
    k.requires_grad_()
    weights = attention_weights(q, k)
    (weights @ v).backward(outer)
    weights, d_weights = weights.detach()[0], (outer @ v.transpose(-2, -1))[0]
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True))
    assert same(k.grad[0], d_scores.T @ q[0] / math.sqrt(d_k))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        _ = d_scores @ q[0].T.contiguous()[: n - 1]


@claim("s002-mask-formula")
def masked_scores_give_no_nan(entry: Entry) -> None:
    keep = numbers(entry["inputs"]["M"])
    n = len(keep)
    assert torch.equal(attention_mask(torch.arange(n), torch.arange(n)), keep.bool())
    weights = attention_weights(noise(1, n, 4), noise(1, n, 4, seed=2))[0]
    assert same(weights.sum(-1), torch.ones(n, dtype=torch.float64))
    assert not weights[~keep.bool()].any()
    assert (weights * keep + (1 - keep) * -math.inf).isnan().any()  # as printed


@claim("s003-proj-cut")
def last_key_and_value_of_the_second_token(entry: Entry, others: Mapping[str, Entry]) -> None:
    """Neither of the two printed versions is what the stated weights give."""
    model = toy_network(others["s003-chain-none"]["inputs"])
    block = model.blocks[0]
    _, k, v = block.attention.project(block.norm_attention(embedded(model, [4, 8]))[None])
    assert k[0, 1, 1, 2].item() == pytest.approx(others["s003-proj-k"]["corrected_from_true_norm"][1][5], abs=1e-9)
    assert not any(abs(k[0, 1, 1, 2].item() - value) < 1 for value in entry["expected"]["key8_5"])
    assert not any(abs(v[0, 1, 1, 2].item() - value) < 1 for value in entry["expected"]["value8_5"])


@claim("s003-kv-order")
def a_cached_token_costs_one_row(entry: Entry) -> None:
    model = built(preset("llama", 32, n_layer=2, max_seq_len=16))
    ids = torch.arange(8)[None]
    cache = KVCache(model.config, 1, dtype=torch.float64)
    keys, _ = projections(model.blocks[0].attention)
    with torch.no_grad(), watched(keys) as calls:
        model(ids[:, :7], cache=cache)
        cached = model(ids[:, 7:], cache=cache)
        whole = model(ids)
    assert [given[0].shape[1] for given, _ in calls[keys]] == [7, 1, 8]
    assert same(cached[0, 0], whole[0, 7])


@claim("s003-rope-odd")
def an_odd_head_leaves_its_last_column(entry: Entry) -> None:
    width = entry["inputs"]["head_dim"]
    with pytest.raises(ValueError, match=f"head_dim={width} is odd"):
        ModelConfig(8, d_model=width, n_head=1, pos="rope")
    config = ModelConfig(8, d_model=width, n_head=1, pos="rope", rope_dim=width - 1)
    x = noise(4, 1, width)
    turned = apply_rotary(x, rotary_columns(rotary_table(config, 4), config.rope_layout), config.rope_layout)
    assert torch.equal(turned[..., -1], x[..., -1])
    assert same(turned.norm(dim=-1), x.norm(dim=-1))
    assert not same(turned[1:, :, :-1], x[1:, :, :-1])


@claim("s003-rope-order")
def rotation_slows_down_with_the_pair(entry: Entry) -> None:
    found = wavelength_frequencies(entry["inputs"]["dim"], entry["inputs"]["base"])
    assert entry["expected"] == "increasing"
    assert (found.diff() < 0).all()
    corrected = entry["corrected"]
    assert [found[0].item(), found[-1].item()] == pytest.approx([corrected["first"], corrected["last"]], abs=1e-9)


@claim("s001-ln-eps")
def eps_stands_inside_the_root(entry: Entry) -> None:
    eps = entry["inputs"]["eps"]
    assert preset("sheepop").norm_eps == eps
    row = numbers([1.0, 2.0, 3.0, 4.0])
    found = norm_layer(4, eps)(row)
    centred, variance = row - row.mean(), row.var(correction=0)
    assert same(found, centred / (variance + eps).sqrt())
    assert not same(found, centred / (variance.sqrt() + eps))


@claim("s002-ln-noeps")
def a_constant_row_is_normalised_to_zero(entry: Entry) -> None:
    config = preset("light_llm")
    assert config.norm_eps == 1e-5
    assert norm_layer(4, config.norm_eps)(numbers([3.0] * 4)).tolist() == [0.0] * 4


@claim("s000-final-norm", "s002-final-norm")
def the_head_reads_normalised_states(entry: Entry) -> None:
    name = "sheepop" if entry["id"].startswith("s000") else "light_llm"
    shape = {"n_layer": 2, "d_model": 48, "vocab_size": 32, "n_head": 6}
    model = built(preset(name, **shape))
    ids = torch.arange(5)[None]
    with watched(model.blocks[-1]) as calls:
        logits = model(ids)
    last = calls[model.blocks[-1]][0][1]
    assert same(logits, model.norm(last) @ model.head_weight.T)
    bare = preset(name, **{**shape, "final_norm": False})
    assert count_parameters(model.config)["total"] - count_parameters(bare)["total"] == 2 * bare.d_model


@claim("s000-block-13.1")
def a_block_adds_both_branches(entry: Entry) -> None:
    block, x = block_of(d_model=16, n_head=2).eval(), noise(1, 4, 16)
    now = pass_over(4)
    middle = x + block.attention(block.norm_attention(x), 0, now)
    assert same(block(x, 0, now), middle + block.mlp(block.norm_mlp(middle)))
    assert not same(block(x, 0, now), x + block.mlp(block.norm_mlp(middle)))  # as printed


@claim("s000-block-10.2")
def a_block_drops_each_branch_once(entry: Entry) -> None:
    block, x = block_of(d_model=16, n_head=2, drop_resid=0.5).train(), noise(1, 4, 16)
    now = pass_over(4)
    with torch.random.fork_rng(), watched(block.drop_attention, block.drop_mlp, block.norm_mlp) as calls:
        torch.manual_seed(0)
        out = block(x, 0, now)
    ((_, attended),), ((_, fed),) = calls[block.drop_attention], calls[block.drop_mlp]
    assert (attended == 0).any()
    ((middle,), _) = calls[block.norm_mlp][0]
    assert same(middle, x + attended)
    assert same(out, middle + fed)


@claim("s000-feedback")
def the_network_is_no_linear_loop(entry: Entry) -> None:
    """G / (1 + G H) holds for numbers; with H = 0 it is G, and the network is not linear enough for more."""
    gain, back = entry["inputs"]["G"], entry["inputs"]["H1"]
    assert gain / (1 + gain * back) == pytest.approx(entry["expected"], abs=1e-12)
    assert gain / (1 + gain * 0.0) == gain
    block, x = block_of(d_model=16, n_head=2).eval(), noise(1, 4, 16)
    now = pass_over(4)
    assert same(block(x, 0, now), block(x, 0, now))  # nothing comes back from one pass to the next
    assert not same(block(2 * x, 0, now), 2 * block(x, 0, now))
    assert not same(activate(2 * x, "gelu"), 2 * activate(x, "gelu"))


@claim("s000-logits-vs-prob-plot")
def probabilities_keep_the_order_of_logits(entry: Entry) -> None:
    inputs, corrected = entry["inputs"], entry["corrected"]
    p = token_probabilities(numbers(inputs["logits"]), 1.0)
    found = dict(zip(("W", "o", "space"), (p / p[0] * inputs["p_ref"]).tolist(), strict=True))
    assert {name: found[name] for name in corrected} == pytest.approx(corrected, abs=1e-9)
    assert all(abs(found[name] - printed) > 0.005 for name, printed in entry["expected"].items())


@claim("s000-logit52-two-probs")
def one_logit_of_one_row_has_one_probability(entry: Entry) -> None:
    """Each printed probability implies a sum of exponentials; beside the rest of that sum the project gives it back."""
    logit, printed = entry["inputs"]["logit"], list(entry["expected"].values())
    for probability, total in zip(printed, entry["implied_denominators"], strict=True):
        rest = math.log(total - math.exp(logit))
        assert token_probabilities(numbers([logit, rest]), 1.0)[0].item() == pytest.approx(probability, abs=1e-9)
    assert entry["implied_denominators"][0] != pytest.approx(entry["implied_denominators"][1], rel=0.5)


@claim("s001-topk-example")
def a_kept_logit_stays_as_it_is(entry: Entry) -> None:
    inputs = entry["inputs"]
    logits = -torch.arange(1.0, 129.0, dtype=torch.float64)
    logits[inputs["kept"]] = inputs["l0"]
    filtered = filter_top_k(logits, inputs["k"])
    assert filtered[inputs["kept"]].tolist() == [entry["corrected"]] * len(inputs["kept"])
    assert (filtered > -torch.inf).sum() == inputs["k"]


@claim("s001-topp-count")
def the_token_that_crosses_the_threshold_is_kept(entry: Entry) -> None:
    """Counted from 1 the crossing token is number 20 and 20 are kept; counted from 0 it would be 21."""
    inputs = entry["inputs"]
    for first, n_kept in ((1, entry["expected"]), (0, entry["expected"] + 1)):
        n_before = inputs["crossing_index"] - first
        before = np.linspace(2.0, 1.0, n_before)
        before *= (inputs["p"] - 0.01) / before.sum()
        crossing = inputs["cumulative"] - before.sum()
        tail = np.full(40, (1 - inputs["cumulative"]) / 40)
        logits = numbers([*before, crossing, *tail]).log()
        assert int((filter_top_p(logits, inputs["p"]) > -torch.inf).sum()) == n_kept


@claim("s004-topk-cap")
def top_k_beyond_the_vocabulary_keeps_all(entry: Entry) -> None:
    logits = noise(2, entry["inputs"]["V"])
    assert torch.equal(filter_top_k(logits, entry["inputs"]["k"]), logits)


@claim("s004-gen-window")
def generation_goes_on_beyond_the_context(entry: Entry) -> None:
    inputs = entry["inputs"]
    context = inputs["max_seq_len"]
    model = built(preset("tiny", 31, max_seq_len=context))
    config = GenerationConfig(inputs["max_new_tokens"], seed=1)
    answer = generate(model, [list(range(inputs["prompt_len"]))], config)[0]
    assert (len(answer.ids), answer.finish_reason) == (inputs["max_new_tokens"], "length")
    with pytest.raises(ValueError, match=f"longer than max_seq_len={context}"):
        model(torch.zeros(1, context + 1, dtype=torch.int64))


@claim("s001-logit-meaning")
def only_log_softmax_gives_log_probabilities(entry: Entry) -> None:
    model = built(preset("tiny", 31, init_std=0.5))
    logits = model(torch.tensor([[1, 2, 3]]))[0, -1].detach()
    assert abs(logits.logsumexp(0).item()) > 0.1
    answer = generate(model, [[1, 2, 3]], GenerationConfig(1, temperature=0.0))[0]
    assert answer.logprobs[0] == pytest.approx(logits.log_softmax(0)[answer.ids[0]].item(), abs=1e-6)


@claim("s001-dWout")
def head_gradient_is_states_times_logit_gradient(entry: Entry) -> None:
    features, weight = noise(5, 4), noise(7, 4, seed=2).requires_grad_()
    labels = torch.tensor([0, 3, IGNORE, 6, 3])
    linear_nll(features, weight, labels).backward()
    d_logits = (features @ weight.detach().T).softmax(-1)
    d_logits[torch.arange(5), labels.clamp(min=0)] -= 1
    d_logits[labels == IGNORE] = 0
    assert same(weight.grad, (features.T @ d_logits).T)


@claim("s001-adam-vs-adamw")
def decay_scales_with_the_rate_or_joins_the_gradient(entry: Entry) -> None:
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 0.01}
    decoupled, coupled = (
        adam_walk(TrainConfig(1, optimizer=kind, **settings), 0.5, [0.0])[0].theta for kind in ("adamw", "adam_l2")
    )
    assert decoupled == pytest.approx(0.5 * (1 - 1e-3 * 0.01), abs=1e-12)
    assert decoupled != pytest.approx(0.5 * (1 - 0.01), abs=1e-6)  # as printed
    gradient = 0.01 * 0.5
    assert coupled == pytest.approx(0.5 - 1e-3 * gradient / (gradient + 1e-8), abs=1e-12)


@claim("s000-cosine-adamw-clip")
def training_formulas_of_the_first_document(entry: Entry) -> None:
    (decayed,) = adam_walk(TrainConfig(1, betas=(0.9, 0.999), weight_decay=0.01), 0.5, [0.3])
    assert decayed.theta == pytest.approx(0.5 - 1e-3 * (0.3 / (0.3 + 1e-8) + 0.01 * 0.5), abs=1e-12)
    config = TrainConfig(10_000, lr=1e-3, schedule="cosine", min_lr_ratio=0.1)
    rates = [learning_rate(step, config) for step in (0, 5_000, 10_000)]
    assert rates == pytest.approx([cosine(t, 1e-3, 1e-4, 10_000) for t in (0, 5_000, 10_000)], abs=1e-15)
    assert rates == pytest.approx([1e-3, 5.5e-4, 1e-4], abs=1e-12)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert clip_gradients([weight], 1.0) == 5.0
    assert weight.grad.norm().item() == pytest.approx(1.0, abs=1e-6)


@claim("s004-init-loss")
def an_untrained_tied_network_knows_nothing(entry: Entry) -> None:
    sizes = entry["inputs"]
    model = built(preset("fundamentals", sizes["V"], d_model=sizes["d"], n_head=4, n_layer=sizes["L"], max_seq_len=16))
    ids = torch.randint(0, sizes["V"], (8, 17), generator=torch.Generator().manual_seed(0))
    loss = model.loss(ids[:, :-1], ids[:, 1:]).item()
    assert loss == pytest.approx(entry["expected"]["uniform_loss"], abs=0.1)
    assert loss < entry["expected"]["initial_loss_observed"] - 10


@claim("s004-loss-view")
def the_loss_takes_a_slice_that_is_not_contiguous(entry: Entry) -> None:
    model = built(preset("tiny", 31))
    ids = torch.randint(0, 31, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids[:, 1:]
    with pytest.raises(RuntimeError, match="view"):
        labels.view(-1)
    assert model.loss(ids[:, :-1], labels).item() == model.loss(ids[:, :-1].clone(), labels.clone()).item()


@claim("s004-mask-device")
def masks_live_where_the_ids_do(entry: Entry) -> None:
    config = preset("llama", 31, n_layer=1, max_seq_len=16, window=3)
    with torch.device("meta"):
        elsewhere, ids = Transformer(config), torch.zeros(2, 8, dtype=torch.int64)
    assert elsewhere(ids).device.type == "meta"  # an explicit mask from another device could not take part
    assert attention_mask(ids[0], ids[0]).device.type == "meta"
