// The official openai client for Node, unmodified, against the gateway.

import diagnostics from 'node:diagnostics_channel';
import OpenAI, {
  APIConnectionTimeoutError,
  APIError,
  APIUserAbortError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitError,
} from 'openai';

import { GATEWAY, PLAYS, SHORT, STRICT, Skip, aborts, check, equal, main, play, raises, records, script, sentBody, sleep, state, until } from './harness.mjs';

const MESSAGES = [{ role: 'user', content: 'What does a yardmaster do?' }];

const make = (baseURL = GATEWAY, options = {}) => new OpenAI({ baseURL, apiKey: 'key', maxRetries: 0, ...options });
const client = make();

function ask({ on = client, model = 'plain', content, ...fields } = {}, options = {}) {
  const messages = content === undefined ? MESSAGES : [{ role: 'user', content }];
  return on.chat.completions.create({ model, messages, max_tokens: 8, ...fields }, options);
}

async function list(stream) {
  const all = [];
  for await (const item of await stream) all.push(item);
  return all;
}

const textOf = (chunks, index = 0) =>
  chunks.flatMap((k) => k.choices.filter((c) => c.index === index).map((c) => c.delta.content ?? '')).join('');

const usage = { stream_options: { include_usage: true } };

const classes = {
  APIStatusError: APIError,
  AuthenticationError,
  BadRequestError,
  InternalServerError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitError,
};

/** Send a row's request and return the error it must raise. */
function refusal(row, stream) {
  const { body = {}, model = 'plain', pad, strict } = row.request ?? {};
  const content = pad ? 'x'.repeat(pad) : undefined;
  return raises(APIError, () => ask({ on: strict ? make(STRICT) : client, model, content, stream, ...body }));
}

/** All offsets, or when short some, those in keep among them. */
function offsets(end, keep) {
  const all = Array.from({ length: end }, (_, i) => i);
  return SHORT ? all.filter((i) => i % 37 === 0 || keep.includes(i)) : all;
}

/** One cut stream: it raises, or it is whole; never a part without error. */
async function cutAt(name, what, at, mustFail, mustPass, want) {
  await script(what);
  let text = '';
  let error;
  try {
    for await (const chunk of await ask({ content: 'cut me', stream: true })) {
      for (const c of chunk.choices) text += c.delta.content ?? '';
    }
  } catch (e) {
    error = e;
  }
  const where = `${name} at byte ${at}`;
  // A kept connection that is closed without a byte in answer is what a server's
  // idle timeout looks like: the gateway tries once more on a fresh one.
  const n = (await records()).length;
  check(n === 1 || (n === 2 && at === 0), `${where}: ${n} requests at the engine`);
  check(want.startsWith(text), `${where}: text ${text}`);
  check(!(mustFail && !error), `${where} ended cleanly`);
  check(!(mustPass && error), `${where}: ${error} though the stream was whole`);
  if (!error) equal(text, want, `${where}: text`);
  else if (error.status !== undefined) equal(error.status, 502, `${where}: status`);
}

/** Leave a call by its signal, 200 ms after ready() is true. */
async function abortAfter(ready, fields) {
  const controller = new AbortController();
  const got = [];
  const call = (async () => {
    const answer = await ask({ max_tokens: 50, ...fields }, { signal: controller.signal });
    if (fields.stream) for await (const k of answer) got.push(...k.choices.filter((c) => c.delta.content));
  })();
  call.catch(() => {});
  await until(() => ready(got), 'the request to get where it is to be left');
  await sleep(200);
  const left = Date.now();
  controller.abort();
  // A stream that is left by its signal ends without an error; a call raises.
  await call.catch((error) => check(error instanceof APIUserAbortError, `the abort raised ${error}`));
  return left;
}

const seen = async () => (await records()).length > 0;

