/* amqp-connection-manager on Node: a channel with confirms, and a consumer with acknowledgements, that come back by themselves. */

import { appendFileSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import amqp from "amqp-connection-manager";

const MESSAGES = 150;
const LIMIT_MS = 90_000;
const ATTEMPTS = 300;
const PAUSE_MS = 100;
const book = `${process.env.PROGRAM_FOLDER}/book`;
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (told) => process.stdout.write(`${JSON.stringify(told)}\n`);
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const executions = () => readFileSync(book, { encoding: "utf-8", flag: "a+" }).split("\n").filter(Boolean);

async function kill(number) {
  say({ kill: number });
  await answers.next();
}

function connected(setup) {
  const connection = amqp.connect([process.env.PROGRAM_URL], { reconnectTimeInSeconds: 0.2, heartbeatIntervalInSeconds: 5 });
  const channel = connection.createChannel({
    confirm: true,
    setup: async (opened) => {
      await opened.assertQueue("work", { durable: true, arguments: { "x-queue-type": "quorum", "x-delivery-limit": 50 } });
      await setup(opened);
    },
  });
  return { connection, channel };
}

/* The library rejects what was not confirmed when its channel closed: the program publishes that again. */
async function published(identity) {
  for (let attempt = 1; ; attempt++) {
    try {
      return await publishing.channel.sendToQueue("work", Buffer.from(identity), { persistent: true });
    } catch (error) {
      if (attempt === ATTEMPTS) {
        throw error;
      }
      await pause(PAUSE_MS);
    }
  }
}

const consuming = connected(async (opened) => {
  await opened.prefetch(8);
  await opened.consume("work", (message) => {
    if (message !== null) {
      appendFileSync(book, `${message.content.toString()}\n`);
      opened.ack(message);
    }
  });
});
const publishing = connected(async () => {});
await Promise.all([consuming.channel.waitForConnect(), publishing.channel.waitForConnect()]);

const sent = [];
const confirmed = [];
for (let number = 0; number < MESSAGES; number++) {
  if (number === MESSAGES / 3 || number === (2 * MESSAGES) / 3) {
    await kill(number === MESSAGES / 3 ? 1 : 2);
  }
  const identity = `message-${number}`;
  sent.push(identity);
  confirmed.push(published(identity));
  await pause(5);
}
const outcomes = await Promise.allSettled(confirmed);
const deadline = Date.now() + LIMIT_MS;
const isDone = () => new Set(executions()).size === MESSAGES;
while (!isDone() && Date.now() < deadline) {
  await pause(PAUSE_MS);
}
const done = {};
for (const identity of executions()) {
  done[identity] = (done[identity] ?? 0) + 1;
}
say({ result: { sent, done, facts: { every_message_is_confirmed: outcomes.every((each) => each.status === "fulfilled") } } });
process.exit(0);
