#!/usr/bin/env python3
"""A server of tests: prints its port, and answers {"records": [...]} with {"rewards": [...]}, or as vLLM's /classify. The first argument says how it behaves.

length     the number of characters of each answer; null for an empty one
busy N     answers the first N requests with status 503
limits N   answers the first N requests with status 429, and asks for 0.05 s
vanishes   ends at the second request, without an answer
slow S     waits S seconds
short      one reward too few
text       a text in place of JSON
nan        NaN
wrong      status 422 and a reason
quotes     status 500 and a reason that quotes another status
moved      a redirect
token      401 without the token "secret"

Of /classify: `length` is the number of characters of all texts, less 10 (half of it with an activation), and
shows      status 422 with the request
classes    three classes
null       a score that is null
"""

import http.server
import json
import os
import sys
import time

way, words = sys.argv[1], sys.argv[2:]
requests = 0


class Judge(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, text, headers=()):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        global requests
        requests += 1
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/classify":
            return self.classify(body)
        records = body["records"]
        rewards = [len(record["completion"]) or None for record in records]
        if way == "busy" and requests <= int(words[0]):
            return self.answer(503, "come back later")
        if way == "limits" and requests <= int(words[0]):
            return self.answer(429, "too many requests", [("Retry-After", "0.05")])
        if way == "vanishes" and requests == 2:
            os._exit(0)
        if way == "slow":
            time.sleep(float(words[0]))
        if way == "short":
            rewards.pop()
        if way == "text":
            return self.answer(200, "fine")
        if way == "nan":
            rewards[0] = float("nan")
        if way == "wrong":
            return self.answer(422, "unknown key \"colour\"")
        if way == "quotes":
            return self.answer(500, "the model behind it answers with status 401")
        if way == "moved":
            return self.answer(307, "", [("Location", "/other")])
        if way == "token" and self.headers.get("Authorization") != "Bearer secret":
            return self.answer(401, "who are you")
        return self.answer(200, json.dumps({"rewards": rewards}))


    def classify(self, body):
        if way == "busy" and requests <= int(words[0]):
            return self.answer(503, "come back later")
        if way == "text":
            return self.answer(200, "fine")
        if way == "shows":
            return self.answer(422, json.dumps(body, separators=(",", ":")))
        texts = [body["input"]] if "input" in body else [message["content"] for message in body["messages"]]
        score = (sum(map(len, texts)) - 10) / (2 if body["use_activation"] else 1)
        probs = {"classes": [0.5, 0.25, 0.25], "null": [None]}.get(way, [score])
        return self.answer(200, json.dumps({"data": [{"index": 0, "label": "LABEL_0", "probs": probs, "num_classes": len(probs)}]}))


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge)
print(server.server_port, flush=True)
server.serve_forever()
