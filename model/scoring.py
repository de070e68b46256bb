"""How a network does on every single token: one forward pass, and what evaluation adds up."""

from __future__ import annotations

import numpy as np
import torch

from .data import IGNORE, SequenceSource, trim
from .metrics import NllSum
from .transformer import Transformer
