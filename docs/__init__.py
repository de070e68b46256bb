"""The pages and their generators: what the documentation says of the code is made from the code."""
