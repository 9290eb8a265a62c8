"""HTTP in and out: OpenAI routes, program routes, events. Never runs anything: that is core.runs.Runs."""
