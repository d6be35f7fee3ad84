"""The simulated broker, its consumer groups, and the hosts and processes that send requests to it."""