await main({
  async models() {
    equal((await list(client.models.list())).map((m) => m.id).sort(), ['narrow', 'plain', 'twin'], 'models');
    equal((await client.models.retrieve('plain')).id, 'plain', 'model');
    equal((await raises(NotFoundError, () => client.models.retrieve('nobody'))).code, 'model_not_found', 'code');
  },

  async chat() {
    const answer = await ask();
    check(answer.choices[0].message.content, 'no content');
    equal(answer.choices[0].finish_reason, 'length', 'finish_reason');
    equal(answer.usage.completion_tokens, 8, 'completion_tokens');
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 8, 'total_tokens');
    check(answer._request_id, 'no request id');
  },

  async chat_stream() {
    const whole = (await ask()).choices[0].message.content;
    const chunks = await list(ask({ stream: true }));
    equal(textOf(chunks), whole, 'text');
    equal(chunks[0].choices[0].delta.role, 'assistant', 'role');
    equal(chunks.map((k) => k.choices[0].finish_reason).filter(Boolean), ['length'], 'finish_reason');
    check(chunks.every((k) => !k.usage && k.choices.length === 1), 'usage came unasked');
  },

  async chat_stream_usage() {
    let chunks = await list(ask({ stream: true, ...usage }));
    const last = chunks.at(-1);
    equal([last.choices, last.usage.completion_tokens], [[], 8], 'usage chunk');
    equal(chunks.at(-2).choices[0].finish_reason, 'length', 'finish_reason before usage');
    check(chunks.slice(0, -1).every((k) => !k.usage && k.choices.length), 'usage came early');
    chunks = await list(ask({ stream: true, stream_options: { include_usage: false } }));
    check(chunks.every((k) => !k.usage && k.choices.length), 'usage came though refused');
  },

  async chat_stream_n() {
    const fields = { n: 2, seed: 7, temperature: 1 };
    const whole = (await ask(fields)).choices.map((c) => c.message.content);
    const chunks = await list(ask({ ...fields, stream: true, ...usage }));
    equal([textOf(chunks, 0), textOf(chunks, 1)], whole, 'texts');
    const finished = chunks.flatMap((k) => k.choices).filter((c) => c.finish_reason);
    equal(finished.map((c) => c.index).sort(), [0, 1], 'finished choices');
    equal(chunks.filter((k) => k.usage).map((k) => k.usage.completion_tokens), [16], 'completion_tokens');
  },

  async completions() {
    const answer = await client.completions.create({ model: 'plain', prompt: 'The yard', max_tokens: 6 });
    check(answer.choices[0].text, 'no text');
    equal(answer.usage.completion_tokens, 6, 'completion_tokens');
    const several = await client.completions.create({ model: 'plain', prompt: ['The yard', 'The train'], max_tokens: 6 });
    equal(several.choices.map((c) => c.index), [0, 1], 'choices');
    equal(several.choices[0].text, answer.choices[0].text, 'text of the first');
  },

  async completions_stream() {
    const fields = { model: 'plain', prompt: 'The yard', max_tokens: 6 };
    const whole = (await client.completions.create(fields)).choices[0].text;
    const chunks = await list(client.completions.create({ ...fields, stream: true, ...usage }));
    equal(chunks.flatMap((k) => k.choices.map((c) => c.text)).join(''), whole, 'text');
    equal([chunks.at(-1).choices, chunks.at(-1).usage.completion_tokens], [[], 6], 'usage chunk');
  },

  async embeddings() {
    const probe = await fetch(GATEWAY + '/embeddings', { method: 'POST', body: '{"model":"plain","input":"x"}' });
    if (probe.status === 404 && (await probe.text()).includes('route_not_found')) throw new Skip('the gateway has no /v1/embeddings');
    const answer = await client.embeddings.create({ model: 'plain', input: ['a switch', 'a car', 'a switch'] });
    equal(answer.data.map((d) => d.index), [0, 1, 2], 'indices');
    const [a, b, c] = answer.data.map((d) => JSON.stringify(d.embedding));
    check(a === c && a !== b, 'vectors do not follow the texts');
    const plain = await client.embeddings.create({ model: 'plain', input: 'a switch', encoding_format: 'float' });
    const apart = plain.data[0].embedding.map((x, i) => Math.abs(x - answer.data[0].embedding[i]));
    check(apart.length > 0 && Math.max(...apart) < 1e-6, 'float and base64 differ');
    check(answer.usage.prompt_tokens > 0, 'no usage');
    await raises(NotFoundError, () => client.embeddings.create({ model: 'nobody', input: 'x' }));
  },

  async tools() {
    const want = await play('tools');
    const call = (await ask()).choices[0].message.tool_calls[0];
    equal([call.id, call.function.name, call.function.arguments], [want.id, want.name, want.arguments], 'call');
    const chunks = await list(ask({ stream: true }));
    const deltas = chunks.flatMap((k) => k.choices.flatMap((c) => c.delta.tool_calls ?? []));
    equal(deltas.map((d) => d.id).filter(Boolean), [want.id], 'ids');
    equal(deltas.map((d) => d.function.arguments).join(''), want.arguments, 'arguments');
    equal(chunks.at(-1).choices[0].finish_reason, want.finish, 'finish_reason');
    // The client's own assembly of a stream.
    const runner = client.chat.completions.stream({ model: 'plain', messages: MESSAGES });
    const assembled = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
    equal([assembled.id, assembled.function.arguments], [want.id, want.arguments], 'assembled call');
  },

  async logprobs() {
    const want = await play('logprobs');
    const fields = { logprobs: true, top_logprobs: 2 };
    for (const choice of [(await ask(fields)).choices[0], (await list(ask({ ...fields, stream: true })))[0].choices[0]]) {
      const first = choice.logprobs.content[0];
      equal([first.token, first.logprob, first.bytes], [want.token, want.logprob, want.bytes], 'token');
      equal([first.top_logprobs[1].token, first.top_logprobs[1].logprob], [want.other, want.other_logprob], 'other');
    }
  },

  async request_fields() {
    const want = await play('request_fields');
    const written = [];
    const spy = make(GATEWAY, {
      fetch: (url, init) => {
        written.push(init.body);
        return fetch(url, init);
      },
    });
    await ask({ on: spy, ...want.extra });
    await list(ask({ on: spy, ...want.extra, stream: true, ...usage }));
    equal((await records()).map(sentBody), written, 'bodies at the engine');
    await list(ask({ on: spy, ...want.extra, stream: true }));
    const { stream_options, ...got } = JSON.parse(sentBody((await records()).at(-1)));
    equal(stream_options, { include_usage: true }, 'stream_options');
    equal(got, JSON.parse(written.at(-1)), 'body at the engine');
    await ask({ on: spy, ...want.commands });
    const last = JSON.parse(sentBody((await records()).at(-1)));
    check(Object.keys(want.commands).every((k) => !(k in last)), 'commands reached the engine');
  },

  async answer_fields() {
    const want = await play('answer_fields');
    const answer = await ask();
    equal(answer.choices[0].message.reasoning_content, want.reasoning, 'reasoning_content');
    equal(answer.choices[0].stop_reason, want.stop_reason, 'stop_reason');
    const chunks = await list(ask({ stream: true }));
    equal(chunks[0].choices[0].delta.reasoning_content, want.reasoning, 'reasoning_content');
    equal(chunks[1].choices[0].stop_reason, want.stop_reason, 'stop_reason');
    // JavaScript's numbers cannot hold this one; its bytes are what matters.
    const raw = await (await ask().asResponse()).text();
    check(raw.includes(`"big":${want.big}`), `big: ${raw}`);
  },

  async unicode() {
    const want = (await play('unicode')).text;
    for (const content of ['bytewise', 'carriage', 'plain']) {
      equal((await ask({ content, max_tokens: 200 })).choices[0].message.content, want, `${content} whole`);
      equal(textOf(await list(ask({ content, max_tokens: 200, stream: true }))), want, `${content} stream`);
    }
  },

  async errors() {
    const { table } = PLAYS.errors.expect;
    for (const row of table) {
      for (const stream of [false, true]) {
        const what = row.name + (stream ? ', streamed' : '');
        await script(row.script);
        const error = await refusal(row, stream);
        equal([error.status, error.constructor.name], [row.status, classes[row.class].name], what);
        check(typeof error.error?.message === 'string', `${what}: no message in ${JSON.stringify(error.error)}`);
        check(typeof error.type === 'string' && error.param !== undefined, `${what}: no type or param`);
        check(typeof error.code === 'string' || error.code === null, `${what}: code is ${error.code}`);
        check(!error.message.includes('no body'), `${what}: ${error.message}`);
        if (stream && row.no_stream) continue;
        check(error.error.message.includes(row.message ?? ''), `${what}: the message is ${error.error.message}`);
        for (const field of ['code', 'param']) if (field in row) equal(error[field], row[field], `${what}: ${field}`);
        if (row.retry_after) equal(error.headers.get('retry-after'), row.retry_after, `${what}: retry-after`);
        check(error.requestID, `${what}: no request id`);
        equal((await records()).length, row.unseen ? 0 : 1, `${what}: requests at the engine`);
      }
    }
    return `${table.length} faults`;
  },

  async retry_after() {
    await play('retry_after');
    const began = performance.now();
    await ask({ on: make(GATEWAY, { maxRetries: 2 }) });
    const took = (performance.now() - began) / 1000;
    equal((await records()).length, 2, 'requests at the engine');
    check(took >= 1 && took < 3, `came back after ${took.toFixed(2)} s instead of 1 s`);
  },

  async retry_forbidden() {
    await play('retry_forbidden');
    const error = await raises(InternalServerError, () => ask({ on: make(STRICT, { maxRetries: 2 }) }));
    equal([error.status, error.headers.get('x-should-retry')], [504, 'false'], 'status and x-should-retry');
    equal((await records()).length, 1, 'requests at the engine');
  },

  async retry_multiplies() {
    const counts = [];
    for (const row of PLAYS.retry_multiplies.expect.table) {
      await script(row.script, row.model);
      await raises(APIError, () => ask({ on: make(GATEWAY, { maxRetries: 2 }), model: row.model }));
      const n = (await records(row.model)).length;
      check(row.least <= n && n <= row.most, `${row.name}: ${n} requests at the engines`);
      counts.push(`${row.name}: ${n}`);
    }
    return counts.join('; ');
  },

  async stream_error() {
    const want = await play('stream_error');
    for (const content of ['without', 'with-done']) {
      let got = 0;
      const error = await raises(APIError, async () => {
        for await (const k of await ask({ content, stream: true })) got += k.choices.filter((c) => c.delta.content).length;
      });
      check(error.message.includes(want.message), `the message is ${error.message}`);
      equal(got, want.events, 'tokens before the error');
    }
  },

  async stream_cut() {
    const { wire, expect, script: what } = PLAYS.stream_cut;
    let tried = 0;
    for (const how of ['reset', 'close']) {
      for (const at of offsets(wire.bytes, [wire.error - 1, wire.whole])) {
        what.rules[0].do.cut = { at, how };
        await cutAt(how, what, at, at < wire.error, at >= wire.whole, expect.text);
        tried++;
      }
      check((await ask()).choices[0].message.content, 'the next request fails');
    }
    return `${tried} cuts`;
  },

  async stream_ends_early() {
    const { expect, script: what } = PLAYS.stream_ends_early;
    const body = Buffer.from(what.rules[0].do.respond.text);
    const marker = body.indexOf('data: [DONE]') + 'data: [DONE]'.length;
    const all = offsets(body.length, [marker - 1, marker]);
    for (const at of all) {
      what.rules[0].do.cut.at = at;
      await cutAt('end', what, at, at < marker, false, expect.text);
    }
    return `${all.length} ends`;
  },

  async heartbeat() {
    const want = await play('heartbeat');
    const chunks = await list(ask({ on: make(STRICT), stream: true }));
    equal(chunks.filter((k) => k.choices[0].delta.content).length, want.tokens, 'tokens');
  },

  async cancel_before_headers() {
    await play('cancel_before_headers');
    return aborts(() => abortAfter(seen, { stream: true }), ['delay']);
  },

  async cancel_queued() {
    await play('cancel_queued', 'narrow');
    const load = async () => (await state('narrow'))[0].load;
    const leave = async () => {
      const controller = new AbortController();
      const first = ask({ model: 'narrow', content: 'first in line', max_tokens: 50 }, { signal: controller.signal });
      first.catch(() => {});
      await until(async () => (await load()).Running === 1, 'the first to run');
      const left = await abortAfter(async () => (await load()).Waiting === 1, { model: 'narrow', content: 'second' });
      await until(async () => (await records('narrow')).some((r) => r.outcome === 'aborted'), 'the abort');
      controller.abort();
      await first.catch(() => {});
      return left;
    };
    return aborts(leave, ['queued'], { model: 'narrow', word: 'second' });
  },

  async cancel_before_token() {
    await play('cancel_before_token');
    return aborts(() => abortAfter(seen, { stream: true }), ['hang']);
  },

  async cancel_between_tokens() {
    await play('cancel_between_tokens');
    return aborts(() => abortAfter((got) => got.length >= 1, { stream: true }), ['decode']);
  },

  async cancel_whole() {
    await play('cancel_whole');
    return aborts(() => abortAfter(seen, {}), ['prefill', 'decode']);
  },

  async cancel_break() {
    await play('cancel_between_tokens');
    const breaking = await aborts(async () => {
      let left;
      for await (const k of await ask({ stream: true, max_tokens: 50 })) {
        if (!k.choices[0].delta.content) continue;
        left = Date.now();
        break;
      }
      return left;
    }, ['decode']);
    const aborting = await aborts(async () => {
      const stream = await ask({ stream: true, max_tokens: 50 });
      const items = stream[Symbol.asyncIterator]();
      await items.next();
      const left = Date.now();
      stream.controller.abort();
      return left;
    }, ['prefill', 'decode']);
    return `break ${breaking}; controller.abort() ${aborting}`;
  },

  async timeout() {
    await play('timeout');
    return aborts(async () => {
      const began = Date.now();
      await raises(APIConnectionTimeoutError, () => ask({ on: make(GATEWAY, { timeout: 500 }) }));
      return began + 500;
    }, ['delay']);
  },

  async keep_alive() {
    const port = new URL(GATEWAY).port;
    let made = 0;
    const count = ({ connectParams }) => {
      if (connectParams.port === port) made++;
    };
    diagnostics.subscribe('undici:client:connected', count);
    for (let i = 0; i < 5; i++) {
      await ask();
      await list(ask({ stream: true }));
      await raises(NotFoundError, () => ask({ model: 'nobody' }));
      await list(client.models.list());
    }
    diagnostics.unsubscribe('undici:client:connected', count);
    check(made <= 1, `${made} connections for 20 calls`);
    return made === 0 ? 'on a connection made before' : '';
  },

  async concurrent() {
    const texts = await Promise.all(
      Array.from({ length: 64 }, async (_, i) => {
        const fields = { model: 'twin', content: `car ${i}`, max_tokens: 12 };
        const whole = (await ask(fields)).choices[0].message.content;
        equal(textOf(await list(ask({ ...fields, stream: true }))), whole, `text ${i}`);
        return whole;
      }),
    );
    equal(new Set(texts).size, 64, 'different answers');
  },
});
