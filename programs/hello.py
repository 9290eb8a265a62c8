"""Says hello: the smallest program. Returns a greeting and never asks the model."""


async def main(name: str = "World") -> str:
    return f"Hello, {name}!"
