"""The self-hosted engines, and the worker that runs requests on one of them."""
