"""A client of OpenAI's chat completions API, used by the engines ``openai`` and ``llama``."""
