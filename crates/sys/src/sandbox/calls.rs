//! System calls of the front door.
//!
//! A call that is not listed fails with EPERM, and the process lives: a call that this list forgot costs the function
//! that makes it, with an error that names it, and no connection beside it.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::bpf::AFTER_START;

/// Programs that this process starts. They inherit the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Children {
    /// None: only listed calls are allowed.
    None,
    /// Any program: only calls that no ordinary program makes are refused.
    Any,
}

/// Whether this process has packet sockets, and may open further ones. The kernel asks for CAP_NET_RAW as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packets {
    Used,
    Unused,
}

/// Whether this process has an io_uring. Its operations pass by the filter: `crates/sys/src/ring.rs` lets the kernel refuse all but
/// a few on sockets. The filter refuses to make another ring, but for [`Children::Any`]: the programs that this process starts may
/// use io_uring(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rings {
    Used,
    Unused,
}

#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("no filter for this processor")]
    Processor(#[source] BackendError),
    #[error("the filter cannot be made")]
    Make(#[from] BackendError),
    #[error("the kernel refuses it")]
    Apply(#[from] seccompiler::Error),
}

pub(super) fn program(children: Children, packets: Packets, rings: Rings) -> Result<BpfProgram, FilterError> {
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let processor = std::env::consts::ARCH.try_into().map_err(FilterError::Processor)?;
    let (rules, otherwise, listed) = match children {
        Children::None => (allowed(packets, rings)?, refuse, SeccompAction::Allow),
        Children::Any => (refused(packets)?, SeccompAction::Allow, refuse),
    };
    Ok(SeccompFilter::new(rules, otherwise, listed, processor)?.try_into()?)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn allowed(packets: Packets, rings: Rings) -> Result<Rules, BackendError> {
    let mut rules: Rules = ALLOWED.iter().chain(OLD).map(|call| (*call, Vec::new())).collect();
    if rings == Rings::Used {
        rules.extend(OF_RINGS.map(|call| (call, Vec::new())));
    }
    let families = [libc::AF_INET, libc::AF_INET6].map(|family| {
        [libc::SOCK_STREAM, libc::SOCK_DGRAM]
            .map(|kind| SeccompRule::new(vec![is(0, family)?, of_kind(kind)?]))
    });
    let mut sockets = families.into_iter().flatten().collect::<Result<Vec<_>, _>>()?;
    // Netlink is how the C library sorts the addresses of a name.
    sockets.push(SeccompRule::new(vec![is(0, libc::AF_NETLINK)?, is(2, libc::NETLINK_ROUTE)?])?);
    sockets.push(SeccompRule::new(vec![is(0, libc::AF_UNIX)?])?);
    if packets == Packets::Used {
        sockets.push(SeccompRule::new(vec![is(0, libc::AF_PACKET)?])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    if packets == Packets::Used {
        // Of the programs that forward packets the tables are read, and a start that fails puts an earlier one back.
        let reads = AFTER_START.map(|command| SeccompRule::new(vec![is(0, command.cast_signed())?]));
        rules.insert(libc::SYS_bpf, reads.into_iter().collect::<Result<_, _>>()?);
    }
    // A new namespace would give all capabilities in it.
    let no_namespace = SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(NAMESPACES.iter().fold(0, |all, one| all | bits(*one))),
        0,
    )?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![no_namespace])?]);
    // Its own limits only: a limit of CPU time would end another process.
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is(0, 0)?])?]);
    // A thread may lower its own priority, not change that of another process.
    for call in [libc::SYS_sched_getattr, libc::SYS_sched_setattr] {
        rules.insert(call, vec![SeccompRule::new(vec![is(0, 0)?])?]);
    }
    rules.insert(libc::SYS_setpriority, vec![SeccompRule::new(vec![is(0, 0)?, is(1, 0)?])?]);
    // Files of this user that Landlock keeps from being opened must not become set-user-ID programs.
    let ordinary_mode = |argument| {
        let special = SeccompCmpOp::MaskedEq(0o7000);
        let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, special, 0)?;
        Ok::<_, BackendError>(vec![SeccompRule::new(vec![condition])?])
    };
    for (call, mode) in MODES {
        rules.insert(*call, ordinary_mode(*mode)?);
    }
    // Changes the name of a thread, and asks; nothing else.
    let prctl = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, libc::PR_GET_DUMPABLE]
        .map(|option| SeccompRule::new(vec![is(0, option)?]));
    rules.insert(libc::SYS_prctl, prctl.into_iter().collect::<Result<_, _>>()?);
    Ok(rules)
}

fn refused(packets: Packets) -> Result<Rules, BackendError> {
    let mut rules: Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let raw = [libc::AF_INET, libc::AF_INET6]
        .map(|family| SeccompRule::new(vec![is(0, family)?, of_kind(libc::SOCK_RAW)?]));
    let mut sockets = raw.into_iter().collect::<Result<Vec<_>, _>>()?;
    if packets == Packets::Unused {
        sockets.push(SeccompRule::new(vec![is(0, libc::AF_PACKET)?])?);
    }
    rules.insert(libc::SYS_socket, sockets);
    if packets == Packets::Used {
        let other = AFTER_START.map(|command| {
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, command.into())
        });
        let others = other.into_iter().collect::<Result<_, _>>()?;
        rules.insert(libc::SYS_bpf, vec![SeccompRule::new(others)?]);
    }
    let namespaces = NAMESPACES.iter().map(|flag| {
        let is_set = SeccompCmpOp::MaskedEq(bits(*flag));
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_set, bits(*flag))?])
    });
    rules.insert(libc::SYS_clone, namespaces.collect::<Result<_, _>>()?);
    Ok(rules)
}

/// A second filter: clone3(2) has its flags in memory, where no filter sees them. As on a kernel without it, the C
/// library then makes clone(2).
pub(super) fn without_clone3() -> Result<BpfProgram, FilterError> {
    let processor = std::env::consts::ARCH.try_into().map_err(FilterError::Processor)?;
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    Ok(SeccompFilter::new(rules, SeccompAction::Allow, unknown, processor)?.try_into()?)
}

/// Flags of clone(2) that make a namespace.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];

/// A flag as the kernel gets it, without an extended sign.
fn bits(flag: i32) -> u64 {
    u64::from(flag.cast_unsigned())
}

/// Calls that change permission bits, and which argument has them.
const MODES: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, 1),
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (libc::SYS_fchmodat2, 2),
];

fn is(argument: u8, value: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value as u64)
}

/// The second argument of socket(2) without its flags.
fn of_kind(kind: i32) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(0xf), kind as u64)
}

/// Calls with a ring that was made before the filter.
const OF_RINGS: [i64; 2] = [libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

const ALLOWED: &[i64] = &[
    // Bytes.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_vmsplice,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_pipe2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    // Sockets; socket(2) has conditions.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // Time and the process itself.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getresuid,
    libc::SYS_getresgid,
    libc::SYS_getgroups,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getcpu,
    libc::SYS_getcwd,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_umask,
    libc::SYS_getrlimit,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_capget,
    libc::SYS_membarrier,
    libc::SYS_getpgid,
    libc::SYS_getsid,
    // Memory.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_get_mempolicy,
    libc::SYS_memfd_create,
    // Threads, signals, the end.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigsuspend,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Files; Landlock says which.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_chdir,
    libc::SYS_fchdir,
];

/// Older calls of this processor, which the C library still makes.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_create,
    libc::SYS_eventfd,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_arch_prctl,
    libc::SYS_time,
    libc::SYS_getdents,
    libc::SYS_inotify_init,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

const REFUSED: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_chroot,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_personality,
];
