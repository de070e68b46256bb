"""Where things rest: artefact store, Parquet tables, DuckDB catalogue, MLflow tracking and registry.

Nothing here knows Prefect or the network. The store holds the truth; the catalogue and MLflow are views of it.
"""
