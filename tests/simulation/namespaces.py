"""Whether this kernel gives network namespaces, and what it is like where one does not.

`python namespaces.py COMMAND...` runs a command as on a kernel without them: in a user namespace in
which the limit of network namespaces is 0.
"""

import ctypes
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from simulation import supervisor

_CLONE_NEWUSER = 0x10000000


def are_allowed() -> bool:
    """Tries in a child."""
    child = os.fork()
    if not child:
        code = 1
        try:
            supervisor._isolate()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def forbid() -> None:
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER):
        sys.exit("no user namespace")
    for path, text in (
        ("/proc/self/setgroups", "deny"),
        ("/proc/self/uid_map", f"{user} {user} 1"),
        ("/proc/self/gid_map", f"{group} {group} 1"),
        ("/proc/sys/user/max_net_namespaces", "0"),
    ):
        with open(path, "w") as file:
            file.write(text)


if __name__ == "__main__":
    forbid()
    os.execv(sys.argv[1], sys.argv[1:])
