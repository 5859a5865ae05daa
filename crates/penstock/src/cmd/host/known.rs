//! Loads the known hosts, finds one by name, and reports the result of a change.

use hosts::identity::{HostFile, Index, Name};
use ssh::identity::{Change, IdentityError, Store};

use crate::output::{Failure, plain};

/// Returns the identity with this name.
pub(super) fn known<'i>(index: &'i Index, name: &Name) -> Result<&'i HostFile, Failure> {
    use hosts::identity::Found;
    match index.find(name.as_str(), 22) {
        Found::Host(host) => Ok(host),
        Found::Unknown => Err(failure(IdentityError::Unknown(name.to_string()))),
        Found::Damaged(damage) => {
            let faults: Vec<String> = damage.faults.iter().map(|fault| plain(&fault.to_string())).collect();
            Err(Failure::runtime(format!("{} is damaged: {}", plain(&damage.path), faults.join("; "))))
        }
        Found::Ambiguous(names) => {
            let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
            Err(Failure::runtime(format!(
                "{name} is a hint of several hosts ({}): name one of them",
                names.join(" and ")
            )))
        }
    }
}

pub(super) fn load(store: &Store) -> Result<Index, Failure> {
    store.load().map_err(failure)
}

pub(super) fn failure(error: IdentityError) -> Failure {
    Failure::Runtime(error.into())
}

pub(super) fn said(change: Change, done: &str) -> String {
    match change {
        Change::Written => format!("{done}\n"),
        Change::Nothing => "nothing to change\n".to_owned(),
    }
}
