// The npm package openai against kvtwin serve: usage: serve_openai.mjs BASE_URL MODEL SESSION
import OpenAI from "openai";

const [baseURL, model, session] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });

const whole = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Hello" }],
  max_tokens: 6,
});
console.log("whole", whole.choices[0].message.content.length, whole.choices[0].finish_reason, whole.usage.total_tokens);

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "Hello" }],
  max_completion_tokens: 6,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let usage;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
console.log("stream", text.length, text === whole.choices[0].message.content, usage.completion_tokens);

const runner = client.beta.chat.completions.stream({ model, messages: [{ role: "user", content: "go" }], user: session });
const final = await runner.finalChatCompletion();
const call = final.choices[0].message.tool_calls[0];
console.log("tool", final.choices[0].finish_reason, call.type, typeof JSON.parse(call.function.arguments));

const aborted = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "long" }],
  max_tokens: 50000,
  stream: true,
});
let chunks = 0;
for await (const chunk of aborted) {
  if (++chunks === 3) break; // closes the connection
}
console.log("aborted", chunks);

try {
  await client.chat.completions.create({ model: "gpt-5", messages: [{ role: "user", content: "a" }] });
} catch (error) {
  console.log("error", error.constructor.name, error.status, error.code);
}
const models = await client.models.list();
console.log("models", models.data.map((one) => one.id).join());
