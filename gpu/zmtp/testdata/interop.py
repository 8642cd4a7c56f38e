"""The other side of interop_test.go: libzmq by way of pyzmq.

serve     a PUB and a ROUTER on free ports, as an engine has them; prints their endpoints
consume   a SUB and a DEALER against the two endpoints given; prints what it received
"""
import struct
import sys
import time

import zmq

END = b"\xff" * 8


def serve(ctx):
    pub, router = ctx.socket(zmq.PUB), ctx.socket(zmq.ROUTER)
    for s in (pub, router):
        s.setsockopt(zmq.HEARTBEAT_IVL, 50)
        s.setsockopt(zmq.LINGER, 1000)
    ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (pub, router)]
    print(*(f"tcp://127.0.0.1:{p}" for p in ports), flush=True)
    sub_ready = router.recv_multipart()  # the subscriber says when it is there
    time.sleep(0.2)
    for i in range(3):
        pub.send_multipart([b"kv@x", struct.pack(">Q", i), b"payload" * i])
    pub.send_multipart([b"other", b"not wanted"])
    start = struct.unpack(">Q", sub_ready[-1])[0]
    for i in range(start, 3):
        router.send_multipart([sub_ready[0], b"", b"kv@x", struct.pack(">Q", i), b"replayed"])
    router.send_multipart([sub_ready[0], b"", b"", END, b""])
    router.recv_multipart()  # until the other side is done


def consume(ctx, pub, router):
    sub, dealer = ctx.socket(zmq.SUB), ctx.socket(zmq.DEALER)
    for s in (sub, dealer):
        s.setsockopt(zmq.HEARTBEAT_IVL, 50)
        s.setsockopt(zmq.HEARTBEAT_TIMEOUT, 5000)
        s.setsockopt(zmq.RCVTIMEO, 20000)
    sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
    sub.connect(pub)
    dealer.connect(router)
    dealer.send_multipart([b"", struct.pack(">Q", 1)])
    while True:
        frames = dealer.recv_multipart()
        print("replay", frames[-2].hex(), frames[-1].decode(), flush=True)
        if frames[-2] == END:
            break
    for _ in range(3):
        frames = sub.recv_multipart()
        print("live", frames[0].decode(), frames[1].hex(), frames[2].decode(), flush=True)


if __name__ == "__main__":
    context = zmq.Context()
    if sys.argv[1] == "serve":
        serve(context)
    else:
        consume(context, sys.argv[2], sys.argv[3])
