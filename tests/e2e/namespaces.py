"""Run by test_namespaces.py in other namespaces: creates one client, does what the arguments say, prints
JSON.

namespaces.py ENDPOINT open|attach|runs|pin PATH [RUN]
"""

import json
import os
import sys

import grpc
from attacker import Attacker, reason_of

from ckptd.v1 import messages_pb2 as messages
from ckptd.v1 import service_pb2_grpc


class Endpoint:
    def __init__(self, endpoint):
        self.endpoint = endpoint


def main():
    endpoint, action, path, *run = sys.argv[1:]
    admin = service_pb2_grpc.AdminStub(grpc.insecure_channel(endpoint))
    if action == "open":
        client = Attacker(Endpoint(endpoint))
        client.call("OpenRoot", messages.OpenRootRequest(path=path))
    elif action == "attach":
        client = Attacker(Endpoint(endpoint), descriptors=True)
        client.join(path).save("one")
    elif action == "runs":
        return [item.path for item in admin.ListRuns(messages.ListRunsRequest(), timeout=20).runs]
    elif action == "pin":
        admin.Pin(messages.PinRequest(name=f"{run[0]}/checkpoints/one"), timeout=20)
    else:
        raise AssertionError(action)
    return "ok"


if __name__ == "__main__":
    try:
        value = main()
    except grpc.RpcError as error:
        value = [reason_of(error), error.details()]
    print(json.dumps(value))
    sys.stdout.flush()
    os._exit(0)
