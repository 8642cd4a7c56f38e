"""The official openai client for Python, unmodified, against the gateway."""

import asyncio
import json
import random
import time

import openai
from openai import AsyncOpenAI, DefaultHttpxClient, OpenAI

from harness import (
    GATEWAY, PLAYS, SHORT, STRICT, Skip, aborts, await_, case, check, equal, http, main, play, raises, records, script, sent_body, state,
)

MESSAGES = [{"role": "user", "content": "What does a yardmaster do?"}]


def new(base=GATEWAY, **options):
    options.setdefault("max_retries", 0)
    return OpenAI(base_url=base, api_key="key", **options)


client = new()


def ask(on=client, model="plain", content=None, **fields):
    fields.setdefault("max_tokens", 8)
    messages = MESSAGES if content is None else [{"role": "user", "content": content}]
    return on.chat.completions.create(model=model, messages=messages, **fields)


def text_of(chunks, index=0):
    return "".join(c.delta.content or "" for chunk in chunks for c in chunk.choices if c.index == index)


@case
def models():
    equal(sorted(m.id for m in client.models.list()), ["narrow", "plain", "twin"], "models")
    equal(client.models.retrieve("plain").id, "plain", "model")
    equal(raises(openai.NotFoundError, lambda: client.models.retrieve("nobody")).code, "model_not_found", "code")


@case
def chat():
    answer = ask()
    check(answer.choices[0].message.content, "no content")
    equal(answer.choices[0].finish_reason, "length", "finish_reason")
    equal(answer.usage.completion_tokens, 8, "completion_tokens")
    equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 8, "total_tokens")
    check(answer._request_id, "no request id")


@case
def chat_stream():
    whole = ask().choices[0].message.content
    chunks = list(ask(stream=True))
    equal(text_of(chunks), whole, "text")
    equal(chunks[0].choices[0].delta.role, "assistant", "role")
    equal([c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason], ["length"], "finish_reason")
    check(all(c.usage is None and len(c.choices) == 1 for c in chunks), "usage came unasked")


@case
def chat_stream_usage():
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    equal(chunks[-1].choices, [], "choices of the usage chunk")
    equal(chunks[-1].usage.completion_tokens, 8, "completion_tokens")
    check(chunks[-2].choices[0].finish_reason == "length", "usage does not follow the finish")
    check(all(c.usage is None and c.choices for c in chunks[:-1]), "usage came early")
    chunks = list(ask(stream=True, stream_options={"include_usage": False}))
    check(all(c.usage is None and c.choices for c in chunks), "usage came though refused")


@case
def chat_stream_n():
    whole = [c.message.content for c in ask(n=2, seed=7, temperature=1).choices]
    chunks = list(ask(n=2, seed=7, temperature=1, stream=True, stream_options={"include_usage": True}))
    equal([text_of(chunks, 0), text_of(chunks, 1)], whole, "texts")
    equal(sorted(c.index for k in chunks for c in k.choices if c.finish_reason), [0, 1], "finished choices")
    equal([k.usage.completion_tokens for k in chunks if k.usage], [16], "completion_tokens")


@case
def completions():
    answer = client.completions.create(model="plain", prompt="The yard", max_tokens=6)
    check(answer.choices[0].text, "no text")
    equal(answer.usage.completion_tokens, 6, "completion_tokens")
    several = client.completions.create(model="plain", prompt=["The yard", "The train"], max_tokens=6)
    equal([c.index for c in several.choices], [0, 1], "choices")
    equal(several.choices[0].text, answer.choices[0].text, "text of the first")


@case
def completions_stream():
    whole = client.completions.create(model="plain", prompt="The yard", max_tokens=6).choices[0].text
    chunks = list(client.completions.create(model="plain", prompt="The yard", max_tokens=6, stream=True, stream_options={"include_usage": True}))
    equal("".join(c.text for k in chunks for c in k.choices), whole, "text")
    equal((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 6), "usage chunk")


@case
def embeddings():
    status, _, text = http("POST", GATEWAY + "/embeddings", '{"model":"plain","input":"x"}', {"content-type": "application/json"})
    if status == 404 and b"route_not_found" in text:
        raise Skip("the gateway has no /v1/embeddings")
    answer = client.embeddings.create(model="plain", input=["a switch", "a car", "a switch"])
    equal([d.index for d in answer.data], [0, 1, 2], "indices")
    check(answer.data[0].embedding == answer.data[2].embedding != answer.data[1].embedding, "vectors do not follow the texts")
    plain = client.embeddings.create(model="plain", input="a switch", encoding_format="float").data[0].embedding
    check(max(abs(a - b) for a, b in zip(plain, answer.data[0].embedding, strict=True)) < 1e-6, "float and base64 differ")
    check(answer.usage.prompt_tokens > 0, "no usage")
    raises(openai.NotFoundError, lambda: client.embeddings.create(model="nobody", input="x"))


