"""The server: completions over HTTP in the form of OpenAI, in one running batch."""
