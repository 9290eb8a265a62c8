"""A room for any number of runs: each says what its client types, and shows what the others say."""

# /// program
# permissions = { channels = ["room/*"] }
# ///
import asyncio

from loopwright import broadcast, emit_text, receive, subscribe


async def main(name: str, room: str = "lobby") -> int:
    topic = f"room/{room}"
    num_said = 0
    async with subscribe(topic) as messages:
        listening = asyncio.create_task(show(messages, name))
        while (text := await receive()) is not None:  # None: the client has no more to say
            await broadcast(topic, {"name": name, "text": text})
            num_said += 1
        listening.cancel()
    return num_said


async def show(messages: subscribe, name: str) -> None:
    async for message in messages:
        if message["name"] != name:
            emit_text(f"{message['name']}: {message['text']}\n")