@case
def tools():
    want = play("tools")
    call = ask().choices[0].message.tool_calls[0]
    equal((call.id, call.function.name, call.function.arguments), (want["id"], want["name"], want["arguments"]), "call")
    chunks = list(ask(stream=True))
    deltas = [d for k in chunks for c in k.choices for d in c.delta.tool_calls or []]
    equal([d.id for d in deltas if d.id], [want["id"]], "ids")
    equal("".join(d.function.arguments for d in deltas), want["arguments"], "arguments")
    equal(chunks[-1].choices[0].finish_reason, want["finish"], "finish_reason")


@case
def logprobs():
    want = play("logprobs")
    for choice in ask(logprobs=True, top_logprobs=2).choices[0], list(ask(logprobs=True, top_logprobs=2, stream=True))[0].choices[0]:
        first = choice.logprobs.content[0]
        equal((first.token, first.logprob, first.bytes), (want["token"], want["logprob"], want["bytes"]), "token")
        other = first.top_logprobs[1]
        equal((other.token, other.logprob), (want["other"], want["other_logprob"]), "other")


@case
def request_fields():
    want = play("request_fields")
    written = []
    spy = new(http_client=DefaultHttpxClient(event_hooks={"request": [lambda r: written.append(r.read())]}))
    extra = dict(want["extra"], big=2**80, tiny=1e-300)
    ask(spy, extra_body=extra)
    list(ask(spy, extra_body=extra, stream=True, stream_options={"include_usage": True}))
    equal([sent_body(r) for r in records()], written, "bodies at the engine")
    list(ask(spy, extra_body=extra, stream=True))
    got, sent = json.loads(sent_body(records()[-1])), json.loads(written[-1])
    equal(got.pop("stream_options"), {"include_usage": True}, "stream_options")
    equal(got, sent, "body at the engine")
    ask(spy, extra_body=want["commands"])
    got = json.loads(sent_body(records()[-1]))
    check(not set(want["commands"]) & set(got), "commands reached the engine")


@case
def answer_fields():
    want = play("answer_fields")
    answer = ask()
    equal(answer.choices[0].message.reasoning_content, want["reasoning"], "reasoning_content")
    equal(answer.choices[0].stop_reason, want["stop_reason"], "stop_reason")
    equal(str(answer.big), want["big"], "big")
    chunks = list(ask(stream=True))
    equal(chunks[0].choices[0].delta.reasoning_content, want["reasoning"], "reasoning_content")
    equal(str(chunks[1].big), want["big"], "big")


@case
def unicode():
    want = play("unicode")["text"]
    for how in "bytewise", "carriage", "plain":
        equal(ask(content=how, max_tokens=200).choices[0].message.content, want, how + " whole")
        equal(text_of(ask(content=how, max_tokens=200, stream=True)), want, how + " stream")


def refusal(row, **fields):
    """Send a row's request and return the exception it must raise."""
    request = row.get("request", {})
    if "body" in request:
        fields["extra_body"] = request["body"]
    content = "x" * request["pad"] if "pad" in request else None
    on = new(STRICT) if request.get("strict") else client
    return raises(openai.APIStatusError, lambda: ask(on, request.get("model", "plain"), content, **fields))


@case
def errors():
    table = PLAYS["errors"]["expect"]["table"]
    for row in table:
        for stream in False, True:
            what = row["name"] + (", streamed" if stream else "")
            script(row.get("script"))
            error = refusal(row, stream=stream)
            equal((error.status_code, type(error).__name__), (row["status"], row["class"]), what)
            check(isinstance(error.body, dict) and isinstance(error.body.get("message"), str), f"{what}: no message in {error.body!r}")
            check(isinstance(error.body.get("type"), str) and "param" in error.body, f"{what}: no type or param in {error.body!r}")
            check(isinstance(error.code, str) or error.code is None, f"{what}: code is {error.code!r}")
            if stream and row.get("no_stream"):
                continue
            check(row.get("message", "") in error.body["message"], f"{what}: the message is {error.body['message']!r}")
            for field in "code", "param":
                if field in row:
                    equal(getattr(error, field), row[field], f"{what}: {field}")
            if "retry_after" in row:
                equal(error.response.headers.get("retry-after"), row["retry_after"], f"{what}: retry-after")
            check(error.request_id, f"{what}: no request id")
            seen = len(records())
            equal(seen, 0 if row.get("unseen") else 1, f"{what}: requests at the engine")
    return f"{len(table)} faults"


