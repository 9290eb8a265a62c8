"""Text in and out of tokens: tokenizers, streams, stop strings, chat templates. Never runs a model, never waits."""
