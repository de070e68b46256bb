"""Stages, their execution, runs and settings."""
