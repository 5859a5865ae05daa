//! Finds Unix sockets that a process has bound without listening on them (yet).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Returns true if a process has a socket bound at `path` that neither listens nor is connected, according to
/// `/proc/net/unix` (proc_pid_net(5)). The list lacks the sockets of other network namespaces. Without `/proc` the
/// function returns false.
pub(super) fn is_bound(path: &Path) -> bool {
    let Ok(list) = fs::read("/proc/net/unix") else { return false };
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let same_directory = |bound: &Path| {
        let directory = |path: &Path| path.parent().and_then(|parent| parent.canonicalize().ok());
        bound == whole || directory(bound).is_some_and(|there| directory(&whole) == Some(there))
    };
    // Only the process that bound a relative path knows its directory: a relative path matches if the file name is the
    // same.
    listed(&list)
        .any(|bound| bound.file_name() == whole.file_name() && (bound.is_relative() || same_directory(bound)))
}

/// Returns the paths of sockets that are bound, are not connected and do not listen.
fn listed(list: &[u8]) -> impl Iterator<Item = &Path> {
    list.split(|byte| *byte == b'\n').filter_map(|line| {
        // Fields: number, references, protocol, flags, type, state, inode (padded), name. The name may contain blanks.
        let words: Vec<_> = line.splitn(7, |byte| *byte == b' ').collect();
        let [_, _, _, flags, _, UNCONNECTED, rest] = words.as_slice() else { return None };
        let rest = rest.trim_ascii_start();
        let name = &rest[rest.iter().position(|byte| *byte == b' ')? + 1..];
        // Names in the abstract namespace (unix(7)) begin with a zero byte, which the list shows as `@`. They are not
        // files.
        let is_file = !name.is_empty() && !name.starts_with(b"@");
        (hexadecimal(flags)? & LISTENS == 0 && is_file).then(|| Path::new(OsStr::from_bytes(name)))
    })
}

fn hexadecimal(word: &[u8]) -> Option<u32> {
    u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()
}

/// Flag `__SO_ACCEPTCON` in /proc/net/unix: the socket listens. Such lines are left out, because the caller itself connects
/// to the path and so finds out whether a process listens there.
const LISTENS: u32 = 1 << 16;
/// `SS_UNCONNECTED`. A connection that a listener accepted has the path of the listener, and state 03 (`SS_CONNECTED`).
const UNCONNECTED: &[u8] = b"01";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_connections_and_sockets_without_a_name_are_left_out() {
        let list = b"Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0001 01    17 /run/listens\n\
            0000000000000000: 00000003 00000000 00000000 0001 03   180 /run/connected\n\
            0000000000000000: 00000002 00000000 00000000 0001 01 12345\n\
            0000000000000000: 00000002 00000000 00000000 0001 01 12345 /run/bound with  blanks\n\
            0000000000000000: 00000002 00000000 00000000 0005 01     9 relative\n\
            0000000000000000: 00000002 00000000 00000000 0002 01    10 @abstract\nnonsense\n";
        let names: Vec<_> = listed(list).collect();
        assert_eq!(names, [Path::new("/run/bound with  blanks"), Path::new("relative")]);
    }
}
