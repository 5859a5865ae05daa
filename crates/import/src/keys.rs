//! Keys of our configuration that a translation needs and that may still be missing in this version.

text::words! {
    /// Such a key.
    pub(crate) enum NewKey: "key" {
        Acl = "listener.acl",
        DeniedPool = "listener.denied-pool",
        Fallback = "pool.fallback",
        Priority = "pool.backends.priority",
        SoftMaxConnections = "pool.backends.soft-max-connections",
        BackendAcl = "pool.backends.acl",
        SourceAddress = "pool.source-address",
        Backlog = "listener.backlog",
    }
}

/// Whether a configuration may have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Here,
    Awaited,
}

/// The keys of this version: one edit for each key that arrives.
pub(crate) const fn of_this_version(key: NewKey) -> State {
    match key {
        NewKey::Acl => State::Awaited,
        NewKey::DeniedPool => State::Awaited,
        NewKey::Fallback => State::Awaited,
        NewKey::Priority => State::Awaited,
        NewKey::SoftMaxConnections => State::Awaited,
        NewKey::BackendAcl => State::Awaited,
        NewKey::SourceAddress => State::Awaited,
        NewKey::Backlog => State::Awaited,
    }
}
