// The openai package for Node: chats, streams, objects, tools, completions, responses, and its exceptions.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { KEY, LONG, MODEL, PLAIN, TOO_LONG, startServer } from "./server.mjs";

const Person = z.object({ name: z.string(), age: z.number().int() });
const ADA = { name: "Ada", age: 36 };
const saying = (content) => [{ role: "user", content }];
const client = (server, apiKey = KEY) => new OpenAI({ baseURL: server.v1, apiKey, maxRetries: 0 });
let server;
before(async () => {
  server = await startServer();
});
after(() => server.close());

test("a chat is the same streamed and not", async () => {
  const body = { model: MODEL, messages: saying("Say: Zürich 😀") };
  const whole = await client(server).chat.completions.create(body);
  assert.equal(whole.choices[0].message.content, "Zürich 😀");
  const stream = client(server).chat.completions.stream({ ...body, stream_options: { include_usage: true } });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(text, "Zürich 😀");
  assert.equal(final.usage.completion_tokens, whole.usage.completion_tokens);
});

test("parse gives an object", async () => {
  const body = { model: MODEL, messages: saying(`Say: ${JSON.stringify(ADA)}`), response_format: zodResponseFormat(Person, "person") };
  const parsed = await client(server).chat.completions.parse({ ...body, messages: saying('Say: {"name": "Ada", "age": 36}') });
  assert.deepEqual(parsed.choices[0].message.parsed, ADA);
  await assert.rejects(client(server).chat.completions.parse({ ...body, max_tokens: 3 }), OpenAI.LengthFinishReasonError);
});

test("tools run to their end", async () => {
  const add = {
    type: "function",
    function: {
      name: "add",
      parameters: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] },
      parse: JSON.parse,
      function: ({ a, b }) => String(a + b),
    },
  };
  const runner = client(server).chat.completions.runTools({ model: MODEL, messages: saying("add(2, 3)"), tools: [add], stream: true });
  assert.equal(await runner.finalContent(), "The tool says 5.");
});

test("completions, models, responses and a program as a model", async () => {
  const one = client(server);
  const done = await one.completions.create({ model: MODEL, prompt: "user\nSay: abc\nassistant\n" });
  assert.equal(done.choices[0].text, "abc");
  const models = [];
  for await (const model of one.models.list()) models.push(model.id);
  assert.deepEqual(models, [MODEL, "program:shout"]);
  const response = await one.responses.create({ model: MODEL, input: "Hi" });
  assert.equal(response.output_text, PLAIN);
  const events = one.responses.stream({ model: MODEL, input: "Hi", previous_response_id: response.id });
  assert.equal((await events.finalResponse()).output_text, PLAIN);
  const shouted = await one.chat.completions.create({ model: "program:shout", messages: saying("Hi") });
  assert.equal(shouted.choices[0].message.content, "HI!");
});

test("faults of a request are typed", async () => {
  const ask = (one, content = "Hi", model = MODEL) => one.chat.completions.create({ model, messages: saying(content) });
  await assert.rejects(ask(client(server, "wrong")), OpenAI.AuthenticationError);
  await assert.rejects(ask(client(server), "Hi", "none"), OpenAI.NotFoundError);
  await assert.rejects(ask(client(server), TOO_LONG), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.code, "context_length_exceeded");
    return true;
  });
});

test("a client that goes ends its run", async () => {
  const stream = await client(server).chat.completions.create({ model: MODEL, messages: saying(LONG), stream: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  assert.ok(await server.becomesIdle());
});

test("a server that stops is an error", async () => {
  const stopping = await startServer();
  const one = client(stopping);
  const stream = await one.chat.completions.create({ model: MODEL, messages: saying(LONG), stream: true });
  await assert.rejects(async () => {
    for await (const _ of stream) stopping.stop();
  }, (error) => error instanceof OpenAI.APIError && /the server is stopping/.test(error.message));
  await assert.rejects(one.models.list(), OpenAI.APIConnectionError);
  await stopping.close();
});