@case
def retry_after():
    play("retry_after")
    began = time.monotonic()
    ask(new(max_retries=2))
    took = time.monotonic() - began
    equal(len(records()), 2, "requests at the engine")
    check(1 <= took < 3, f"came back after {took:.2f} s instead of 1 s")


@case
def retry_forbidden():
    play("retry_forbidden")
    error = raises(openai.InternalServerError, lambda: ask(new(STRICT, max_retries=2)))
    equal((error.status_code, error.response.headers.get("x-should-retry")), (504, "false"), "status and x-should-retry")
    equal(len(records()), 1, "requests at the engine")


@case
def retry_multiplies():
    counts = []
    for row in PLAYS["retry_multiplies"]["expect"]["table"]:
        script(row["script"], row["model"])
        raises(openai.APIStatusError, lambda: ask(new(max_retries=2), row["model"]))
        n = len(records(row["model"]))
        check(row["least"] <= n <= row["most"], f"{row['name']}: {n} requests at the engines")
        counts.append(f"{row['name']}: {n}")
    return "; ".join(counts)


@case
def stream_error():
    want = play("stream_error")
    for content in "without", "with-done":
        got = []

        def read():
            for chunk in ask(content=content, stream=True):
                got.extend(c.delta.content for c in chunk.choices if c.delta.content)

        error = raises(openai.APIError, read)
        check(want["message"] in error.message, f"the message is {error.message!r}")
        equal(len(got), want["events"], "tokens before the error")


def offsets(end, keep):
    """All offsets, or when short some, those in keep among them."""
    if not SHORT:
        return range(end)
    return sorted({*range(0, end, 37), *keep})


def cut_at(name, what, at, must_fail, must_pass, want):
    """One cut stream: it raises, or it is whole; never a part without error."""
    script(what)
    got, error = [], None
    try:
        with ask(content="cut me", stream=True) as stream:
            for chunk in stream:
                got.extend(c.delta.content or "" for c in chunk.choices)
    except Exception as e:
        error = e
    where = f"{name} at byte {at}"
    # A kept connection that is closed without a byte in answer is what a server's
    # idle timeout looks like: the gateway tries once more on a fresh one.
    check(1 <= len(records()) <= (2 if at == 0 else 1), f"{where}: {len(records())} requests at the engine")
    text = "".join(got)
    check(want.startswith(text), f"{where}: text {text!r}")
    if must_fail:
        check(error is not None, f"{where} ended cleanly")
    if must_pass:
        check(error is None, f"{where}: {error!r} though the stream was whole")
    if error is None:
        equal(text, want, f"{where}: text")
    elif isinstance(error, openai.APIStatusError):
        equal(error.status_code, 502, f"{where}: status")


@case
def stream_cut():
    wire, want, what = PLAYS["stream_cut"]["wire"], PLAYS["stream_cut"]["expect"]["text"], PLAYS["stream_cut"]["script"]
    tried = 0
    for how in "reset", "close":
        for at in offsets(wire["bytes"], [wire["error"] - 1, wire["whole"]]):
            what["rules"][0]["do"]["cut"] = {"at": at, "how": how}
            cut_at(how, what, at, at < wire["error"], at >= wire["whole"], want)
            tried += 1
        check(ask().choices[0].message.content, "the next request fails")
    return f"{tried} cuts"


@case
def stream_ends_early():
    want, what = PLAYS["stream_ends_early"]["expect"]["text"], PLAYS["stream_ends_early"]["script"]
    body = what["rules"][0]["do"]["respond"]["text"].encode()
    marker = body.index(b"data: [DONE]") + len(b"data: [DONE]")
    tried = 0
    for at in offsets(len(body), [marker - 1, marker]):
        what["rules"][0]["do"]["cut"]["at"] = at
        cut_at("end", what, at, at < marker, False, want)
        tried += 1
    return f"{tried} ends"


@case
def heartbeat():
    want = play("heartbeat")
    chunks = list(ask(new(STRICT, timeout=0.8), stream=True))
    equal(sum(bool(c.choices[0].delta.content) for c in chunks), want["tokens"], "tokens")


