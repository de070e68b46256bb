"""Storage: artefact store, Parquet tables, DuckDB catalogue, MLflow tracking and registry.

Nothing here imports Prefect or the model. The store holds the truth; the catalogue and MLflow are views of it.
"""
