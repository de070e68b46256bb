"""The command that looks inside a model: what it does with one prompt, as a page, as JSON and in a few lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.cli_common import AsJson, HomeFolder, Model, plain_errors, print_json, say

if TYPE_CHECKING:
    from tasks.inspection.inspection import Inspection
    from tasks.inspection.subject import Subject

_CHAMPION = "champion"
_SHOWN = 5  # next tokens in the terminal
_MAX_FRESH = 2e9  # parameters; a larger fresh network only fills the memory

Prompt = Annotated[str, typer.Option(help="The text to look at, up to 256 tokens.", show_default=False)]
PresetName = Annotated[str, typer.Option(help="A fresh network of this shape instead of a model; ids are ASCII codes.")]
Out = Annotated[str, typer.Option(help="HTML file to write (default: inspect.html in the home's reports).")]
Seed = Annotated[int, typer.Option(help="Seed of a fresh network and of the gains' random directions.", min=0)]


def inspect(
    prompt: Prompt = "",
    model: Model = _CHAMPION,
    preset: PresetName = "",
    out: Out = "",
    seed: Seed = 0,
    home: HomeFolder = "",
    as_json: AsJson = False,
) -> None:
    """Every step from a prompt to the next token: values, attention, states, gains and block diagrams, on one page."""
    with plain_errors():
        from storage.errors import UserError
        from tasks.inspection.inspection import InspectError, inspect_prompt, to_json

        if not prompt:
            raise InspectError('the prompt is empty; give a text to look at, such as --prompt "Hello World"')
        if preset and model != _CHAMPION:
            raise UserError(f"--preset {preset} and --model {model} were both given; give one of them")
        found = inspect_prompt(fresh_subject(preset, seed) if preset else trained_subject(home, model), prompt, seed)
        if as_json:
            print_json(to_json(found))
            if not out:
                return
        path = write_page(found, out, home)
        if not as_json:
            _print_summary(found)
        say(f"page: {path}")


def fresh_subject(name: str, seed: int) -> Subject:
    """An untrained network of a preset's shape over the 128 ASCII codes.

    Raises:
        UserError: no preset has that name, or its network is too large to be made for a look.
    """
    import torch

    from model import PRESETS, Transformer, count_parameters, preset
    from storage.errors import UserError
    from tasks.inspection.subject import Subject
    from tasks.tokens.tokenizer import AsciiTokenizer

    if name not in PRESETS:
        raise UserError(f"no preset {name!r}; choose one of {', '.join(PRESETS)}")
    tokenizer = AsciiTokenizer()
    config = preset(name, tokenizer.vocab_size)
    size = count_parameters(config)["total"]
    if size > _MAX_FRESH:
        raise UserError(
            f"{name} has {size:,} parameters; up to {_MAX_FRESH:,.0f} are made for a look: take a smaller one"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Transformer(config).eval()
    # the source documents begin with the first character, and there is no training to agree with
    return Subject(f"{name} (fresh)", network, tokenizer, fresh=True, bos=False, seed=seed)


def trained_subject(home: str, model: str) -> Subject:
    """The model behind an alias, a version, an address, a run or a folder.

    Raises:
        UnknownModel: nothing goes by that name.
    """
    from flows.actions import checkpoint_of
    from storage.home import Home
    from tasks.bundle import Bundle
    from tasks.inspection.subject import Subject
    from tasks.resources import Resources
    from tasks.session import Session

    place = Home.from_environment(home or None).create()
    with Resources(place) as resources:
        session = Session(place, resources)
        bundle = Bundle(session.store.folder(checkpoint_of(session, model)))
    return Subject.of_bundle(bundle, Path(model).resolve().name if Path(model).is_dir() else model)


def write_page(found: Inspection, out: str, home: str) -> Path:
    """Write the page; its path is absolute.

    Raises:
        UserError: the file cannot be written.
    """
    from storage.errors import UserError
    from storage.home import Home
    from tasks.inspection.page import to_html

    path = Path(out).expanduser().resolve() if out else Home.from_environment(home or None).reports / "inspect.html"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_html(found), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another file with --out") from error
    return path


def _print_summary(found: Inspection) -> None:
    from tasks.inspection.inspection import next_tokens

    score, states = found.trace.score, found.trace.hidden.norm(dim=-1).mean(dim=1).tolist()
    print("tokens:   " + " ".join(found.labels[:40]) + (" …" if found.n_tokens > 40 else ""))
    print("states:   " + " → ".join(f"{length:.3g}" for length in states) + "  (mean length, h0 to the last)")
    if len(score.log_probs):
        print(f"prompt:   {score.nll:.3f} nats per token, perplexity {score.perplexity:.4g}")
    print("next:")
    for item in next_tokens(found, found.n_tokens - 1, _SHOWN):
        print(f"  {item['probability']:6.1%}  {item['text']}")
