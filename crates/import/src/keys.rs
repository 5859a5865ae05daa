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
        NewKey::Acl => State::Here,
        NewKey::DeniedPool => State::Here,
        NewKey::Fallback => State::Here,
        NewKey::Priority => State::Here,
        NewKey::SoftMaxConnections => State::Here,
        NewKey::BackendAcl => State::Here,
        NewKey::SourceAddress => State::Here,
        NewKey::Backlog => State::Here,
    }
}