async def leave_task(start, ready):
    """Start a call as a task, wait until it is ready, cancel it 200 ms later."""
    task = asyncio.create_task(start())
    await asyncio.to_thread(await_, ready, "the request to get where it is to be left")
    await asyncio.sleep(0.2)
    check(not task.done(), "the call ended before it was left")
    left = time.time()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return left


def async_leave(whole=False, tokens=0):
    """Leave a call 200 ms after the engine got it and the client some tokens."""
    got = []

    async def go():
        async with AsyncOpenAI(base_url=GATEWAY, api_key="key", max_retries=0) as on:
            async def call():
                if whole:
                    return await on.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=50)
                async for chunk in await on.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=50, stream=True):
                    got.extend(c for c in chunk.choices if c.delta.content)

            return await leave_task(call, lambda: records() and len(got) >= tokens)

    return asyncio.run(go())


@case
def cancel_before_headers():
    play("cancel_before_headers")
    return aborts(async_leave, stage=["delay"])


@case
def cancel_queued():
    play("cancel_queued", "narrow")

    async def go():
        async with AsyncOpenAI(base_url=GATEWAY, api_key="key", max_retries=0) as on:
            def call(content):
                return on.chat.completions.create(model="narrow", messages=[{"role": "user", "content": content}], max_tokens=50)

            first = asyncio.create_task(call("first in line"))
            await asyncio.to_thread(await_, lambda: state("narrow")[0]["load"]["Running"] == 1, "the first to run")
            left = await leave_task(lambda: call("second"), lambda: state("narrow")[0]["load"]["Waiting"] == 1)
            await asyncio.to_thread(await_, lambda: any(r["outcome"] == "aborted" for r in records("narrow")), "the abort")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            return left

    return aborts(lambda: asyncio.run(go()), "narrow", ["queued"], b"second")


@case
def cancel_before_token():
    play("cancel_before_token")
    return aborts(async_leave, stage=["hang"])


@case
def cancel_between_tokens():
    play("cancel_between_tokens")
    return aborts(lambda: async_leave(tokens=1), stage=["decode"])


@case
def cancel_whole():
    play("cancel_whole")
    return aborts(lambda: async_leave(whole=True), stage=["prefill", "decode"])


@case
def cancel_break():
    play("cancel_between_tokens")

    def leave():
        with ask(stream=True, max_tokens=50) as stream:
            for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            left = time.time()
        return left

    said = aborts(leave, stage=["decode"])

    def close():
        stream = ask(stream=True, max_tokens=50)
        next(iter(stream))
        left = time.time()
        stream.close()
        return left

    return said + "; close() " + aborts(close, stage=["decode", "prefill"])


@case
def timeout():
    play("timeout")

    def leave():
        began = time.time()
        raises(openai.APITimeoutError, lambda: ask(new(timeout=0.5)))
        return began + 0.5

    return aborts(leave, stage=["delay"])


@case
def keep_alive():
    async def go():
        ports = set()

        async def note(response):
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr"))

        hooks = {"response": [note]}
        async with AsyncOpenAI(base_url=GATEWAY, api_key="key", max_retries=0, http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks)) as on:
            for _ in range(5):
                await on.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=4)
                async for _ in await on.chat.completions.create(model="plain", messages=MESSAGES, max_tokens=4, stream=True):
                    pass
                try:
                    await on.chat.completions.create(model="nobody", messages=MESSAGES)
                except openai.NotFoundError:
                    pass
                await on.models.list()
        return ports

    equal(len(asyncio.run(go())), 1, "connections for 20 calls")


@case
def concurrent():
    """Many requests at once: each gets its own answer."""

    async def go():
        async with AsyncOpenAI(base_url=GATEWAY, api_key="key", max_retries=0) as on:
            async def one(i):
                messages = [{"role": "user", "content": f"car {i}"}]
                whole = await on.chat.completions.create(model="twin", messages=messages, max_tokens=12)
                await asyncio.sleep(random.random() / 50)
                stream = await on.chat.completions.create(model="twin", messages=messages, max_tokens=12, stream=True)
                text = "".join([c.choices[0].delta.content or "" async for c in stream])
                equal(text, whole.choices[0].message.content, f"text {i}")
                return text

            return len(set(await asyncio.gather(*[one(i) for i in range(64)])))

    equal(asyncio.run(go()), 64, "different answers")


if __name__ == "__main__":
    main()
