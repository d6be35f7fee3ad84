"""The engine ``vllm``: vLLM in this process. Imported by vLLM's own processes too, so it must import nothing."""
