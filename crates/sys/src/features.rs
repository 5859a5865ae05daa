//! What the running kernel offers, as far as a system call must be made to find out.

use std::ptr;

use nix::libc;

/// Whether a program keeps the kernel's clock right (adjtimex(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    Kept,
    Alone,
}

/// Version of Landlock (landlock_create_ruleset(2)); `None` if the kernel does not have it or has it switched off.
pub fn landlock() -> Option<u32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the call reads no memory, and makes no descriptor.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<u8>(), 0usize, VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// What the kernel knows of its clock; `None` if it does not tell.
pub fn clock() -> Option<Clock> {
    // SAFETY: all fields are integers, for which zeroes are valid, and with `modes` 0 the call only writes into it.
    let state = unsafe {
        let mut kernel: libc::timex = std::mem::zeroed();
        libc::adjtimex(&raw mut kernel)
    };
    match state {
        -1 => None,
        libc::TIME_ERROR => Some(Clock::Alone),
        _ => Some(Clock::Kept),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_of_its_clock_and_of_landlock_what_proc_tells() {
        assert!(clock().is_some());
        let modules = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
        assert!(!modules.contains("landlock") || landlock().is_some(), "{modules}");
    }
}
