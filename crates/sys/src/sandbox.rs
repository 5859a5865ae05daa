//! Takes from the process what it will not use: files by Landlock (landlock(7)), system calls by seccomp(2).
//!
//! The front door calls [`restrict_files`] and [`filter_calls`] after privileges were dropped and before threads start:
//! both belong to a thread, and later threads and children inherit them. Neither can be taken back. A kernel that lacks
//! one of them is told to the caller, who serves without it.

pub mod calls;

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use seccompiler::apply_filter_all_threads;

use crate::sandbox::calls::{Children, FilterError, Packets, Rings, program, without_clone3};

/// Files that the process may use, with what lies below them. Paths that do not exist are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    pub read: Vec<PathBuf>,
    /// Read, written, made and removed.
    pub change: Vec<PathBuf>,
}

/// Extent to which the kernel enforces a restriction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    Fully,
    /// The kernel is too old for a part of it.
    Partly,
    /// The kernel does not have it.
    Not,
}

/// Restricts the files of this process for the rest of its life, and signals to its own processes where the kernel can.
pub fn restrict_files(files: &Files) -> Result<Enforced, RulesetError> {
    let abi = ABI::V6;
    // Nothing is executed, and no device is controlled.
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let change: BitFlags<AccessFs> = read
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSock
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(&files.read, read))?
        .add_rules(path_beneath_rules(&files.change, change))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::Partly,
        RulesetStatus::NotEnforced => Enforced::Not,
    })
}

/// Refuses system calls that no ordinary program makes, to this process and to the programs that it starts. Does nothing where a filter is in force
/// already: the programs that one after the other inherit theirs would have ever more of them.
pub fn filter_calls_of_programs() -> Result<(), FilterError> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(str::trim);
    if mode.is_some_and(|mode| mode != "0") {
        return Ok(());
    }
    filter_calls(Children::Any, Packets::Unused, Rings::Unused)
}

/// Refuses system calls that this process does not make, in all of its threads.
pub fn filter_calls(children: Children, packets: Packets, rings: Rings) -> Result<(), FilterError> {
    // The second one keeps further filters from being added. It allows clone3(2), and the kernel takes the refusal.
    apply_filter_all_threads(&without_clone3()?)?;
    Ok(apply_filter_all_threads(&program(children, packets, rings)?)?)
}
