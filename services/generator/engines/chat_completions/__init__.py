"""Client of OpenAI's chat completions API, shared by the engines openai and llama."""
