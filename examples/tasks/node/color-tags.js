// A task in Node, without dependencies: the input comes on standard input, the output goes into a file.
const { appendFileSync, readFileSync, writeFileSync } = require("node:fs");
const { LEDGERLINE_ACTIVITY, LEDGERLINE_ERROR, LEDGERLINE_OUTPUT } = process.env;

// Heartbeats tell what the task was last doing.
function activity(type, stepName) {
  appendFileSync(LEDGERLINE_ACTIVITY, JSON.stringify({ type, stepName }) + "\n");
}

// timeout, network, rate-limit and server-error are tried again; auth, validation and programming are not.
function fail(category, error) {
  writeFileSync(LEDGERLINE_ERROR, JSON.stringify({ error, category }));
  process.exit(1);
}

const input = JSON.parse(readFileSync(0, "utf8"));
const colors = input.dependencyOutputs?.["task-A"]?.colors;
if (!Array.isArray(colors)) fail("validation", "task-A has put out no colors");

activity("step_running", "tags");
const tags = colors.map((color) => `${input.style ?? "plain"} ${color}`);

// The worker copies `usage` of an output into `Task Completed`.
writeFileSync(LEDGERLINE_OUTPUT, JSON.stringify({ tags, usage: { inputTokens: 12, outputTokens: tags.length } }));
