// What the cases need besides the client: where things are, the scripted
// engines' control doors, and the report of one JSON line a case.

import { readFileSync } from 'node:fs';

export const PLACE = JSON.parse(readFileSync(process.env.YARDMASTER_CLIENTS, 'utf8'));
export const { gateway: GATEWAY, strict: STRICT, short: SHORT, plays: PLAYS } = PLACE;

/** The case does not apply here, for the reason given. */
export class Skip extends Error {}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Make the model's engines play what; records begin anew. */
export async function script(what, model = 'plain') {
  for (const engine of PLACE.engines[model]) {
    const answer = await fetch(engine + '/scripted/script', { method: 'POST', body: JSON.stringify(what ?? {}) });
    check(answer.status === 204, `the engine refused the script: ${await answer.text()}`);
  }
  await forget(model);
}

/** The last record of each engine that does not count any more. */
const old = {};

/** Make records begin anew. What the engines have on record stays: it may not have ended yet. */
async function forget(model) {
  for (const [i, s] of (await state(model)).entries()) {
    const engine = PLACE.engines[model][i];
    old[engine] = s.records.at(-1)?.seq ?? old[engine];
  }
}

/** Play a case of plays.yaml and return what it expects. */
export async function play(name, model = 'plain') {
  await script(PLAYS[name].script, model);
  return PLAYS[name].expect ?? {};
}

/** What the model's engines say of themselves since forget, one each. */
export const state = (model = 'plain') =>
  Promise.all(PLACE.engines[model].map(async (engine) => (await fetch(`${engine}/scripted/record?after=${old[engine] ?? 0}`)).json()));

/** The generation requests the model's engines have seen, the oldest first. */
export async function records(model = 'plain') {
  const all = (await state(model)).flatMap((s) => s.records);
  return all.filter((r) => r.method === 'POST' && r.path.startsWith('/v1/'));
}

export const sentBody = (record) => Buffer.from(record.body ?? '', 'base64').toString();

/** Poll until condition() gives something true, and return it. */
export async function until(condition, what, seconds = 5) {
  const deadline = performance.now() + seconds * 1000;
  while (performance.now() < deadline) {
    const value = await condition();
    if (value) return value;
    await sleep(5);
  }
  throw new Error(`waited ${seconds} s for ${what}`);
}

const ABORT_BOUND = 100; // ms
const TRIES = 3; // a busy machine may hold up one of them, not a gateway that does not abort

/**
 * Check that the engine sees the client leave within the bound: the request
 * with word in its body, in one of the stages. leave() starts a request, leaves
 * it, and returns when it left, by Date.now().
 */
export async function aborts(leave, stages, { model = 'plain', word = '' } = {}) {
  let best = Infinity;
  for (let i = 0; i < TRIES; i++) {
    await forget(model);
    const left = await leave();
    const seen = async () => (await records(model)).find((r) => r.outcome === 'aborted' && sentBody(r).includes(word));
    const record = await until(seen, 'the engine to see the abort');
    check(stages.includes(record.stage), `the request was in stage ${record.stage}, not ${stages}`);
    best = Math.min(best, Date.parse(record.ended) - left);
    if (best <= ABORT_BOUND) return `seen after ${Math.max(best, 0)} ms`;
  }
  throw new Error(`the engine saw the abort after ${best} ms at best`);
}

export function check(ok, message) {
  if (!ok) throw new Error(message);
}

export function equal(got, want, what) {
  const [a, b] = [JSON.stringify(got), JSON.stringify(want)];
  check(a === b, `${what}: got ${a}, want ${b}`);
}

/** Call and return the error, which must be of that very kind. */
export async function raises(kind, call) {
  let value;
  try {
    value = await call();
  } catch (error) {
    check(error instanceof kind, `raised ${error.constructor.name} (${error.message}), not ${kind.name}`);
    return error;
  }
  throw new Error(`nothing was raised; the result was ${JSON.stringify(value)?.slice(0, 300)}`);
}

/** Run the cases: functions, whose result is shown beside theirs. */
export async function main(cases) {
  for (const [name, run] of Object.entries(cases)) {
    if (PLACE.run && !new RegExp(PLACE.run).test(name)) continue;
    for (const model of Object.keys(PLACE.engines)) await script(null, model);
    const began = performance.now();
    let status = 'pass';
    let detail = '';
    try {
      detail = (await run()) ?? '';
    } catch (error) {
      status = error instanceof Skip ? 'skip' : 'fail';
      const line = /suite\.mjs:(\d+)/.exec(error.stack ?? '');
      detail = status === 'skip' ? error.message : `${error.constructor.name}: ${error.message} (suite.mjs:${line?.[1] ?? '?'})`;
    }
    console.log(JSON.stringify({ case: name, status, detail, ms: performance.now() - began }));
  }
}
