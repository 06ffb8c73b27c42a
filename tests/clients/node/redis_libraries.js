// Tests libraries for Node.js that use Redis, on the port in the first argument.
"use strict";

const assert = require("node:assert/strict");
const { RedisStore } = require("rate-limit-redis");
const { RateLimiterRedis } = require("rate-limiter-flexible");
const { createClient } = require("redis");

const port = Number(process.argv[2]);

async function testIoredis(name) {
  const { Redis } = require(name);
  const client = new Redis(port);
  await client.flushall();
  assert.equal(await client.set("key", "value", "PX", 60_000, "NX"), "OK");
  assert.equal(await client.set("key", "other", "NX"), null);
  assert.deepEqual(await client.mget("key", "absent"), ["value", null]);
  assert.deepEqual(await client.getBuffer("key"), Buffer.from("value"));
  assert.deepEqual(await Promise.all(Array.from({ length: 200 }, () => client.incr("count"))).then((n) => n.at(-1)), 200);
  const answers = await client.pipeline().set("a", 1).get("a").incr("key").exec();
  assert.deepEqual(answers.slice(0, 2), [[null, "OK"], [null, "1"]]);
  assert.match(answers[2][0].message, /not an integer/);
  assert.deepEqual(await client.multi().incr("a").get("a").exec(), [[null, 2], [null, "2"]]);
  const keys = [];
  for await (const found of client.scanStream({ match: "k*" })) keys.push(...found);
  assert.deepEqual(keys, ["key"]);
  client.disconnect();
}

async function testNodeRedis() {
  for (const RESP of [2, 3]) {
    const client = await createClient({ socket: { port }, RESP }).connect();
    await client.flushAll();
    assert.equal(await client.set("key", "value", { expiration: { type: "EX", value: 100 } }), "OK");
    assert.deepEqual(await client.mGet(["key", "absent"]), ["value", null]);
    assert.deepEqual(await client.multi().incr("n").expire("n", 50).ttl("n").exec(), [1, 1, 50]);
    const keys = [];
    for await (const found of client.scanIterator({ MATCH: "*" })) keys.push(...found);
    assert.deepEqual(keys.sort(), ["key", "n"]);
    client.destroy();
  }
}

async function testRedlock() {
  const { Redis } = require("ioredis");
  const client = new Redis(port);
  await client.flushall();
  const Redlock4 = require("redlock");
  const four = new Redlock4([client], { retryCount: 0 });
  let lock = await four.lock("lock", 20_000);
  await assert.rejects(four.lock("lock", 1000), /unable to achieve a quorum|Exceeded/);
  lock = await lock.extend(50_000);
  assert.ok((await client.pttl("lock")) > 40_000);
  await lock.unlock();
  assert.equal(await client.exists("lock"), 0);
  const { default: Redlock5 } = require("redlock5");
  const five = new Redlock5([client], { retryCount: 0 });
  let held = await five.acquire(["lock"], 20_000);
  await assert.rejects(five.acquire(["lock"], 1000));
  held = await held.extend(50_000);
  assert.ok((await client.pttl("lock")) > 40_000);
  await held.release();
  assert.equal(await client.exists("lock"), 0);
  client.disconnect();
}

async function testRateLimitRedis() {
  const client = await createClient({ socket: { port } }).connect();
  await client.flushAll();
  const store = new RedisStore({ sendCommand: (...words) => client.sendCommand(words) });
  store.init({ windowMs: 50_000 });
  for (const hits of [1, 2, 3]) {
    const { totalHits, resetTime } = await store.increment("client");
    assert.equal(totalHits, hits);
    const left = resetTime.getTime() - Date.now();
    assert.ok(left > 30_000 && left <= 50_000, String(left));
  }
  assert.equal((await store.get("client")).totalHits, 3);
  await store.decrement("client");
  assert.equal((await store.get("client")).totalHits, 2);
  await store.resetKey("client");
  assert.equal((await store.increment("client")).totalHits, 1);
  client.destroy();
}

async function testRateLimiterFlexible() {
  const { Redis } = require("ioredis");
  const client = new Redis(port);
  await client.flushall();
  const limiter = new RateLimiterRedis({ storeClient: client, points: 5, duration: 50, blockDuration: 0 });
  const results = await Promise.allSettled(Array.from({ length: 8 }, () => limiter.consume("client")));
  assert.equal(results.filter(({ status }) => status === "fulfilled").length, 5);
  assert.equal((await limiter.get("client")).consumedPoints, 8);
  await limiter.delete("client");
  const { remainingPoints, msBeforeNext } = await limiter.consume("client", 2);
  assert.equal(remainingPoints, 3);
  assert.ok(msBeforeNext > 30_000 && msBeforeNext <= 50_000, String(msBeforeNext));
  client.disconnect();
}

async function main() {
  await testIoredis("ioredis");
  await testIoredis("ioredis6");
  await testNodeRedis();
  await testRedlock();
  await testRateLimitRedis();
  await testRateLimiterFlexible();
  console.log("ok");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
