"""Training: shape and settings, the training itself with its telemetry, and the folder that is a trained model."""
