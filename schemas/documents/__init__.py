"""Documents made from the registry: JSON Schemas, the AsyncAPI document, the README's tables."""
