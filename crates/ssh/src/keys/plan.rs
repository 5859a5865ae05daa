//! The keys that may be used for a host, after `ssh_config` was evaluated.

use std::path::{Path, PathBuf};

/// The keys of one host. Paths are absolute: tokens and `~` are expanded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyPlan {
    /// IdentityFile, in order.
    pub identities: Vec<Identity>,
    /// CertificateFile, in order.
    pub certificates: Vec<PathBuf>,
    /// Socket of the agent: IdentityAgent, else `SSH_AUTH_SOCK`. `None`: no agent is used.
    pub agent: Option<PathBuf>,
    /// IdentitiesOnly: the use of the agent's other keys.
    pub others: OtherKeys,
    /// PubkeyAcceptedAlgorithms, as full names. `None`: all safe algorithms.
    pub accepted: Option<Vec<String>>,
    pub public_key: Method,
    /// KbdInteractiveAuthentication; off by default, unlike in OpenSSH.
    pub interactive: Method,
}

impl Default for KeyPlan {
    fn default() -> Self {
        Self::none()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Private key file. Its public key may be in `path` + `.pub`, a certificate in `path` + `-cert.pub`. If only the
    /// agent has the private key, this may be the public key file.
    pub path: PathBuf,
    pub named: Named,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Named {
    /// Named by the user: a missing file is reported, and the key keeps its place in the order.
    ByUser,
    /// One of [`DEFAULT_IDENTITIES`].
    ByDefault,
}

/// Use of keys that the agent holds and the configuration does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OtherKeys {
    /// The keys are offered after the named ones.
    Offered,
    Ignored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// The method is used if the server accepts it.
    On,
    Off,
}

/// Key files below `~/.ssh` that are tried if the configuration names none.
pub const DEFAULT_IDENTITIES: &[&str] = &["id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"];

impl KeyPlan {
    /// Returns the plan without any configuration: the default files of `home`, and the agent of the environment.
    #[must_use]
    pub fn of_home(home: &Path, agent: Option<PathBuf>) -> Self {
        let path = |name: &&str| Identity { path: home.join(".ssh").join(name), named: Named::ByDefault };
        Self { identities: DEFAULT_IDENTITIES.iter().map(path).collect(), agent, ..Self::none() }
    }

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

    /// Returns a plan with one key file only.
    #[must_use]
    pub fn of_file(path: PathBuf) -> Self {
        Self {
            identities: vec![Identity { path, named: Named::ByUser }],
            others: OtherKeys::Ignored,
            ..Self::none()
        }
    }

    /// Returns true if signatures of `algorithm` may be used: never SHA-1 and DSA, even if the configuration names
    /// them.
    #[must_use]
    pub fn accepts(&self, algorithm: &str) -> bool {
        let safe = !algorithm.starts_with("ssh-rsa") && !algorithm.starts_with("ssh-dss");
        safe && self.accepted.as_ref().is_none_or(|list| list.iter().any(|name| name == algorithm))
    }
}
