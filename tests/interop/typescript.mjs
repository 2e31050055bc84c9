// A client of the TypeScript SDK: initialises, lists the tools, retains and recalls, and prints what it saw as JSON.
//
//     node typescript.mjs 1|2|2-modern|bridge sse|http URL KEY
//
// 1 and 2 are the SDK's generations, 2-modern speaks protocol 2026-07-28; bridge is 1 over stdio through mcp-remote with
// its defaults.

import { tmpdir } from 'node:os';
import { fileURLToPath } from 'node:url';

const [generation, door, url, key] = process.argv.slice(2);
const options = { requestInit: { headers: { 'x-api-key': key } } };
const { client, transport } = await (generation.startsWith('2') ? second() : first());

await client.connect(transport);
const { tools } = await client.listTools();
const retained = await client.callTool({ name: 'retain', arguments: { content: 'Ada drinks green tea.' } });
const recalled = await client.callTool({ name: 'recall', arguments: { query: 'tea', max_results: 3 } });
const seen = {
    server: client.getServerVersion().name,
    tools: tools.map((tool) => tool.name),
    retained: retained.content[0].text,
    recalled: recalled.structuredContent.results.map((memory) => memory.text),
};
await client.close();
console.log(JSON.stringify(seen));

async function first() {
    const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
    const client = new Client({ name: 'interop', version: '1' });
    if (generation === 'bridge') {
        const { StdioClientTransport } = await import('@modelcontextprotocol/sdk/client/stdio.js');
        const remote = fileURLToPath(import.meta.resolve('mcp-remote/dist/proxy.js'));
        const env = { ...process.env, MCP_REMOTE_CONFIG_DIR: tmpdir() };
        const args = [remote, url, '--header', `x-api-key:${key}`];
        return { client, transport: new StdioClientTransport({ command: process.execPath, args, env }) };
    }
    if (door === 'sse') {
        const { SSEClientTransport } = await import('@modelcontextprotocol/sdk/client/sse.js');
        return { client, transport: new SSEClientTransport(new URL(url), options) };
    }
    const { StreamableHTTPClientTransport } = await import('@modelcontextprotocol/sdk/client/streamableHttp.js');
    return { client, transport: new StreamableHTTPClientTransport(new URL(url), options) };
}

async function second() {
    const { Client, SSEClientTransport, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
    const mode = generation === '2-modern' ? { pin: '2026-07-28' } : 'legacy';
    const client = new Client({ name: 'interop', version: '1' }, { versionNegotiation: { mode } });
    const Transport = door === 'sse' ? SSEClientTransport : StreamableHTTPClientTransport;
    return { client, transport: new Transport(new URL(url), options) };
}
