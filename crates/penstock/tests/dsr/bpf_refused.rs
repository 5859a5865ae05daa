//! A kernel that refuses one command of bpf(2), for the program that is started behind it: by a filter of system calls.

/// A command of bpf(2), with the error that it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refused {
    /// BPF_LINK_CREATE, with EINVAL: as before Linux 5.7.
    LinkCreate,
    /// BPF_LINK_UPDATE, with EPERM.
    LinkUpdate,
}

/// A program in Python that sets the filter, and starts the program that its arguments name.
pub(crate) fn starter(refused: Refused) -> String {
    let (command, error) = match refused {
        Refused::LinkCreate => (28, 22),
        Refused::LinkUpdate => (29, 1),
    };
    format!("COMMAND, ERROR = {command}, {error}\n{FILTER}")
}

const FILTER: &str = r#"
import ctypes, os, struct, sys
BPF, FIRST_ARGUMENT = 321, 16
def step(code, if_true, if_false, value):
    return struct.pack("HBBI", code, if_true, if_false, value)
program = step(0x20, 0, 0, 0) + step(0x15, 0, 3, BPF) + step(0x20, 0, 0, FIRST_ARGUMENT)
program += step(0x15, 0, 1, COMMAND) + step(6, 0, 0, 0x50000 | ERROR) + step(6, 0, 0, 0x7fff0000)
kept = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_void_p)]
wanted = Filter(len(program) // 8, ctypes.addressof(kept))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(wanted)) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"#;
