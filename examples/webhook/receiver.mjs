// A receiver of webhooks without any library: checks the signature, does each version once, and says what is next.
// It reminds of an invoice until that is paid: node receiver.mjs PORT, with the key in WEBHOOK_KEY.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const TOLERANCE_SECONDS = 300; // older requests may be ones that somebody recorded and sends again
const KEY = process.env.WEBHOOK_KEY;
const answers = new Map(); // by idempotency key; a real receiver keeps them in its database, beside what it did

function isSigned(header, body) {
  const parts = (header ?? "").split(",").map((part) => part.split("="));
  const timestamp = parts.find(([name]) => name === "t")?.[1];
  if (!(Math.abs(Date.now() / 1000 - timestamp) <= TOLERANCE_SECONDS)) return false;
  const expected = createHmac("sha256", KEY).update(`${timestamp}.`).update(body).digest();
  return parts
    .filter(([name]) => name === "v1") // two while the sender replaces its key
    .map(([, value]) => Buffer.from(value, "hex"))
    .some((given) => given.length === expected.length && timingSafeEqual(given, expected));
}

function remind({ id, data }) {
  if (!data?.invoice) return { reject: "data.invoice: is missing; give the number of the invoice" };
  if (data.left === 0) return { done: { invoice: data.invoice, state: "paid" } };
  console.log(`reminding of invoice ${data.invoice}, message ${id}`);
  return { again: { after: "PT1S", tolerance: 0, reason: "reminded", data: { ...data, left: data.left - 1 } } };
}

const server = createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const body = Buffer.concat(pieces);
  if (!isSigned(request.headers["dormice-signature"], body)) {
    response.writeHead(401).end();
    return;
  }
  const key = request.headers["idempotency-key"];
  if (!answers.has(key)) answers.set(key, remind(JSON.parse(body)));
  response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(answers.get(key)));
});
server.listen(Number(process.argv[2] ?? 0), "127.0.0.1", () => console.log(`port ${server.address().port}`));
