"""The model registry: promotion, rollback and the served model."""
