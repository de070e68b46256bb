"""Entries that do not go through the project, with the reason."""

from __future__ import annotations

ARITHMETIC = {  # by op: the test itself computes what nobody would ask the project for
    "percent": "percentages of two printed counts",
    "scale": "a factor that the document rounded",
    "scaled": "a printed count in another unit",
}

NOT_COMPUTABLE = {
    "s000-2d-plots": "places in a drawing",
    "s000-attn-out-18": "the values are withheld",
    "s000-attn-out0": "eight of eleven values are withheld",
    "s000-final-prediction": "probabilities of a trained network that nobody has",
    "s000-hidden-trace": "hidden states of a network whose weights are withheld",
    "s000-ln-stats": "509 of 512 values are withheld",
    "s000-nextprob-variants": "probabilities without the logits",
    "s001-dot": "60 of 64 components are withheld",
    "s002-token464": "an id in another project's vocabulary",
    "s003-mlp-out": "the down matrix is withheld",
    "s003-topp-title": "a wrong heading",
    "s003-up": "the up matrix is withheld",
}
