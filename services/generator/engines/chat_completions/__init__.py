"""A client of OpenAI's chat completions API. The engines ``openai`` and ``llama`` use it."""
