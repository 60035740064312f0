// The workflows as a Restate service: handlers whose steps Restate records one by one, with the settings that
// the SDK comes with. Arguments: the port to listen on.
"use strict";

const restate = require("@restatedev/restate-sdk");

const bench = restate.service({
  name: "bench",
  handlers: {
    sequence: async (ctx) => {
      let sum = 0;
      for (let step = 0; step < 10; step++) {
        sum += await ctx.run(`step-${step}`, () => step);
      }
      return sum;
    },

    fanOut: async (ctx) => {
      const steps = [];
      for (let step = 0; step < 100; step++) {
        steps.push(ctx.run(`step-${step}`, () => step));
      }
      const values = await restate.RestatePromise.all(steps);
      return values.reduce((sum, value) => sum + value, 0);
    },

    empty: async () => 0,
  },
});

restate.serve({ services: [bench], port: Number(process.argv[2]) });
