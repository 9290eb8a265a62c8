// The anthropic package for Node: messages, streams, and its exceptions.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { KEY, LONG, MODEL, PLAIN, TOO_LONG, startServer } from "./server.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(() => server.close());

const client = (apiKey = KEY) => new Anthropic({ baseURL: server.url, apiKey, maxRetries: 0 });
const asked = (content = "Hi", model = MODEL) => ({ model, max_tokens: 25000, messages: [{ role: "user", content }] });

test("a message is the same streamed and not", async () => {
  const whole = await client().messages.create({ ...asked(), max_tokens: 100 });
  assert.equal(whole.content[0].text, PLAIN);
  const stream = client().messages.stream({ ...asked(), max_tokens: 100 });
  assert.equal(await stream.finalText(), PLAIN);
});

test("faults of a request are typed", async () => {
  const ask = (one, ...rest) => one.messages.stream(asked(...rest)).finalText();
  await assert.rejects(ask(client("wrong")), Anthropic.AuthenticationError);
  await assert.rejects(ask(client(), "Hi", "none"), Anthropic.NotFoundError);
  await assert.rejects(ask(client(), TOO_LONG), Anthropic.BadRequestError);
});

test("a client that goes ends its run", async () => {
  const stream = client().messages.stream(asked(LONG));
  for await (const event of stream) if (event.type === "content_block_delta") break;
  stream.abort();
  assert.ok(await server.becomesIdle());
});
