// Callers of the Restate service: each has a connection of its own to the ingress, and calls again when it
// has the result. A process apart from the service, so that it neither shares its thread nor counts as its
// memory.
//
// Arguments: the ingress's port, the handler, the number of callers, the seconds of warm-up and of measuring.
// Prints one line of JSON: how long the measured runs took in all, and each of them.
"use strict";

const http = require("node:http");

const [port, handler, callers, warmUpSeconds, seconds] = process.argv.slice(2);
const expected = { sequence: 45, fanOut: 4950, empty: 0 }[handler];

function call(agent) {
  return new Promise((resolve, reject) => {
    const options = { agent, host: "127.0.0.1", port, method: "POST", path: `/bench/${handler}` };
    const request = http.request(options, (response) => {
      let body = "";
      response.setEncoding("utf8");
      response.on("data", (chunk) => (body += chunk));
      response.on("end", () => {
        if (response.statusCode === 200 && JSON.parse(body) === expected) resolve();
        else reject(new Error(`${handler} answered ${response.statusCode}: ${body}`));
      });
    });
    request.on("error", reject);
    request.end();
  });
}

// Calls as long as `more` says so, from all callers at once.
async function callWhile(agents, more) {
  const latenciesMs = [];
  const began = performance.now();
  await Promise.all(
    agents.map(async (agent) => {
      while (more()) {
        const from = performance.now();
        await call(agent);
        latenciesMs.push(performance.now() - from);
      }
    }),
  );
  return { latenciesMs, seconds: (performance.now() - began) / 1000 };
}

async function main() {
  const connection = () => new http.Agent({ keepAlive: true, maxSockets: 1 });
  const agents = Array.from({ length: Number(callers) }, connection);
  let warmUp;
  // The first half is slower than what comes after, and would promise too few runs.
  for (let half = 0; half < 2; half++) {
    const until = performance.now() + (Number(warmUpSeconds) * 1000) / 2;
    warmUp = await callWhile(agents, () => performance.now() < until);
  }
  let left = Math.ceil((warmUp.latenciesMs.length / warmUp.seconds) * Number(seconds));
  const measured = await callWhile(agents, () => left-- > 0);
  console.log(JSON.stringify(measured));
  agents.forEach((agent) => agent.destroy());
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
