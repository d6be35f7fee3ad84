"""The engine ``vllm``: vLLM in this process. This file must import nothing, because vLLM's own processes import it."""
