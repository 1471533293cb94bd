"""`python -m MODULE ...` by the warm process of `warm_python`: ends when its process does, with its
exit code. Imports little, since it is there to save imports.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    if sys.argv[1:2] != ["-m"]:  # Spark asks for the version
        os.execv(os.environ["WARM_PYTHON"], [os.environ["WARM_PYTHON"], *sys.argv[1:]])  # noqa: S606
    environment = dict(os.environ)
    request = {
        "module": sys.argv[2],
        "arguments": sys.argv[3:],
        "directory": os.getcwd(),
        "environment": environment,
    }
    status_read, status_write = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as requests:
        requests.connect(environment["WARM_PYTHON_REQUESTS"])
        socket.send_fds(requests, [json.dumps(request).encode()], [status_write, 0, 1, 2])
    os.close(status_write)
    with open(status_read, "rb") as status:
        pid = int.from_bytes(status.read(4), sys.byteorder)
        signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
        for descriptor in (0, 1):  # the process has them: Spark waits for the end of its output
            os.close(descriptor)
        code = os.waitstatus_to_exitcode(int.from_bytes(status.read(4), sys.byteorder))
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
