//! A host of a run.

use hosts::fleet::ending::Failure;

#[derive(Debug, Clone)]
pub struct Host {
    /// Name of the host as the user typed it.
    pub name: String,
    /// Address and settings of the host, or why they are not known.
    pub target: Result<ssh::Target, Failure>,
}

impl Host {
    /// The jump host, which several hosts may share.
    pub(super) fn gate(&self) -> Option<&str> {
        match &self.target.as_ref().ok()?.proxy {
            ssh::Proxy::Jump(hops) => hops.first().map(|hop| hop.name.as_str()),
            _ => None,
        }
    }
}
