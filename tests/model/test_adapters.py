"""LoRA and DoRA: the losses of peft, adapters alone on disk, the same bits after a kill."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from interrupted_runs import EVERY_STEP, Interrupted, assert_same_run, stop_at
from safetensors.torch import load_file

from model import ModelConfig, NonFiniteLoss, SpanSource, TrainConfig, Trainer, Transformer
from model.adapters import AdaptedLinear, adapt, merge
from model.config import Execution
from model.data import Batch
from model.distributed import SINGLE
from model.hf import from_hf, write_peft
from model.hf_config import LayoutError
from model.step import new_stepper

STEPS, LR = 50, 3e-3
CONFIG = TrainConfig(STEPS, schedule="constant", weight_decay=0.1, adapter="lora", adapter_rank=4, batch_size=3)


def shape_of(layout: str, folder: Path) -> Any:
    """Write a folder of random weights by `transformers`; returns its model."""
    import transformers

    torch.manual_seed(1)
    if layout == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0, resid_pdrop=0, embd_pdrop=0
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            vocab_size=61,
            max_position_embeddings=24,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def batches(n: int) -> list[Batch]:
    starts = np.random.default_rng(2).integers(61, size=(n, 3, 1))
    ids = (starts + 7 * np.arange(17)) % 61
    return [Batch(one[:, :-1], one[:, 1:]) for one in ids]


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_losses_are_those_of_peft(kind: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = shape_of("llama", tmp_path / "base")
    ours = from_hf(tmp_path / "base")
    config = dataclasses.replace(CONFIG, adapter=kind)
    stepper = new_stepper(
        ours.config, config, torch.device("cpu"), Execution(), SINGLE, initial_weights=ours.state_dict()
    )
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    theirs = peft.get_peft_model(
        theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, use_dora=kind == "dora")
    )
    write_peft(dict(stepper.tensors()["weights"]), tmp_path / "adapter", ours.config, config, "base")
    peft.set_peft_model_state_dict(theirs, load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in trained if one.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=LR, betas=(0.9, 0.95))
    theirs.train()
    losses = []
    for step, batch in enumerate(batches(STEPS), 1):
        found = stepper.run([batch], LR, step, [])
        logits = theirs(torch.as_tensor(batch.inputs)).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.as_tensor(batch.labels).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        assert found.loss == pytest.approx(loss.item(), abs=1e-5), step
        losses.append(found.loss)
    assert losses[-1] < 0.8 * losses[0]
    with torch.no_grad():
        ids = torch.as_tensor(batch.inputs)
        expected = theirs.eval()(ids).logits
        assert (stepper.plain()(ids) - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("layout", ["llama", "gpt2"])
def test_peft_opens_what_was_trained(
    kind: str, layout: str, build_source: Callable[..., SpanSource], tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    theirs = shape_of(layout, tmp_path / "base")
    base = from_hf(tmp_path / "base")
    config = dataclasses.replace(CONFIG, adapter=kind, max_steps=4)
    result = Trainer(base.config, config, build_source(), initial_weights=base.state_dict()).fit()
    write_peft(result.adapter, tmp_path / "adapter", base.config, config, "base")
    opened = peft.PeftModel.from_pretrained(theirs, tmp_path / "adapter").eval()
    with torch.no_grad():
        ids = torch.as_tensor(batches(1)[0].inputs)
        expected, found, before = opened(ids).logits, result.model(ids), base(ids)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert (found - before).abs().max() > 1e-3 * expected.abs().max()


def test_parts_of_one_layer_of_gpt2_are_refused(tmp_path: Path) -> None:
    model = Transformer(ModelConfig(61, max_seq_len=24, n_layer=1, n_head=2, d_model=8))
    config = dataclasses.replace(CONFIG, adapter_targets=("q", "v"))
    adapt(model, config)
    with pytest.raises(LayoutError, match="give adapters to all or none"):
        write_peft(model.state_dict(), tmp_path / "adapter", model.config, config, "base")


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_killed_training_ends_with_the_same_bits(
    kind: str,
    precision: str,
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
    tmp_path: Path,
) -> None:
    config = dataclasses.replace(train_config, adapter=kind, adapter_dropout=0.2, precision=precision, patience=3)
    start, sources = build_model(seed=3).state_dict(), (build_source(), build_source(n=5, seed=1))
    whole = Trainer(model_config, config, *sources, initial_weights=start).fit()
    kept: dict[str, Any] = {"checkpoint_dir": tmp_path, "execution": EVERY_STEP, "initial_weights": start}
    with pytest.raises(Interrupted):
        Trainer(model_config, config, *sources, **kept, callbacks=stop_at(4)).fit()
    saved = load_file(next(tmp_path.glob("step-*4")) / "model.safetensors")
    assert saved and all(name.rpartition(".")[2] in ("lora_a", "lora_b", "magnitude") for name in saved)
    resumed = Trainer(model_config, config, *sources, **kept).fit()
    assert resumed.resumed_from == 4
    assert_same_run(whole, resumed)


def test_layers_without_an_adapter_keep_their_bits(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
) -> None:
    config = dataclasses.replace(train_config, adapter="lora", adapter_targets=("v", "down"))
    start = build_model(seed=3).state_dict()
    after = Trainer(model_config, config, build_source(), initial_weights=start).fit().model.state_dict()
    changed = {name for name, value in start.items() if not torch.equal(value, after[name])}
    assert changed == {name for name in start if name.endswith((".v.weight", ".down.weight"))}


def test_a_merged_network_computes_what_the_adapted_one_does(build_model: Callable[..., Transformer]) -> None:
    model = build_model(seed=3)
    adapt(model, dataclasses.replace(CONFIG, adapter="dora"))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, AdaptedLinear):
                module.lora_b.normal_()
                assert module.magnitude is not None
                module.magnitude.mul_(1.5)
    ids = torch.arange(8)[None]
    before = model.eval()(ids)
    merge(model)
    assert not any(isinstance(module, AdaptedLinear) for module in model.modules())
    torch.testing.assert_close(model(ids), before, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"adapter": "none", "adapter_rank": 4}, "trains all weights"),
        ({"adapter": "lora", "adapter_targets": ("q", "head")}, "expected some of q, k, v"),
        ({"adapter": "lora", "adapter_targets": "q"}, "expected some of q, k, v"),
        ({"adapter": "lora", "adapter_targets": [["q"]]}, "expected some of q, k, v"),
        ({"adapter": "lora", "adapter_rank": 0}, "adapter_rank=0"),
    ],
)
def test_settings_of_adapters_are_checked(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        TrainConfig(10, **settings)


def test_a_loss_that_is_no_number_is_told_with_its_step(
    model_config: ModelConfig,
    train_config: TrainConfig,
    build_model: Callable[..., Transformer],
    build_source: Callable[..., SpanSource],
) -> None:
    start = build_model(seed=3).state_dict()
    start = {name: value * (1e30 if name.endswith("up.weight") else 1) for name, value in start.items()}
    config = dataclasses.replace(train_config, adapter="lora")
    with pytest.raises(NonFiniteLoss, match="step 1"):
        Trainer(model_config, config, build_source(), initial_weights=start).fit()


def test_layers_that_the_network_lacks_are_told(build_model: Callable[..., Transformer]) -> None:
    with pytest.raises(ValueError, match="names 'gate'; the network's layers are q, k, v, proj, up, down"):
        adapt(build_model(), dataclasses.replace(CONFIG, adapter_targets=("gate",)))
