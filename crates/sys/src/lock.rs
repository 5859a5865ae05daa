//! Finds the processes that hold the lock of a file.

use std::fs;

/// Returns the processes that hold a lock (flock(2)) of a file with this inode, according to proc_locks(5). The
/// function does not compare the device: on some file systems (btrfs, overlayfs) the list has another device number
/// than stat(2). Processes in other PID namespaces (containers) and processes that wait for the lock are left out.
/// Empty if the list cannot be read.
#[must_use]
pub fn holders(inode: u64) -> Vec<u32> {
    fs::read_to_string("/proc/locks").map(|list| listed(&list, inode)).unwrap_or_default()
}

fn listed(list: &str, inode: u64) -> Vec<u32> {
    let inode = inode.to_string();
    let holder = |line: &str| {
        // Fields: number, kind, ADVISORY, WRITE, process, device:inode. `->` precedes the kind if the process waits for
        // the lock.
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, process, place, ..] = words.as_slice() else { return None };
        let process = process.parse().ok().filter(|process| *process > 0)?;
        (place.rsplit(':').next() == Some(inode.as_str())).then_some(process)
    };
    list.lines().filter_map(holder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_told_from_those_who_wait_and_from_other_files_and_kinds() {
        let list = "1: FLOCK  ADVISORY  WRITE 700 08:01:42 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 701 08:01:42 0 EOF\n\
                    2: POSIX  ADVISORY  WRITE 702 08:01:42 0 EOF\n3: FLOCK  ADVISORY  WRITE 703 08:01:142 0 EOF\n\
                    4: FLOCK  ADVISORY  READ 0 08:01:42 0 EOF\nnonsense\n5: FLOCK  ADVISORY  READ 704 00:2f:42 0 EOF\n";
        assert_eq!(listed(list, 42), [700, 704]);
        assert!(listed(list, 7).is_empty());
    }
}
