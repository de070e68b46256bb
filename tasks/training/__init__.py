"""Training with its telemetry, distributed launch, and the folder of a trained model."""
