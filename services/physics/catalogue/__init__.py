"""Catalogue of accelerators, models and weight precisions."""
