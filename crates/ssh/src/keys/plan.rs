//! Which keys may be used for a host: what `ssh_config` says about it, already resolved.

use std::path::{Path, PathBuf};

/// The keys of one host. Paths are absolute: tokens and `~` were replaced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyPlan {
    /// IdentityFile, in order.
    pub identities: Vec<Identity>,
    /// CertificateFile, in order.
    pub certificates: Vec<PathBuf>,
    /// The socket of the agent: IdentityAgent, else `SSH_AUTH_SOCK`. None: no agent is asked.
    pub agent: Option<PathBuf>,
    /// IdentitiesOnly: what of the agent's other keys.
    pub others: OtherKeys,
    /// PubkeyAcceptedAlgorithms, in full names. None: all that are safe.
    pub accepted: Option<Vec<String>>,
    /// PubkeyAuthentication.
    pub public_key: Method,
    /// KbdInteractiveAuthentication, which here is off unless it is asked for.
    pub interactive: Method,
}

/// No key at all.
impl Default for KeyPlan {
    fn default() -> Self {
        Self::none()
    }
}

/// One IdentityFile.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The private key; its public half may be in `path` + `.pub`, a certificate in `path` + `-cert.pub`. Where only the
    /// agent has the private half, this may be the public half itself.
    pub path: PathBuf,
    /// Who named it.
    pub named: Named,
}

/// Who named an IdentityFile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Named {
    /// The user: it is missed when it is not there, and its place in the order is kept.
    ByUser,
    /// Nobody: one of [`DEFAULT_IDENTITIES`].
    ByDefault,
}

/// What to do with keys that the agent holds and the configuration does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OtherKeys {
    /// Offer them after those that are named.
    Offered,
    /// `IdentitiesOnly yes`.
    Ignored,
}

/// Whether a method of authentication is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// It is, where the server accepts it.
    On,
    /// Never.
    Off,
}

/// Keys below `~/.ssh` that are tried where the configuration names none.
pub const DEFAULT_IDENTITIES: &[&str] = &["id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"];

impl KeyPlan {
    /// What holds without any configuration: the default files of `home`, and the agent that the environment names.
    #[must_use]
    pub fn of_home(home: &Path, agent: Option<PathBuf>) -> Self {
        let path = |name: &&str| Identity { path: home.join(".ssh").join(name), named: Named::ByDefault };
        Self { identities: DEFAULT_IDENTITIES.iter().map(path).collect(), agent, ..Self::none() }
    }

    /// No key at all.
    #[must_use]
    pub fn none() -> Self {
        Self {
            identities: Vec::new(),
            certificates: Vec::new(),
            agent: None,
            others: OtherKeys::Offered,
            accepted: None,
            public_key: Method::On,
            interactive: Method::Off,
        }
    }

    /// One key file and nothing else.
    #[must_use]
    pub fn of_file(path: PathBuf) -> Self {
        Self {
            identities: vec![Identity { path, named: Named::ByUser }],
            others: OtherKeys::Ignored,
            ..Self::none()
        }
    }

    /// Whether signatures of `algorithm` may be used: never SHA-1 and DSA, whatever the configuration says.
    #[must_use]
    pub fn accepts(&self, algorithm: &str) -> bool {
        let safe = !algorithm.starts_with("ssh-rsa") && !algorithm.starts_with("ssh-dss");
        safe && self.accepted.as_ref().is_none_or(|list| list.iter().any(|name| name == algorithm))
    }
}
