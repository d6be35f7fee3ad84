"""Runs requests on an engine and publishes what it says, one chunk per engine step."""
