"""The techniques suite: each technique as a program, beside a client that does the same over the OpenAI routes."""
