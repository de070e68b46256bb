"""Measurements in comparison with other projects; the product does not import this package."""
