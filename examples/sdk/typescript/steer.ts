// Steers one message with nothing but Temporal's own SDK: reschedules it, then prints what it says of itself.
import { blake2b } from "@noble/hashes/blake2.js";
import { Client, Connection, WorkflowNotFoundError } from "@temporalio/client";

/** Where a message lives; `ids` is empty for a message with a workflow of its own. */
interface Place {
  workflowId: string;
  ids: string[];
}

/** Find the workflow; packed kinds keep the number of their packs in the memo of the workflow "kind~". */
async function find(client: Client, kind: string, id: string): Promise<Place> {
  try {
    const { memo } = await client.workflow.getHandle(`${kind}~`).describe();
    const { packs } = memo!.layout as { packs: number };
    return { workflowId: `${kind}~${packIndex(id, packs)}`, ids: [id] };
  } catch (error) {
    if (!(error instanceof WorkflowNotFoundError)) throw error;
    return { workflowId: `${kind}:${id}`, ids: [] };
  }
}

/** The pack of an id by linear hashing of the first 8 bytes of BLAKE2b, as dormice does it. */
function packIndex(id: string, packs: number): number {
  let key = 0n;
  for (const each of blake2b(new TextEncoder().encode(id), { dkLen: 8 })) key = (key << 8n) | BigInt(each);
  const bits = 32 - Math.clz32(packs);
  const index = Number(BigInt.asUintN(bits, key));
  return index < packs ? index : index - 2 ** (bits - 1);
}

/** Send the signal; a pack is told which of its messages are meant. */
async function reschedule(client: Client, place: Place, dueAt: Date, reason: string): Promise<void> {
  const ids = place.ids.length > 0 ? { ids: place.ids } : {};
  const argument = { ...ids, due_at: dueAt.toISOString(), reason };
  await client.workflow.getHandle(place.workflowId).signal("reschedule", argument);
}

/** Ask the message itself, which takes a worker; null when its pack does not know it. */
async function status(client: Client, place: Place): Promise<Record<string, unknown> | null> {
  return await client.workflow.getHandle(place.workflowId).query("status", ...place.ids);
}

const [kind, id, dueAt] = process.argv.slice(2);
const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS ?? "127.0.0.1:7233" });
const client = new Client({ connection, namespace: process.env.TEMPORAL_NAMESPACE ?? "default" });
const place = await find(client, kind, id);
await reschedule(client, place, new Date(dueAt), "asked from TypeScript");
console.log(JSON.stringify(await status(client, place)));
await connection.close();
