"""Gates: what a newly trained model has to pass before it may become champion."""
