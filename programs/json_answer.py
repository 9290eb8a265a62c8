"""Answers as JSON of a fixed form: the grammar sees to the form, so that the model has only the values to choose.

Where the form leaves no choice, tokens are forced, and take no step of the model's own.
"""

from loopwright import Context, choice, emit, json_schema

ANSWER = {
    "type": "object",
    "properties": {
        "capital": {"type": "string", "maxLength": 24},
        "continent": {"enum": ["Africa", "Asia", "Europe", "North America", "Oceania", "South America"]},
        "confidence": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["capital", "continent", "confidence"],
    "additionalProperties": False,
}


async def main(country: str = "Japan") -> str:
    ctx = Context()
    ctx.user(f"What is the capital of {country}, and on which continent is it? Answer in JSON.")
    answer = await ctx.generate(grammar=json_schema(ANSWER), emit=True)
    ctx.user("Is that an island?")
    verdict = await ctx.generate(grammar=choice(["yes", "no"]))
    emit({"is_island": verdict.text, "reason": answer.reason})
    return answer.text
