"""Settings of training and generation: frozen dataclasses that check their values and convert to and from JSON.

Execution is separate from TrainConfig, because its settings depend on the machine and change results in the last bits
only: they are not part of a run's identity, and a run may resume with others, with a warning.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

# Defaults of commands that generate text; the defaults of Sampling leave the network's probabilities unchanged.
USUAL = {"temperature": 0.8, "top_k": 0, "top_p": 0.95, "min_new_tokens": 1, "min_p": 0.0, "typical_p": 1.0}

_DRAWING = ("temperature", "top_p", "min_p", "typical_p", "seed")
_CHANGING = ("repetition_penalty", "frequency_penalty", "presence_penalty", "no_repeat_ngram", "logit_bias")
_ENDING = ("min_new_tokens", "stop_ids", "stop")
_UNUSED = {
    "sample": ("n_beams", "length_penalty", "alpha"),
    "greedy": (*_DRAWING, "top_k", "n_samples", "n_beams", "length_penalty", "alpha"),
    "beam": (*_DRAWING, *_CHANGING, *_ENDING, "top_k", "alpha"),
    "contrastive": (*_DRAWING, *_CHANGING, *_ENDING, "n_samples", "n_beams", "length_penalty"),
}


def setting(default: Any = None, **limits: Any) -> Any:
    """Return a dataclass field with limits: `ge` or `gt` and `le` or `lt` of a number, or `choices`.

    Where the default is None, __post_init__ derives the value from other fields (`resolve`) or refuses it (`refuse`).
    """
    return dataclasses.field(default=default, metadata=limits)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of configurations that check their values when they are created.

    A setting without an effect is refused.
    """

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, limits = getattr(self, item.name), item.metadata
            if value is None and item.default is None:
                continue
            if item.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{item.name}={value!r}; expected True or False")
            if (choices := limits.get("choices")) and value not in choices:
                raise ValueError(f"{item.name}={value!r}; expected one of {', '.join(choices)}")
            if not limits.keys() & {"ge", "gt"}:
                continue
            low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt", math.inf))
            if "int" in str(item.type):
                check_int(item.name, value, low)
            else:
                check_number(item.name, value, low, high, open_low="gt" in limits, open_high="lt" in limits)

    def resolve(self, name: str, default: Any) -> None:
        """Set a field that is None to its derived default; called from __post_init__ only."""
        if getattr(self, name) is None:
            object.__setattr__(self, name, default)

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse fields that have no effect.

        Raises:
            ValueError: one of them has another value than its default.
        """
        for name in names:
            value = getattr(self, name)
            if value != self.__dataclass_fields__[name].default:
                raise ValueError(f"{name}={value!r} has no effect: {why}; leave it out")

    def to_dict(self) -> dict[str, Any]:
        """Return every field by name, as JSON types (tuples become lists)."""
        found = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        """Return the configuration with these fields, and defaults for the others.

        Raises:
            ValueError: a name is unknown, a required field is missing, or a value is not allowed.
        """
        fields = dataclasses.fields(cls)
        known = {field.name for field in fields}
        if unknown := sorted(set(settings) - known):
            raise ValueError(
                f"{cls.__name__} has no setting {', '.join(map(repr, unknown))}; "
                f"its settings are {', '.join(sorted(known))}"
            )
        needed = {field.name for field in fields if field.default is dataclasses.MISSING}
        if missing := sorted(needed - set(settings)):
            raise ValueError(f"{cls.__name__} needs {', '.join(map(repr, missing))}; add it to the settings")
        return cls(**settings)


def check_int(name: str, value: object, low: int) -> None:
    """Raise ValueError unless the value is a whole number of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name}={value!r}; expected a whole number of at least {low}")


