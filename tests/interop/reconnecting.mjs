// A client of the TypeScript SDK 1 over SSE that lives through a restart of the server. Prints a line when it is
// connected, waits for one on its standard input, which says that the server is back, and calls until it is answered.
//
//     node reconnecting.mjs URL

import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';

const recall = { name: 'recall', arguments: { query: 'tea' } };
const client = new Client({ name: 'interop', version: '1' });
client.onerror = () => {};
await client.connect(new SSEClientTransport(new URL(process.argv[2])));
console.log('connected');
await once(process.stdin, 'data');
for (;;) {
    try {
        const { content } = await client.callTool(recall, undefined, { timeout: 2000 });
        console.log(content[0].text);
        break;
    } catch {
        await setTimeout(200); // the stream is not open again
    }
}
await client.close();
process.exit();
