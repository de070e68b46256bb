"""The server: completions over HTTP in the form of OpenAI, in one running batch."""

API_KEY = "SHEEPFOLD_API_KEY"  # environment variable of the secret that requests have to give
