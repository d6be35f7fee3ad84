"""Measure one engine without bus and services: ``python -m services.generator.bench`` runs one arm once."""
