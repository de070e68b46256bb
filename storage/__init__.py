"""Storage: artefact store, Parquet tables, DuckDB catalogue, MLflow tracking and registry.

Nothing here imports Prefect or the model. The store is authoritative; the catalogue and MLflow can be rebuilt from it.
"""
