// The Vercel AI SDK with its openai-compatible provider: text, streams, objects, tools, and its exceptions.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEY, LONG, MODEL, PLAIN, TOO_LONG, startServer } from "./server.mjs";

let server;
before(async () => {
  server = await startServer();
});
after(() => server.close());

const model = (one = server, name = MODEL, apiKey = KEY) =>
  createOpenAICompatible({
    name: "loopwright",
    baseURL: one.v1,
    apiKey,
    supportsStructuredOutputs: true,
    includeUsage: true,
  }).chatModel(name);
const options = { maxRetries: 0 };

test("a text is the same streamed and not", async () => {
  const whole = await generateText({ ...options, model: model(), prompt: "Hi" });
  assert.equal(whole.text, PLAIN);
  const stream = streamText({ ...options, model: model(), prompt: "Hi" });
  let text = "";
  for await (const delta of stream.textStream) text += delta;
  assert.equal(text, PLAIN);
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
});

test("an object is held to its schema", async () => {
  const output = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
  const told = await generateText({ ...options, model: model(), output, prompt: 'Say: {"name": "Ada", "age": 36}' });
  assert.deepEqual(told.output, { name: "Ada", age: 36 });
  const other = await generateText({ ...options, model: model(), output, prompt: "Hi" });
  assert.equal(typeof other.output.name, "string");
});

test("tools run to their end, streamed and not", async () => {
  const inputSchema = z.object({ a: z.number().int(), b: z.number().int() });
  const add = tool({ description: "Adds.", inputSchema, execute: async ({ a, b }) => a + b });
  const asked = { ...options, tools: { add }, stopWhen: stepCountIs(3), prompt: "add(2, 3)" };
  const whole = await generateText({ ...asked, model: model() });
  assert.equal(whole.text, "The tool says 5.");
  assert.equal(whole.steps.length, 2);
  assert.equal(await streamText({ ...asked, model: model() }).text, "The tool says 5.");
});

test("a program is a model", async () => {
  assert.equal((await generateText({ ...options, model: model(server, "program:shout"), prompt: "Hi" })).text, "HI!");
});

test("faults of a request say their status and whether to try again", async () => {
  const faults = [
    [model(server, MODEL, "wrong"), "Hi", 401],
    [model(server, "none"), "Hi", 404],
    [model(), TOO_LONG, 400],
  ];
  for (const [one, prompt, status] of faults) {
    await assert.rejects(generateText({ ...options, model: one, prompt }), (error) => {
      assert.ok(APICallError.isInstance(error));
      assert.equal(error.statusCode, status);
      assert.equal(error.isRetryable, false);
      return true;
    });
  }
});

test("a client that goes ends its run", async () => {
  const abort = new AbortController();
  const stream = streamText({ ...options, model: model(), prompt: LONG, abortSignal: abort.signal });
  for await (const _ of stream.textStream) {
    abort.abort();
    break;
  }
  assert.ok(await server.becomesIdle());
});

test("a server that stops is an error", async () => {
  const stopping = await startServer();
  const faults = [];
  const stream = streamText({ ...options, model: model(stopping), prompt: LONG, onError: ({ error }) => faults.push(error) });
  for await (const _ of stream.textStream) stopping.stop();
  assert.match(String(faults[0]?.message ?? faults[0]), /the server is stopping/);
  await assert.rejects(generateText({ ...options, model: model(stopping), prompt: "Hi" }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.isRetryable, true);
    return true;
  });
  await stopping.close();
});