def check_number(
    name: str, value: object, low: float, high: float, *, open_low: bool = False, open_high: bool = False
) -> None:
    """Raise ValueError unless the value is a finite number from `low` to `high`; open ends are excluded."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if not good or (open_low and value == low) or (open_high and value == high) or value == math.inf:
        opening, closing = "(" if open_low else "[", ")" if open_high or high == math.inf else "]"
        raise ValueError(f"{name}={value!r}; expected a number in {opening}{low:g}, {high:g}{closing}")


ADAPTER_TARGETS = ("q", "k", "v", "proj", "gate", "up", "down")  # layers of a block


@dataclasses.dataclass(frozen=True)
class TrainConfig(Settings):
    """Hyperparameters of a training. Context length and vocabulary come from the model's configuration.

    A field whose default is None is derived from the others where it has an effect, and refused where it has none.

    Args:
        max_steps: optimiser steps; with minutes the first plan, which sets the unit of warmup_steps.
        minutes: time of the training on the clock, evaluations included, instead of max_steps: the number of steps
            follows the speed of the machine, and the schedule the share of the time that is used; 0 for max_steps.
        most_steps: upper bound of the steps where minutes decide; 0 for none.
        batch_size: sequences per micro-batch.
        grad_accum: micro-batches per optimiser step.
        optimizer: optimiser, "adamw" (decoupled decay: the weights shrink by lr * weight_decay apart from the step,
            Loshchilov and Hutter 2019), "adam" (no decay, Kingma and Ba 2015), "adam_l2" (coupled decay: weight_decay *
            weights joins the gradient before the moments) or "muon" (orthogonalised momentum for the matrices of the
            blocks, Jordan et al. 2024; "adamw" for everything else).
        lr: highest learning rate.
        muon_lr: highest learning rate of the matrices that "muon" trains; it follows the schedule as lr does. None
            means 0.02.
        schedule: learning rate schedule, "warmup_cosine" (linear warm-up, then a cosine down to the floor), "cosine"
            (from the first step), "constant", "noam" (linear warm-up, then the inverse square root of the step, Vaswani
            et al. 2017) or "wsd" (linear warm-up, a plateau, a linear fall to the floor).
        min_lr_ratio: the floor of a cosine or of "wsd" as a share of lr; None means 0.1.
        warmup_ratio: share of max_steps with a linearly rising learning rate; None means 0.05. With "noam" above 0.
        warmup_steps: optimiser steps with a linearly rising learning rate, instead of warmup_ratio; they may be more
            than max_steps. With "noam" at least 1.
        first_step: place of the first optimiser step on the schedule, 0 or 1: at 0 a warm-up begins with a rate of 0
            and "cosine" with lr; at 1 both are one step ahead, and the last step has the floor. None means 0 with
            "cosine" and 1 otherwise; "noam" is not defined at 0.
        decay_ratio: share of max_steps, at the end, in which "wsd" falls; None means 0.2.
        weight_decay: strength of the decay; None means 0.1, and 0 with "adam".
        decay_groups: decay matrices and tables only; False decays biases and norms too.
        betas: Adam's two decay rates.
        eps: Adam's epsilon, outside the root.
        clip_norm: largest global gradient norm; 0 turns clipping off.
        precision: number format, "fp32", "bf16" (autocast) or "fp16" (autocast with loss scaling).
        seed: seed of initial weights, data order and dropout, each of which has its own stream.
        eval_every: optimiser steps between two evaluations; the last step is always evaluated.
        patience: evaluations in a row without a lower validation loss after which the run ends, with the weights of the
            best one; 0 never ends it early.
        spike_zscore: standard deviations above the mean of the last steps from which a loss or gradient norm is
            reported as a spike.
        adapter: what is trained of a base, "none" (all weights), "lora" (small matrices beside frozen layers, Hu et al.
            2022) or "dora" (these and the norm of each row, Liu et al. 2024); see `adapters`. With precision "bf16" the
            frozen layers are rounded to it.
        adapter_rank: columns of the small matrices; None means 8.
        adapter_alpha: their outputs are multiplied by adapter_alpha / adapter_rank; None means 2 * adapter_rank.
        adapter_targets: layers with an adapter, some of "q", "k", "v", "proj", "gate", "up" and "down"; None means all
            that the network has.
        adapter_dropout: dropout of their inputs; None means 0.
    """

    max_steps: int = setting(dataclasses.MISSING, ge=1)
    minutes: float = setting(0.0, ge=0)
    most_steps: int = setting(0, ge=0)
    batch_size: int = setting(16, ge=1)
    grad_accum: int = setting(1, ge=1)
    optimizer: str = setting("adamw", choices=("adamw", "adam", "adam_l2", "muon"))
    lr: float = setting(1e-3, gt=0)
    muon_lr: float = setting(gt=0)
    schedule: str = setting("warmup_cosine", choices=("warmup_cosine", "cosine", "constant", "noam", "wsd"))
    min_lr_ratio: float = setting(ge=0, le=1)
    warmup_ratio: float = setting()
    warmup_steps: int = setting()
    first_step: int = setting()
    decay_ratio: float = setting()
    weight_decay: float = setting(ge=0)
    decay_groups: bool = True
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = setting(1e-8, gt=0, le=1)
    clip_norm: float = setting(1.0, ge=0)
    precision: str = setting("fp32", choices=("fp32", "bf16", "fp16"))
    seed: int = setting(1337, ge=0)
    eval_every: int = setting(100, ge=1)
    patience: int = setting(0, ge=0)
    spike_zscore: float = setting(8.0, gt=0)
    adapter: str = setting("none", choices=("none", "lora", "dora"))
    adapter_rank: int = setting(ge=1)
    adapter_alpha: float = setting(gt=0)
    adapter_targets: tuple[str, ...] = setting()
    adapter_dropout: float = setting(ge=0, lt=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.minutes:
            self.refuse(["most_steps"], "max_steps decides where there are no minutes")
        self._check_schedule()
        self._check_decay()
        self._check_adapter()
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2:
            raise ValueError(f"betas={self.betas!r}; expected two numbers such as (0.9, 0.95)")
        for beta in self.betas:
            check_number("betas", beta, 0.0, 1.0, open_high=True)
        object.__setattr__(self, "betas", tuple(self.betas))

    def _check_schedule(self) -> None:
        if self.schedule in ("warmup_cosine", "cosine", "wsd"):
            self.resolve("min_lr_ratio", 0.1)
        else:
            self.refuse(["min_lr_ratio"], f"schedule={self.schedule!r} has no floor")
        if self.schedule in ("warmup_cosine", "noam", "wsd"):
            self._check_warmup()
        else:
            self.refuse(["warmup_ratio", "warmup_steps"], f"schedule={self.schedule!r} has no warm-up")
        if self.schedule == "constant":
            self.refuse(["first_step"], "schedule='constant' has the same rate at every step")
        else:
            self.resolve("first_step", 0 if self.schedule == "cosine" else 1)
            lowest = 1 if self.schedule == "noam" else 0
            if isinstance(self.first_step, bool) or self.first_step not in range(lowest, 2):
                raise ValueError(f"first_step={self.first_step!r}; expected {'1' if lowest else '0 or 1'}")
        if self.schedule == "wsd":
            self.resolve("decay_ratio", 0.2)
            check_number("decay_ratio", self.decay_ratio, 0.0, 1.0 - (self.warmup_ratio or 0.0))
        else:
            self.refuse(["decay_ratio"], f"schedule={self.schedule!r} does not end with a linear fall")

    def _check_warmup(self) -> None:
        # The inverse square root grows without bound towards step 0; only a warm-up keeps it below lr.
        is_needed = self.schedule == "noam"
        if self.warmup_steps is None:
            self.resolve("warmup_ratio", 0.05)
            check_number("warmup_ratio", self.warmup_ratio, 0.0, 1.0, open_low=is_needed)
        else:
            self.refuse(["warmup_ratio"], f"warmup_steps={self.warmup_steps!r} gives the warm-up")
            check_int("warmup_steps", self.warmup_steps, int(is_needed))

    def _check_decay(self) -> None:
        if self.optimizer == "muon":
            self.resolve("muon_lr", 0.02)
        else:
            self.refuse(["muon_lr"], f"optimizer={self.optimizer!r} trains every weight with lr")
        self.resolve("weight_decay", 0.0 if self.optimizer == "adam" else 0.1)
        if self.optimizer == "adam" and self.weight_decay:
            raise ValueError(
                f"weight_decay={self.weight_decay!r} has no effect: optimizer='adam' does not decay; leave it out, or "
                f"use 'adamw' (decoupled decay) or 'adam_l2' (coupled)"
            )
        if not self.weight_decay and not self.decay_groups:
            raise ValueError("decay_groups=False has no effect: weight_decay is 0, so nothing decays; leave it out")

    def _check_adapter(self) -> None:
        if self.adapter == "none":
            names = ["adapter_rank", "adapter_alpha", "adapter_targets", "adapter_dropout"]
            self.refuse(names, "adapter='none' trains all weights")
            return
        self.resolve("adapter_rank", 8)
        self.resolve("adapter_alpha", 2.0 * self.adapter_rank)
        self.resolve("adapter_targets", ())
        self.resolve("adapter_dropout", 0.0)
        targets = self.adapter_targets
        is_list = isinstance(targets, Iterable) and not isinstance(targets, str)
        if not is_list or not all(target in ADAPTER_TARGETS for target in targets):
            raise ValueError(f"adapter_targets={targets!r}; expected some of {', '.join(ADAPTER_TARGETS)}")
        object.__setattr__(self, "adapter_targets", tuple(targets))

    @property
    def warmup(self) -> int:
        """Optimiser steps with a rising learning rate; at least one with a warmup_ratio above 0."""
        if self.warmup_steps is not None:
            return self.warmup_steps
        return max(1, round(self.warmup_ratio * self.max_steps)) if self.warmup_ratio else 0


@dataclasses.dataclass(frozen=True)
class Sampling(Settings):
    """Parameters of generation that do not depend on the vocabulary.

    Parameters that the strategy does not use are refused. They apply in the order repetition, frequency and presence
    penalty, logit bias, suppressed tokens, temperature, top-k, top-p, min-p, typical; each filter works on the tokens
    that the previous one kept. At temperature 0 the filters have no effect.

    Args:
        max_new_tokens: longest continuation, in tokens.
        max_length: longest prompt and continuation together, in tokens, instead of max_new_tokens; 0 leaves it to that.
        strategy: way to choose the tokens, "sample" (draw each one), "greedy" (take the likeliest), "beam" (follow the
            n_beams likeliest continuations and return the best n_samples) or "contrastive" (of the top_k likeliest
            tokens the one whose state is least like those before, Su et al. 2022). Beam and contrastive search
            need prompt and continuation to fit the context.
        n_beams: continuations that beam search follows.
        length_penalty: exponent of the length by which beam search divides log-probabilities; 0 prefers short
            continuations, 1 compares the mean per token, more prefers long ones.
        alpha: weight of the likeness in contrastive search; 0 is greedy.
        temperature: divisor of the logits; 0 is greedy decoding.
        top_k: keep the k likeliest tokens; 0 and None keep all. Contrastive search compares so many; 0 takes 4.
        top_p: keep the smallest set of likeliest tokens whose probabilities reach p; 1 and None keep all.
        seed: seed of the sampling noise.
        suppress: ids of tokens that are never drawn, such as padding.
        min_new_tokens: least number of new tokens before a continuation may end.
        stop_ids: ids of further tokens that end a continuation.
        stop: strings that end a continuation, also across the borders of tokens and within one.
        n_samples: continuations per prompt, each with its own noise; of beam search the best ones.
        min_p: keep tokens whose probability is at least this share of the likeliest one's; 0 and None keep all.
        typical_p: keep the smallest set of tokens whose surprise is closest to the entropy and whose probabilities
            reach p (Meister et al. 2023); 1 and None keep all.
        repetition_penalty: divisor of positive and factor of negative logits of tokens that the context holds already
            (Keskar et al. 2019); 1 changes nothing.
        frequency_penalty: number subtracted from a token's logit for each of its occurrences in the continuation.
        presence_penalty: number subtracted once from the logits of tokens that occur in the continuation.
        no_repeat_ngram: length of token n-grams that may not occur twice in prompt and continuation; 0 allows all.
        logit_bias: pairs of a token's id and a number that is added to its logit.
        top_logprobs: number of likeliest tokens recorded with each token, with their log-probabilities.
        overflow: handling of a full context: "roll" (a prompt longer than the context keeps its end; a row that fills
            the context continues from its last half), "stop" (the same prompt, but the row ends where the context
            is full) or "refuse" (prompt and max_new_tokens together must fit the context).
        deterministic: bit-exact results in any batch; slower.
    """

    max_new_tokens: int = setting(64, ge=1)
    temperature: float = setting(1.0, ge=0)
    top_k: int | None = setting(None, ge=0)
    top_p: float | None = setting(None, ge=0, le=1)
    seed: int = setting(0, ge=0)
    suppress: tuple[int, ...] = ()
    min_new_tokens: int = setting(0, ge=0)
    stop_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    n_samples: int = setting(1, ge=1)
    min_p: float | None = setting(None, ge=0, le=1)
    typical_p: float | None = setting(None, ge=0, le=1)
    repetition_penalty: float = setting(1.0, gt=0)
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = setting(0, ge=0)
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int = setting(0, ge=0)
    overflow: str = setting("roll", choices=("roll", "stop", "refuse"))
    deterministic: bool = False
    max_length: int = setting(0, ge=0)
    strategy: str = setting("sample", choices=("sample", "greedy", "beam", "contrastive"))
    n_beams: int = setting(4, ge=1)
    length_penalty: float = 1.0
    alpha: float = setting(0.6, ge=0, le=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("frequency_penalty", "presence_penalty", "length_penalty"):
            check_number(name, getattr(self, name), -math.inf, math.inf, open_low=True)
        self._check_lists()
        self._check_strategy()
        if self.max_length:
            self.refuse(["max_new_tokens"], f"max_length={self.max_length} bounds prompt and continuation together")

    @property
    def is_search(self) -> bool:
        """True for beam and contrastive search, whose continuations are not known before their end."""
        return self.strategy in ("beam", "contrastive")

    def room(self, n_prompt: int) -> int:
        """Return the maximum length of a continuation of n_prompt tokens; below 1 if they use up max_length."""
        return self.max_length - n_prompt if self.max_length else self.max_new_tokens

    def _check_strategy(self) -> None:
        unusual = [name for name in _UNUSED[self.strategy] if getattr(self, name) != USUAL.get(name)]
        if self.strategy == "greedy":
            unusual = [name for name in unusual if name != "temperature" or self.temperature]
        self.refuse(unusual, f"strategy={self.strategy!r} does not use it")
        if self.strategy == "greedy":
            object.__setattr__(self, "temperature", 0.0)
        if self.is_search:
            if self.overflow == "stop":
                raise ValueError(
                    f"overflow='stop' does not go with strategy={self.strategy!r}, for which prompt and continuation "
                    f"must fit the context; leave it out"
                )
            object.__setattr__(self, "overflow", "refuse")
        if self.strategy == "beam" and self.n_samples > self.n_beams:
            raise ValueError(
                f"n_samples={self.n_samples} of n_beams={self.n_beams}; beam search finds as many continuations as it "
                f"has beams: raise n_beams"
            )

    def _check_lists(self) -> None:
        for name in ("suppress", "stop_ids"):
            tokens = getattr(self, name)
            if isinstance(tokens, str) or not isinstance(tokens, Iterable):
                raise ValueError(f"{name}={tokens!r}; expected a list of tokens")
            object.__setattr__(self, name, tuple(tokens))
            for token in getattr(self, name):
                check_int(name, token, 0)
        single = isinstance(self.stop, str) or not isinstance(self.stop, Iterable)
        if single or not all(isinstance(text, str) and text for text in self.stop):
            raise ValueError(f"stop={self.stop!r}; expected a list of strings, none of them empty")
        object.__setattr__(self, "stop", tuple(self.stop))
        if isinstance(self.logit_bias, str) or not isinstance(self.logit_bias, Iterable):
            raise ValueError(f"logit_bias={self.logit_bias!r}; expected pairs of a token and a number")
        pairs = self.logit_bias.items() if isinstance(self.logit_bias, Mapping) else self.logit_bias
        found = []
        for pair in pairs:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise ValueError(f"logit_bias holds {pair!r}; expected pairs of a token and a number")
            token = int(pair[0]) if isinstance(pair[0], str) and pair[0].isdecimal() else pair[0]  # a JSON key
            check_int("logit_bias", token, 0)
            check_number("logit_bias", pair[1], -math.inf, math.inf, open_low=True)
            found.append((token, float(pair[1])))
        object.__setattr__(self, "logit_bias", tuple(found))


@dataclasses.dataclass(frozen=True)
class GenerationConfig(Sampling):
    """Sampling parameters for one model.

    Args:
        eos_id: token that ends a continuation; None never stops early.
    """

    eos_id: int | None = setting(None, ge=0)

    @property
    def ending_ids(self) -> tuple[int, ...]:
        """All tokens that end a continuation."""
        return self.stop_ids if self.eos_id is None else (self.eos_id, *self.stop_ids)


@dataclasses.dataclass(frozen=True)
class Execution(Settings):
    """Memory, devices and compilation of a training: settings that change no result but by rounding.

    Args:
        compile: fuse the network by torch.compile; where that fails, the run continues without it and reports why (with
            "fsdp" it ends).
        recompute: compute the activations of each block again in the backward pass: less memory, a third more time.
        sharding: placement on several devices, "ddp" (each holds all weights) or "fsdp" (each holds a part of weights,
            gradients and optimiser state).
        keep: number of newest checkpoints that are kept; with patience, the one with the lowest validation loss is kept
            in addition.
        checkpoint_minutes: minutes between two checkpoints, at most what a kill costs; 0 saves every step.
    """

    compile: bool = False
    recompute: bool = False
    sharding: str = setting("ddp", choices=("ddp", "fsdp"))
    keep: int = setting(2, ge=1)
    checkpoint_minutes: float = setting(5.0, ge=0)
