"""A filter for system calls that no lab needs, and that have let programs out of sandboxes before."""

import ctypes
import errno
import platform
import struct

from breakfix.sandbox import kernel

# By name: its number on x86_64 and on aarch64.
REFUSED = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217),
    "request_key": (249, 218), "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "personality": (135, 92), "pidfd_getfd": (438, 438),
    # memory that is in nobody's resident size, where no bound sees it
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180),
    "io_setup": (206, 0),  # of which the whole machine has a limited number
}  # fmt: skip
_SOCKET = {"x86_64": 41, "aarch64": 198}
UNIX, INTERNET = (1,), (1, 2, 10, 16)  # unix; and IPv4, IPv6, netlink, in a network of its own, which vsock never is
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435  # its flags lie in memory, where a filter cannot look: as if there were none, glibc then uses clone
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16


def available() -> bool:
    """Whether the numbers above are those of this machine."""
    return platform.machine() in _ARCHITECTURES


def enter(families: tuple[int, ...]) -> None:
    """Refuse those calls, and sockets of other families, here and in all that this process starts. Raises OSError."""
    program = _program(platform.machine(), families)
    instructions = ctypes.create_string_buffer(b"".join(program))
    head = struct.pack("HxxxxxxP", len(program), ctypes.addressof(instructions))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_FILTER, ctypes.create_string_buffer(head, len(head)))


def _program(machine: str, families: tuple[int, ...]) -> list[bytes]:
    """The filter, an instruction each: code, jumps where true and false, value."""
    column, architecture = _ARCHITECTURES[machine]
    refuse = _line(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _line(_LOAD, _ARCH), _line(_EQUAL, architecture, 1, 0), _line(_RETURN, _KILL),
        _line(_LOAD, _NUMBER), _line(_AT_LEAST, _X32, 0, 1), refuse,
        _line(_EQUAL, _CLONE3, 0, 1), _line(_RETURN, _ERRNO | errno.ENOSYS),
    ]  # fmt: skip
    for numbers in REFUSED.values():
        program += [_line(_EQUAL, numbers[column], 0, 1), refuse]
    namespaces = kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWUSER | kernel.NEWPID | kernel.NEWNET
    program += [_line(_EQUAL, _CLONE[machine], 0, 3), _line(_LOAD, _FIRST_ARGUMENT)]
    program += [_line(_ANY_BIT, namespaces, 0, 1), refuse]
    program += [_line(_LOAD, _NUMBER), _line(_EQUAL, _SOCKET[machine], 1, 0), _line(_RETURN, _ALLOW)]
    program += [_line(_LOAD, _FIRST_ARGUMENT)]
    for family in families:
        program += [_line(_EQUAL, family, 0, 1), _line(_RETURN, _ALLOW)]
    return [*program, refuse]


def _line(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("HBBI", code, true, false, value)
