"""What generation is made of: the engine that keeps a batch full, the step it repeats, and how a token is chosen.

`model.generation` is the way in; beam search and contrastive search stand beside it.
"""
