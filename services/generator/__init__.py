"""The generator, a worker that generates answers on a self-hosted engine."""
