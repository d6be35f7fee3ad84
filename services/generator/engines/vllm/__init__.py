"""The engine ``vllm``, which runs vLLM in this process."""
