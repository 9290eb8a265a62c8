// The scripted server as a process of its own, for the clients of this folder.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const KEY = "the-right-key";
export const MODEL = "scripted";
export const PLAIN = "Hello there, this is a scripted model.";
export const LONG = "Count to 20000";
export const TOO_LONG = "x".repeat(40000);
const ROOT = fileURLToPath(new URL("../../../", import.meta.url));
const SHOUT = 'async def main(text: str) -> str:\n    return text.upper() + "!"\n';

export async function startServer() {
  const python = process.env.LOOPWRIGHT_TEST_PYTHON ?? `${ROOT}.venv/bin/python`;
  const child = spawn(python, ["tests/clients/client_server.py", "--with-keys"], {
    cwd: ROOT,
    env: { ...process.env, PYTHONPATH: `${ROOT}src` },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const url = await new Promise((resolve, reject) => {
    createInterface({ input: child.stdout }).once("line", (port) => resolve(`http://127.0.0.1:${port.trim()}`));
    child.once("exit", (code) => reject(new Error(`the server did not start: ${code}`)));
  });
  const ask = async (path, body) => {
    const headers = { authorization: `Bearer ${KEY}`, "content-type": "application/json" };
    const answer = await fetch(url + path, body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.text();
  };
  await ask("/v1/programs", { name: "shout", source: SHOUT });
  const numRunning = async () => Number(/^loopwright:num_requests_running (\S+)$/m.exec(await ask("/metrics"))[1]);
  return {
    url,
    v1: `${url}/v1`,
    stop: () => child.kill("SIGTERM"),
    numRunning,
    becomesIdle: async () => {
      for (let round = 0; round < 1000 && (await numRunning()); round += 1) await new Promise((next) => setTimeout(next, 50));
      return (await numRunning()) === 0;
    },
    close: async () => {
      child.kill("SIGTERM");
      await ended;
    },
  };
}
