"""Run engines as processes, and measure their answers."""
