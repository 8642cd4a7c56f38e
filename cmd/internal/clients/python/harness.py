"""What the cases need besides the client: where things are, the scripted
engines' control doors, and the report of one JSON line a case.

Standard library only: the client under test is the one dependency.
"""

import base64
import json
import os
import re
import sys
import time
import traceback
import urllib.request

with open(os.environ["YARDMASTER_CLIENTS"], encoding="utf-8") as f:
    PLACE = json.load(f)

GATEWAY = PLACE["gateway"]
STRICT = PLACE["strict"]
SHORT = PLACE["short"]
PLAYS = PLACE["plays"]

_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Skip(Exception):
    """The case does not apply here, for the reason given."""


def http(method, url, body=None, headers=None):
    """One plain request; returns status, headers and body, of errors too."""
    data = None if body is None else body.encode()
    request = urllib.request.Request(url, data=data, method=method, headers=headers or {})
    try:
        with _opener.open(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def script(what, model="plain"):
    """Make the model's engines play what; records begin anew."""
    for engine in PLACE["engines"][model]:
        status, _, text = http("POST", engine + "/scripted/script", json.dumps(what or {}, ensure_ascii=False))
        check(status == 204, f"the engine refused the script: {text.decode()}")
    forget(model)


_old = {}  # the last record of each engine that does not count any more


def forget(model):
    """Make records begin anew. What the engines have on record stays: it may not
    have ended yet."""
    for engine, now in zip(PLACE["engines"][model], state(model), strict=True):
        if now["records"]:
            _old[engine] = now["records"][-1]["seq"]


def play(name, model="plain"):
    """Play a case of plays.yaml and return what it expects."""
    script(PLAYS[name].get("script"), model)
    return PLAYS[name].get("expect", {})


def state(model="plain"):
    """What the model's engines say of themselves since forget, one each."""
    return [json.loads(http("GET", f"{e}/scripted/record?after={_old.get(e, 0)}")[2]) for e in PLACE["engines"][model]]


def records(model="plain"):
    """The generation requests the model's engines have seen, the oldest first."""
    return [r for s in state(model) for r in s["records"] if r["method"] == "POST" and r["path"].startswith("/v1/")]


def sent_body(record):
    return base64.b64decode(record["body"])


def await_(condition, what, seconds=5):
    """Poll until condition() gives something true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.005)
    raise AssertionError(f"waited {seconds} s for {what}")


def ended(record):
    """When a record ended, in seconds since 1970."""
    whole, _, rest = record["ended"].partition(".")
    digits = re.match(r"\d*", rest).group()
    zone = rest[len(digits):] or "Z"
    import datetime

    at = datetime.datetime.fromisoformat(whole.removesuffix("Z") + (zone if zone != "Z" else "+00:00"))
    return at.timestamp() + float("0." + (digits or "0"))


ABORT_BOUND = 0.100
TRIES = 3  # a busy machine may hold up one of them, not a gateway that does not abort


def aborts(leave, model="plain", stage=None, word=b""):
    """Check that the engine sees the client leave within the bound: the request
    with word in its body, in one of the stages.

    leave() starts a request, leaves it, and returns when it left, by
    time.time(). Returns a sentence with the best time.
    """
    best = None
    for _ in range(TRIES):
        forget(model)
        left = leave()

        def seen():
            return next((r for r in records(model) if r["outcome"] == "aborted" and word in sent_body(r)), None)

        record = await_(seen, "the engine to see the abort")
        if stage is not None:
            check(record.get("stage") in stage, f"the request was in stage {record.get('stage')}, not {stage}")
        took = ended(record) - left
        best = took if best is None else min(best, took)
        if best <= ABORT_BOUND:
            return f"seen after {best * 1000:.0f} ms"
    raise AssertionError(f"the engine saw the abort after {best * 1000:.0f} ms at best")


def check(ok, message):
    if not ok:
        raise AssertionError(message)


def equal(got, want, what):
    check(got == want, f"{what}: got {got!r}, want {want!r}")


def raises(kind, call):
    """Call and return the exception, which must be of that very kind."""
    try:
        value = call()
    except Exception as error:
        check(isinstance(error, kind), f"raised {type(error).__name__} ({error}), not {kind}")
        return error
    raise AssertionError(f"nothing was raised; the result was {value!r:.300}")


CASES = []


def case(function):
    """A case is a function; what it returns is shown beside its result."""
    CASES.append(function)
    return function


def main():
    for function in CASES:
        name = function.__name__
        if PLACE["run"] and not re.search(PLACE["run"], name):
            continue
        for model in PLACE["engines"]:
            script(None, model)
        began = time.monotonic()
        status, detail = "pass", ""
        try:
            detail = function() or ""
        except Skip as reason:
            status, detail = "skip", str(reason)
        except Exception as error:
            status = "fail"
            where = traceback.extract_tb(error.__traceback__)
            mine = next((f for f in reversed(where) if f.filename.endswith("suite.py")), where[-1])
            detail = f"{type(error).__name__}: {error} (suite.py:{mine.lineno})"
        print(json.dumps({"case": name, "status": status, "detail": detail, "ms": (time.monotonic() - began) * 1000}), flush=True)
    sys.stdout.flush()
