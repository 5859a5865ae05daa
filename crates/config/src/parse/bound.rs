//! A listening address of any section.

use crate::tree::NodeId;
use crate::types::{BindAddress, Transport};

/// A listening address and its place in the file.
pub(super) struct Bound {
    pub(super) address: BindAddress,
    pub(super) id: NodeId,
    pub(super) owner: Owner,
    pub(super) transport: Transport,
}

#[derive(Clone, PartialEq, Eq)]
pub(super) enum Owner {
    Listener(String),
    Admin,
    Control,
}

impl Owner {
    pub(super) fn name(&self) -> String {
        match self {
            Owner::Listener(name) => format!("listener.{name}"),
            Owner::Admin => "admin".into(),
            Owner::Control => "control".into(),
        }
    }
}
