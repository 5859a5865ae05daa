//! Who changes the configuration.

use std::fmt;

/// A user who changes the configuration, by the kernel's peer credentials or by a log-in over the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    pub uid: u32,
    /// Name of the user; `None` if the system does not know one.
    pub name: Option<String>,
    /// Process of the client; `None` in another PID namespace.
    pub pid: Option<i32>,
    /// Who has logged in over the network, such as `user:ann`; then `uid` means nothing.
    pub login: Option<String>,
}

impl Operator {
    /// Whether it is the same user, from wherever.
    pub fn is(&self, other: &Self) -> bool {
        match (&self.login, &other.login) {
            (None, None) => self.uid == other.uid,
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(login) = &self.login {
            return f.write_str(login);
        }
        match (&self.name, self.pid) {
            (Some(name), Some(pid)) => write!(f, "{name} (uid {}, pid {pid})", self.uid),
            (Some(name), None) => write!(f, "{name} (uid {})", self.uid),
            (None, Some(pid)) => write!(f, "uid {} (pid {pid})", self.uid),
            (None, None) => write!(f, "uid {}", self.uid),
        }
    }
}
