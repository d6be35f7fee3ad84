"""The engines of the self-hosted path, and the worker that runs requests on one of them."""
