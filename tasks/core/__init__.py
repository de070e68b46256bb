"""Stages: their declaration and keys, the run they belong to, how they are executed, and settings."""
